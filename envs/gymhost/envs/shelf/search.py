"""Search: answer questions from a corpus that must be searched, over several articles each."""

import functools
import hashlib
import re
import string
from collections import Counter, defaultdict

from gymhost.envs.rubrics import rubric
from gymhost.envs.shelf.bm25 import Bm25
from gymhost.envs.shelf.search_world import RELATIONS, Entity, world
from gymhost.envs.tasks import Task, Tasks
from gymhost.envs.toolenv import ToolEnv
from gymhost.envs.tools import ToolError, tool

_MOST_RESULTS = 20
_LONGEST_QUERY = 500
_LONGEST_ANSWER = 20
_LEAST_F1 = 0.5
_SNIPPET = 100
_TESTED = 5
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation, " "))


class Search(ToolEnv):
    """Answer a question whose answer no single article gives, with a search engine over a world that is made up.

    The questions take two or three articles. The first answer counts. Rewards: 0.8 for the exact answer, and 0.2 times
    the F1 of its words where that is at least 0.5. Questions to test on begin at other articles than those to train on.
    """

    system = "You answer questions with a search engine over an encyclopedia of a world that you know nothing of."
    public_fields = ("question", "hops")
    max_turns = 30
    max_calls = 60
    expert = "gymhost.envs.shelf.search_expert:hop_by_hop"
    cheats = (
        "gymhost.envs.shelf.search_expert:everything_at_once",
        "gymhost.envs.shelf.search_expert:nothing",
        "gymhost.envs.shelf.search_expert:question_repeated",
        "gymhost.envs.shelf.search_expert:claimed_victory",
    )

    @classmethod
    def tasks(cls) -> dict[str, Tasks]:
        """Returns the splits."""
        return {split: Tasks(tasks) for split, tasks in _questions().items()}

    def setup(self, task: Task) -> None:
        """Forgets what was answered."""
        self._right: str = task["answer"]
        self._answer = ""

    def prompt(self, task: Task) -> str:
        """Asks the question."""
        return (
            f"{task['question']}\n\n"
            "Find it out with the tools search and read, then call answer with a name or a number and nothing else: "
            "the first answer counts."
        )

    @tool
    def search(self, query: str, limit: int = 5) -> str:
        """Finds the articles that share most with a query (BM25).

        Args:
            query: Words to look for.
            limit: The most articles to list, at most 20.
        """
        if not 1 <= limit <= _MOST_RESULTS:
            raise ToolError(f"limit is from 1 to {_MOST_RESULTS}, not {limit}")
        if len(query) > _LONGEST_QUERY:
            raise ToolError(f"a query has at most {_LONGEST_QUERY} characters")
        articles = world().articles
        found = _index().search(query, limit)
        lines = [f"{number}. {title}: {articles[title][:_SNIPPET]}..." for number, title in enumerate(found, start=1)]
        return "\n".join(lines) or "No article has any of these words."

    @tool
    def read(self, article: str) -> str:
        """Shows an article.

        Args:
            article: Its title, as search lists it.
        """
        title = _titles().get(article.strip().lower())
        if title is None:
            raise ToolError(f"there is no article {article[:100]!r}; find titles with search")
        return f"# {title}\n{world().articles[title]}"

    @tool
    def answer(self, text: str) -> str:
        """Answers the question, which ends the episode.

        Args:
            text: A name or a number, and nothing else.
        """
        if len(text.split()) > _LONGEST_ANSWER:
            raise ToolError(f"an answer is a name or a number, not more than {_LONGEST_ANSWER} words")
        self._answer = text
        self.finish()
        return "Thank you."

    @rubric(weight=0.8)
    def exact(self) -> float:
        """1 for the exact answer; case, punctuation and articles do not count."""
        return float(normalized(self._answer) == normalized(self._right))

    @rubric(weight=0.2)
    def f1(self) -> float:
        """The F1 of the answer's words; less than a half counts as nothing, so that to list candidates does not pay."""
        found = token_f1(self._answer, self._right)
        return found if found >= _LEAST_F1 else 0.0


def normalized(answer: str) -> list[str]:
    """Returns an answer's words without case, punctuation and articles."""
    return _ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split()


def token_f1(answer: str, right: str) -> float:
    """Returns the harmonic mean of precision and recall of an answer's words."""
    given, wanted = normalized(answer), normalized(right)
    shared = (Counter(given) & Counter(wanted)).total()
    return 2 * shared / (len(given) + len(wanted)) if shared else 0.0


@functools.cache
def _index() -> Bm25:
    return Bm25({title: f"{title} {text}" for title, text in world().articles.items()})


@functools.cache
def _titles() -> dict[str, str]:
    return {title.lower(): title for title in world().articles}


@functools.cache
def _questions() -> dict[str, list[Task]]:
    """Returns the questions by split, in an order that looks random and is the same everywhere."""
    splits: dict[str, list[Task]] = defaultdict(list)
    for name, entity in world().entities.items():
        split = "test" if _digest(name)[0] % _TESTED == 0 else "train"
        quoted = f'"{name}"' if entity.kind == "work" else name
        for relation in RELATIONS:
            if relation.source == entity.kind and relation.phrase is not None and relation.name in entity.facts:
                after = world().entities[entity.facts[relation.name]]
                splits[split] += _continued(after, relation.phrase.format(quoted), [name], hops=2)
    return {split: sorted(splits[split], key=lambda task: _digest(task["question"])) for split in ("train", "test")}


def _continued(entity: Entity, phrase: str, passed: list[str], hops: int) -> list[Task]:
    """Returns the questions that go on from what a phrase speaks of; what was passed may not come again."""
    tasks: list[Task] = []
    for relation in RELATIONS:
        if relation.source != entity.kind or relation.name not in entity.facts:
            continue
        answer = entity.facts[relation.name]
        if answer in (*passed, entity.name):
            continue
        tasks.append({"question": relation.ask.format(phrase), "hops": hops, "answer": answer})
        if relation.phrase is not None and hops < 3:
            further = world().entities[answer]
            tasks += _continued(further, relation.phrase.format(phrase), [*passed, entity.name], hops + 1)
    return tasks


def _digest(text: str) -> bytes:
    return hashlib.sha256(f"search {text}".encode()).digest()
