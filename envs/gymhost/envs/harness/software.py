"""Packages that are installed here, as a sandbox is given them: read-only, without the rest of what is installed."""

import csv
import functools
import importlib.metadata
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gymhost.envs.sandbox import Mount

__all__ = ["PACKAGES", "Software", "installed"]

# Where packages are in a sandbox.
PACKAGES = "/opt/harness/packages"

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


@dataclass(frozen=True, slots=True)
class Software:
    """What a sandbox is to have, so that a Python in it finds packages.

    Attributes:
        python: The Python that they are for.
        mounts: What it is given of the host.
        scratch: What of that is hidden.
    """

    python: str
    mounts: tuple[Mount, ...]
    scratch: tuple[str, ...]


@functools.cache
def installed(*names: str) -> Software:
    """Finds packages that are installed for the Python that runs this, and all that they need.

    Nothing else that is installed is seen in the sandbox: it may hold the answers. The Python itself is seen, unless it
    is a part of the system, which sandboxes have already. What is installed in place (`pip install -e`) is left out.

    Args:
        names: The packages, such as `mini-swe-agent`; with extras, `name[one,another]`.

    Raises:
        ModuleNotFoundError: One is not installed.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(sys.base_prefix).resolve()
    mounts = [Mount(str(source), f"{PACKAGES}/{name}") for name, source in sorted(_entries(names).items())]
    scratch: tuple[str, ...] = ()
    if not base.is_relative_to("/usr"):
        mounts.append(Mount(str(base)))
        paths = sysconfig.get_paths(vars={"base": str(base), "platbase": str(base)})
        scratch = tuple(sorted({paths["purelib"], paths["platlib"]}))
    return Software(f"{base}/bin/{version}", tuple(mounts), scratch)


def _entries(names: tuple[str, ...]) -> dict[str, Path]:
    """Returns the files and folders of packages that lie where modules are looked for."""
    found: dict[str, Path] = {}
    for distribution in _closure(names):
        # A list of the files is made of this, an object for each, of which there may be ten thousands.
        record = csv.reader((distribution.read_text("RECORD") or "").splitlines())
        for top in {line[0].partition("/")[0] for line in record if line}:
            if top not in ("", "..", "__pycache__", "bin") and not top.endswith(".pth") and top not in found:
                found[top] = Path(str(distribution.locate_file(top))).resolve()
    return {name: path for name, path in found.items() if path.exists()}


def _closure(names: tuple[str, ...]) -> Iterator[importlib.metadata.Distribution]:
    """Finds packages with those that they require. What is required but not there is for another machine."""
    for name in names:
        if not _found(name):
            raise ModuleNotFoundError(f"{name} is not installed", name=name)
    seen: set[tuple[str, str]] = set()
    left = list(names)
    while left:
        wanted = _REQUIREMENT.match(left.pop())
        assert wanted is not None
        name = wanted[1].lower().replace("_", "-")
        for extra in ("", *(part.strip() for part in (wanted[2] or "").split(",") if part.strip())):
            if (name, extra) in seen or (distribution := _found(name)) is None:
                continue
            seen.add((name, extra))
            if not extra:
                yield distribution
            for required in distribution.requires or ():
                needed, _, marker = required.partition(";")
                extras = _EXTRA.findall(marker)
                if extra in (extras or [""]):
                    left.append(needed)


def _found(name: str) -> importlib.metadata.Distribution | None:
    matched = _REQUIREMENT.match(name)
    try:
        return importlib.metadata.distribution(matched[1] if matched else name)
    except importlib.metadata.PackageNotFoundError:
        return None
