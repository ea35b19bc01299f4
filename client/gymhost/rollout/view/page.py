"""The page as a file: what is shown, how, and the data of it, with nothing to be fetched from anywhere."""

import base64
import contextlib
import hashlib
import html
import os
import string
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import IO, Any

from gymhost.rollout.trajectory import Trajectory
from gymhost.rollout.view.records import as_json, conversation, line, packed, tokens

__all__ = ["PAGE_BYTES", "Written", "write_page"]

PAGE_BYTES = 200_000_000
"""How large the data of a page may become unless it is said: browsers open some hundred MB, slowly."""

_SCRIPTS = ("dom", "data", "facts", "filters", "list", "messages", "tokens", "group", "reader", "app")
"""The page's JavaScript, in order: each file uses what those before it define."""


@dataclass(frozen=True, slots=True)
class Written:
    """A page that was written.

    Attributes:
        path: Where it is.
        rollouts: How many it shows.
        too_many: How many were left out since there were more than the limit.
        too_large: How many were left out since the page would have become too large.
    """

    path: Path
    rollouts: int
    too_many: int
    too_large: int


def write_page(
    path: str | Path,
    trajectories: Iterable[Trajectory],
    *,
    title: str = "",
    settings: Mapping[str, Any] | None = None,
    pieces: Mapping[int, str] | None = None,
    limit: int | None = None,
    max_bytes: int = PAGE_BYTES,
) -> Written:
    """Writes trajectories as one HTML page that needs no network and no server.

    Args:
        path: The file. One that is there is replaced, at once, when the page is whole.
        trajectories: What to show; they are gone through once, and never held all together.
        title: What the page is of.
        settings: The run's settings, shown at its head.
        pieces: The text of token ids. An id without one is shown as a number.
        limit: How many trajectories at most.
        max_bytes: How large the data may become. Trajectories that would go beyond it are left out, and counted.

    Returns:
        How many were written and left out.

    Raises:
        OSError: The file can't be written.
    """
    path = Path(path)
    with _replacing(path) as file:
        head, foot = _shell(title)
        file.write(head)
        lines: list[dict[str, Any]] = []
        size = too_many = too_large = 0
        for trajectory in trajectories:
            if limit is not None and len(lines) >= limit:
                too_many += 1
                continue
            said, sampled = packed(conversation(trajectory)), packed(tokens(trajectory))
            if too_large or size + len(said) + len(sampled) > max_bytes:
                too_large += 1
                continue
            size += len(said) + len(sampled)
            _embed(file, f"conversation-{len(lines)}", said)
            _embed(file, f"tokens-{len(lines)}", sampled)
            lines.append(line(trajectory))
        _embed(file, "pieces", packed(as_json(pieces or {})))
        left_out = {"tooMany": too_many, "tooLarge": too_large}
        index = {"title": title, "settings": settings or {}, "leftOut": left_out, "rollouts": lines}
        _embed(file, "index", as_json(index), "application/json")
        file.write(foot)
    return Written(path, len(lines), too_many, too_large)


def _embed(file: IO[str], name: str, text: str, kind: str = "text/plain") -> None:
    file.write(f'<script type="{kind}" id="{name}">{text}</script>\n')


def _shell(title: str) -> tuple[str, str]:
    """The page before the data, and after them."""
    style = _resource("page.css")
    script = "(() => {\n'use strict';\n" + "\n".join(_resource(f"js/{name}.js") for name in _SCRIPTS) + "\n})();"
    values = {
        "title": html.escape(title),
        # Nothing runs but the page's own script, whatever a trajectory holds, and nothing is loaded.
        "policy": f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        "style": style,
        "script": script,
    }
    head, _, foot = _resource("page.html").partition("$data\n")
    return string.Template(head).substitute(values), string.Template(foot).substitute(values)


def _resource(name: str) -> str:
    return (resources.files("gymhost.rollout.view") / name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """What a Content-Security-Policy calls an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@contextlib.contextmanager
def _replacing(path: Path) -> Generator[IO[str]]:
    """A file that takes the place of `path` when it is whole, and vanishes if it never is."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        # A line's end must stay what it is: the policy names the script by its hash.
        with temporary.open("w", encoding="utf-8", errors="replace", newline="") as file:
            yield file
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
