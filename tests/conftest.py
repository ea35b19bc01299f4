"""What the whole suite shares: Hypothesis' settings, and the options that choose by what is installed."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says nothing on a machine that is shared. CI tries the same examples every time.
settings.register_profile(
    "gymhost",
    deadline=None,
    derandomize="CI" in os.environ,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("gymhost")

_HEAVY_MODULE = re.compile(r"^pytestmark = \[?pytest\.mark\.heavy\b", re.MULTILINE)
_ADAPTER_MODULE = re.compile(r'^pytestmark = \[?pytest\.mark\.adapter\("([\w-]+)"\)', re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--adapter",
        action="append",
        default=[],
        metavar="KIND",
        help="run the tests of an adapter whose package is not in the usual virtual environment, and no others; may be "
        "given several times",
    )
    parser.addoption("--core", action="store_true", help="leave out tests that need torch, TRL or vLLM")
    parser.addoption("--no-browser", action="store_true", help="leave out tests in a browser")
    parser.addoption("--no-docker", action="store_true", help="leave out tests that start Docker's engine")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "adapter(kind): needs a package that pins others; `pytest --adapter KIND` runs it"
    )
    left_out = {"--core": "not heavy", "--no-browser": "not browser", "--no-docker": "not docker"}
    asked = [config.option.markexpr, *(mark for option, mark in left_out.items() if config.getoption(option))]
    config.option.markexpr = " and ".join(f"({mark})" for mark in asked if mark)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Tell that a module is not even to be imported, since what it imports may not be installed."""
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text()
    adapter = _ADAPTER_MODULE.search(text)
    wanted: list[str] = config.option.adapter
    if (wanted or adapter is not None) and (adapter is None or adapter[1] not in wanted):
        return True
    return (config.getoption("--core") and _HEAVY_MODULE.search(text) is not None) or None
