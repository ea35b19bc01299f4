"""Search: the world, the ranking, the tools and the scores."""

import hashlib

import pytest

from gymhost.envs.shelf.bm25 import Bm25
from gymhost.envs.shelf.scripted import call
from gymhost.envs.shelf.search import Search, normalized, token_f1
from gymhost.envs.shelf.search_world import RELATIONS, world


def test_rare_words_count_more_and_long_texts_less() -> None:
    index = Bm25(
        {
            "clocks": "the town makes clocks",
            "town": "the town is a town by the town river",
            "long": "the river and the hills and the fields and the woods and all of the rest of it",
            "river": "the river",
        }
    )
    assert index.search("clocks", 5) == ["clocks"]
    assert index.search("the CLOCKS!", 1) == ["clocks"]
    assert index.search("town", 5) == ["town", "clocks"]
    assert index.search("river", 5)[0] == "river"
    assert index.search("river", 5)[-1] == "long"
    assert index.search("clocks river", 2) == ["clocks", "river"]
    assert index.search("nothing of it here?", 5) == ["long"]
    assert index.search("zzz", 5) == []
    assert index.search("", 5) == []
    assert Bm25({}).search("a", 3) == []


def test_the_scores_are_those_of_the_formula() -> None:
    index = Bm25({"a": "x x y", "b": "y"}, saturation=1.2, by_length=0.75)
    # idf = ln(1 + (2 - 1 + 0.5) / (1 + 0.5)), tf = 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 3 / 2))
    assert index._weights["x"]["a"] == pytest.approx(0.693147 * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 3 / 2)), rel=1e-5)


def test_equal_scores_are_in_the_order_of_titles() -> None:
    texts: dict[str, str] = dict.fromkeys(("c", "a", "b"), "same words")
    assert Bm25(texts).search("words", 5) == ["a", "b", "c"]


def test_the_world_agrees_with_itself() -> None:
    entities, articles = world().entities, world().articles
    assert len(articles) >= 300
    assert max(map(len, articles.values())) < 1000
    for entity in entities.values():
        for relation in RELATIONS:
            if relation.source != entity.kind or relation.name not in entity.facts:
                continue
            told = entity.facts[relation.name]
            assert told in articles[entity.name]
            if relation.target is not None:
                assert entities[told].kind == relation.target
    for entity in entities.values():
        if entity.kind == "work":
            assert int(entity.facts["published"]) > int(entities[entity.facts["author"]].facts["born"])
        if entity.kind == "firm":
            assert int(entity.facts["founded"]) > int(entities[entity.facts["founder"]].facts["born"])
        if "teacher" in entity.facts:
            assert int(entity.facts["born"]) > int(entities[entity.facts["teacher"]].facts["born"])


def test_the_world_is_the_same_everywhere() -> None:
    assert hashlib.sha256(repr(world().articles).encode()).hexdigest()[:16] == "3c1638305fe76da9"
    assert Search().splits["test"][0] == {
        "question": "Who is the mayor of the birthplace of the founder of Trukin Mills?",
        "hops": 3,
        "answer": "Bevuke Loumam",
    }


def test_questions_take_two_or_three_articles_and_do_not_tell_the_answer() -> None:
    for tasks in Search().splits.values():
        assert len(tasks) >= 200
        assert {task["hops"] for task in tasks} == {2, 3}
        for task in tasks:
            assert task["answer"] not in task["question"]
    starts = [{task["question"].split(" of ")[-1] for task in tasks} for tasks in Search().splits.values()]
    assert not starts[0] & starts[1], "no question to test on begins where one to train on does"


def reset() -> Search:
    env = Search()
    env.reset(options={"split": "test", "task": 0})
    return env


def test_search_lists_and_read_shows() -> None:
    env = reset()
    title = next(iter(world().articles))
    listed = env.step(call("search", query=title, limit=3))[0][0]["content"].splitlines()
    assert len(listed) == 3
    assert listed[0].startswith(f"1. {title}: {title} is a river")
    assert env.step(call("read", article=title.upper()))[0][0]["content"] == f"# {title}\n{world().articles[title]}"
    assert "there is no article 'Atlantis'" in env.step(call("read", article="Atlantis"))[0][0]["content"]
    assert env.step(call("search", query="qqq"))[0][0]["content"] == "No article has any of these words."


@pytest.mark.parametrize("limit", [0, -1, 21, 10**9])
def test_a_limit_is_bounded(limit: int) -> None:
    assert "from 1 to 20" in reset().step(call("search", query="river", limit=limit))[0][0]["content"]


def test_long_queries_and_answers_are_refused() -> None:
    env = reset()
    assert "at most 500 characters" in env.step(call("search", query="a" * 501))[0][0]["content"]
    observation, _, terminated, *_ = env.step(call("answer", text="word " * 21))
    assert "not more than 20 words" in observation[0]["content"]
    assert not terminated


def test_the_exact_answer_is_worth_one_and_a_near_one_a_part() -> None:
    env = Search()
    index, task = next((i, task) for i, task in enumerate(env.splits["test"]) if len(task["answer"].split()) == 2)
    first, second = task["answer"].split()
    for answer, scores, reward in (
        (f"  the {first.upper()} {second}. ", {"exact": 1.0, "f1": 1.0}, 1.0),
        (f"{first} Someone", {"exact": 0.0, "f1": 0.5}, 0.1),
        (second, {"exact": 0.0, "f1": 2 / 3}, 0.2 * 2 / 3),
        (f"{first} or another one", {"exact": 0.0, "f1": 0.0}, 0.0),
        ("", {"exact": 0.0, "f1": 0.0}, 0.0),
    ):
        env.reset(options={"split": "test", "task": index})
        observation, got, terminated, _, info = env.step(call("answer", text=answer))
        assert terminated
        assert got == pytest.approx(reward)
        assert info["rewards"] == pytest.approx(scores)
        assert task["answer"] not in repr((observation, info))


def test_f1_counts_words_as_often_as_they_come() -> None:
    assert normalized("The quick, quick fox's") == ["quick", "quick", "fox", "s"]
    assert token_f1("a b b", "b c") == pytest.approx(2 * 1 / 4)
    assert token_f1("", "") == 0.0
