"""Where environments come from: distributions, with their versions and licences."""

import functools
import importlib.metadata
from dataclasses import dataclass

__all__ = ["Package", "installed", "of_module"]


@dataclass(frozen=True, slots=True)
class Package:
    """What environments come from, such as a distribution that is installed.

    Attributes:
        name: Its name.
        version: Its version; empty where that is not known.
        licence: Its licence, as it says itself; empty where that is not known.
        url: Where more is told of it; empty where that is not known.
    """

    name: str
    version: str = ""
    licence: str = ""
    url: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version}".rstrip()


@functools.cache
def installed(name: str) -> Package:
    """Returns a distribution that is installed.

    Raises:
        importlib.metadata.PackageNotFoundError: It is not installed.
    """
    told = importlib.metadata.metadata(name)

    def all_of(field: str) -> list[str]:
        return told.get_all(field) or []

    licence = next(iter(all_of("License-Expression") + all_of("License")), "")
    if not licence or "\n" in licence:
        # Older packages tell its whole text, or classify it alone.
        classes = [name.split(" :: ") for name in all_of("Classifier")]
        licence = ", ".join(parts[-1] for parts in classes if parts[0] == "License")
    links = [link.partition(", ") for link in all_of("Project-URL")]
    homes = [url for label, _, url in links if label.lower() in ("homepage", "repository", "source")]
    return Package(told["Name"], told["Version"], licence, next(iter(all_of("Home-page") + homes), ""))


@functools.cache
def of_module(module: str) -> Package | None:
    """Returns the distribution that a module belongs to, or None where there is none.

    Args:
        module: The name of a module, or of one in a package.
    """
    package = module.partition(".")[0]
    if not package:
        return None
    try:
        # Mostly it has the same name.
        return installed(package)
    except importlib.metadata.PackageNotFoundError:
        names = _distributions_by_package().get(package, ())
        return installed(names[0]) if names else None


@functools.cache
def _distributions_by_package() -> dict[str, list[str]]:
    return dict(importlib.metadata.packages_distributions())
