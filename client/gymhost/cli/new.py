"""`gymhost new`."""

import keyword
import re
import string
import sys
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import click

from gymhost.cli.app import Failure
from gymhost.cli.options import GroupedCommand, option

__all__ = ["command"]


@click.command("new", cls=GroupedCommand)
@click.argument("name")
@option("--id", "id", metavar="ID", help="The environment's id, if it is not to be made from NAME.")
@option(
    "--folder",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Where to; without it, NAME in the current folder.",
)
def command(name: str, id: str | None, folder: Path | None) -> None:
    """Write a package with an environment of your own, to be changed: tools, tasks, reward, a scripted player, tests.

    NAME is the package's, such as acme-maze. Its tests pass as they are.

    \b
    Examples:
      gymhost new acme-maze
      cd acme-maze
      pip install -e ".[test]"
      pytest
      gymhost check acme/Maze-v0
    """  # noqa: D301 - click wants the character, not an escape
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*([-_][A-Za-z0-9]+)*", name):
        raise click.BadParameter(f"a package is named with letters, digits and '-', as acme-maze, not {name!r}")
    words = re.split(r"[-_]", name)
    package = "_".join(words).lower()
    if keyword.iskeyword(package) or package == "gymhost" or package in sys.stdlib_module_names:
        raise click.BadParameter(f"{package!r} can't be the name of a package of yours: it is Python's or gymhost's")
    class_name = "".join(word[:1].upper() + word[1:] for word in words[1:] or words)
    id = id or (f"{words[0].lower()}/{class_name}-v0" if len(words) > 1 else f"{class_name}-v0")
    if not re.fullmatch(r"(?:[\w:-]+/)?[\w:.-]+-v\d+", id):
        raise click.BadParameter(f"an id is written like acme/Maze-v0, not {id!r}", param_hint="--id")
    target = folder or Path(name)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Failure(f"{target} is there already, and not empty: name another folder (--folder)")
    names = {"name": name.lower().replace("_", "-"), "package": package, "class_name": class_name, "id": id}
    written = _write(resources.files("gymhost.cli") / "template", target, names)
    for path in written:
        click.echo(f"  {path}")
    click.echo(
        f'\n{id} is in {target}. Next:\n\n  cd {target}\n  pip install -e ".[test]"\n  pytest\n  gymhost check {id}\n'
        f"  gymhost play {id}\n  gymhost serve"
    )


def _write(template: Traversable, target: Path, names: dict[str, str]) -> list[Path]:
    """Writes a folder of templates without their `.txt`; what is in `src` goes to a folder of the package's name."""
    written: list[Path] = []
    for item in sorted(template.iterdir(), key=lambda item: item.name):
        if item.is_dir():
            inner = Path("src", names["package"]) if item.name == "src" else Path(item.name)
            written += _write(item, target / inner, names)
            continue
        path = target / item.name.removesuffix(".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(string.Template(item.read_text(encoding="utf-8")).substitute(names), encoding="utf-8")
        written.append(path)
    return written
