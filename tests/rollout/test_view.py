"""The page of trajectories as a file: what is in it, and that nothing in it can break out."""

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from gymhost.rollout.trajectory import Row, Trajectory
from gymhost.rollout.view import write_page
from support.varied_rollouts import HOSTILE, varied_store


class Page(HTMLParser):
    """A page as a browser takes it apart."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text = path.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, str] = {}
        self._inside = ""
        self.feed(self.text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style", "title"):
            self._inside = dict(attrs).get("id") or tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.inside[self._inside] = self.inside.get(self._inside, "") + data

    @property
    def index(self) -> dict[str, Any]:
        return json.loads(self.inside["index"])

    def unpacked(self, name: str) -> Any:
        return json.loads(zlib.decompress(base64.b64decode(self.inside[name])))


def test_what_was_recorded_is_in_the_page(tmp_path: Path):
    store = varied_store(tmp_path / "store")
    trajectories = list(store)
    written = write_page(tmp_path / "page.html", store, title="a run", settings=store.settings, pieces=store.pieces)
    page = Page(written.path)
    assert written.rollouts == len(trajectories) == len(page.index["rollouts"])
    assert page.index["settings"] == store.settings
    assert {int(id): text for id, text in page.unpacked("pieces").items()} == store.pieces
    for n, trajectory in enumerate(trajectories):
        line, said = page.index["rollouts"][n], page.unpacked(f"conversation-{n}")
        record = trajectory.model_dump(mode="json")
        assert said == {name: record[name] for name in said}
        assert said["messages"] == trajectory.messages
        assert (line["id"], line["reward"], line["outcome"]) == (
            trajectory.id,
            trajectory.reward,
            trajectory.outcome.kind,
        )
        assert (line["turns"], line["tokens"]) == (len(trajectory.turns), trajectory.sampled_tokens)
        assert [rebuilt(row) for row in page.unpacked(f"tokens-{n}")] == [
            (
                row.prompt_ids,
                row.completion_ids,
                row.mask,
                [round(value, 4) for value in row.logprobs],
                row.policy_versions,
            )
            for row in trajectory.token_rows
        ]


def rebuilt(row: dict[str, Any]) -> tuple[Any, ...]:
    """A row's columns from the short form in which the page has them."""
    prompt = row["prompt"]
    mask = [bit % 2 for bit, length in enumerate(row["sampled"]) for _ in range(length)]
    logprobs = iter(row["logprobs"])
    versions = iter([version for version, length in row["versions"] for _ in range(length)])
    return (
        row["ids"][:prompt],
        row["ids"][prompt:],
        mask,
        [next(logprobs) if bit else 0.0 for bit in mask],
        [next(versions) if bit else -1 for bit in mask],
    )


def test_hostile_text_stays_within_its_element(tmp_path: Path):
    hostile = varied_store(tmp_path / "store", tasks=1)
    harmless = [Trajectory(env_id="A-v0")] * len(hostile)
    plain = Page(write_page(tmp_path / "plain.html", harmless).path)
    path = write_page(
        tmp_path / "page.html", hostile, title=HOSTILE, settings=hostile.settings, pieces={1: HOSTILE}
    ).path
    page = Page(path)
    assert page.elements == plain.elements, "no element and no attribute comes from a trajectory"
    assert HOSTILE not in page.text
    assert not set(page.inside["index"]) & set("<>&\u2028\u2029")
    assert page.inside["title"] == f"{HOSTILE} · gymhost view"
    assert page.index["rollouts"][-1]["group"] == HOSTILE
    assert page.unpacked("pieces") == {"1": HOSTILE}


def test_the_policy_lets_the_page_s_own_script_run_and_nothing_be_loaded(tmp_path: Path):
    page = Page(write_page(tmp_path / "page.html", []).path)
    policy = next(str(of["content"]) for tag, of in page.elements if tag == "meta" and "http-equiv" in of)
    for name, element in (("script-src", "script"), ("style-src", "style")):
        digest = base64.b64encode(hashlib.sha256(page.inside[element].encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert not re.search("unsafe|https?:", policy)
    assert not [of for _, of in page.elements if "src" in of or "href" in of]


def test_the_script_makes_no_markup_from_text():
    folder = resources.files("gymhost.rollout.view") / "js"
    scripts = {item.name: item.read_text(encoding="utf-8") for item in folder.iterdir() if item.name.endswith(".js")}
    assert len(scripts) == 10
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc|eval\(|new Function|DOMParser"
    )
    assert [name for name, text in scripts.items() if forbidden.search(text) or "</script" in text] == []


def test_numbers_that_json_does_not_have(tmp_path: Path):
    row = Row(prompt_ids=[1])
    row.append_sampled([2, 3, 4], [float("-inf"), float("nan"), -0.123456], [0, 0, 0])
    trajectory = Trajectory(
        env_id="A-v0",
        token_rows=[row],
        reward=float("nan"),
        rewards={"a": float("inf")},
        labels={"b": float("nan")},
    )
    page = Page(write_page(tmp_path / "page.html", [trajectory], settings={"c": float("inf")}).path)
    assert page.unpacked("tokens-0")[0]["logprobs"] == [None, None, -0.1235]
    assert page.index["rollouts"][0]["reward"] is None
    assert page.unpacked("conversation-0")["rewards"] == {"a": None}


def test_what_does_not_fit_is_left_out_and_counted(tmp_path: Path):
    store = varied_store(tmp_path / "store")
    some = write_page(tmp_path / "some.html", store, max_bytes=20_000)
    assert 0 < some.rollouts < len(store)
    assert some.rollouts + some.too_large == len(store)
    page = Page(some.path)
    assert page.index["leftOut"] == {"tooMany": 0, "tooLarge": some.too_large}
    assert sum(len(text) for name, text in page.inside.items() if name.startswith(("conv", "tokens"))) <= 20_000
    few = write_page(tmp_path / "few.html", store, limit=3)
    assert (few.rollouts, few.too_many, few.too_large) == (3, len(store) - 3, 0)
    assert len(Page(few.path).index["rollouts"]) == 3


def test_a_page_that_can_t_be_finished_leaves_the_one_that_was_there(tmp_path: Path):
    path = tmp_path / "page.html"
    path.write_text("before")

    def broken():
        yield Trajectory(env_id="A-v0")
        raise ValueError("line 2 is no trajectory")

    with pytest.raises(ValueError, match="line 2"):
        write_page(path, broken())
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
