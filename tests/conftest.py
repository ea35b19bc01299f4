"""What the whole suite shares: Hypothesis' settings, and the option that leaves out what needs torch, TRL or vLLM."""

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--core", action="store_true", help="leave out tests that need torch, TRL or vLLM")
    parser.addoption("--no-browser", action="store_true", help="leave out tests in a browser")
    parser.addoption("--no-docker", action="store_true", help="leave out tests that start Docker's engine")


def pytest_configure(config: pytest.Config) -> None:
    left_out = {"--core": "not heavy", "--no-browser": "not browser", "--no-docker": "not docker"}
    asked = [config.option.markexpr, *(mark for option, mark in left_out.items() if config.getoption(option))]
    config.option.markexpr = " and ".join(f"({mark})" for mark in asked if mark)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Tell that a heavy module is not even to be imported, since what it imports may not be installed."""
    if not config.getoption("--core") or collection_path.suffix != ".py":
        return None
    return _HEAVY_MODULE.search(collection_path.read_text()) is not None or None
