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

_HEAVY_MODULE = re.compile(r"^pytestmark = pytest\.mark\.heavy$", re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--core", action="store_true", help="leave out tests that need torch, TRL or vLLM")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--core"):
        config.option.markexpr = "not heavy"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Tell that a heavy module is not even to be imported, since what it imports may not be installed."""
    if not config.getoption("--core") or collection_path.suffix != ".py":
        return None
    return _HEAVY_MODULE.search(collection_path.read_text()) is not None or None
