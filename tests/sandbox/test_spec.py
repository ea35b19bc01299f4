"""What a sandbox is to be like: what can't be meant is refused when it is said, by the name of the setting."""

from typing import Any

import pytest

from gymhost.envs.sandbox import Limits, Mount, SandboxSpec
from gymhost.wire.errors import InvalidArgument


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mounts": [Mount("/usr")]}, "mounts must be a tuple, each item of it a Mount, not "),
        ({"mounts": ("/usr",)}, "mounts must be a tuple, each item of it a Mount, not "),
        ({"scratch": "/data"}, "scratch must be a tuple, each item of it a str, not '/data'"),
        ({"scratch": ("data",)}, "a scratch folder must be an absolute path"),
        ({"pass_env": "HOME"}, "pass_env must be a tuple, each item of it a str, not 'HOME'"),
        ({"pass_env": ("A=B",)}, "'A=B' can't be the name of an environment variable"),
        ({"env": {"A": 1}}, "the environment variable A must be a text without NUL, not 1"),
        ({"env": {"A": "\0"}}, "the environment variable A must be a text without NUL, not "),
        ({"limits": {"memory": 2**30}}, "limits must be a Limits, not "),
        ({"workdir": "work"}, "workdir must be an absolute path"),
        ({"network": "bridge"}, "network must be 'none' or 'loopback', not 'bridge'"),
        ({"user": 0}, "user must be from 1 to 65533, not 0"),
    ],
)
def test_what_no_sandbox_can_be_like_is_refused(settings: dict[str, Any], message: str):
    with pytest.raises(InvalidArgument, match=message):
        SandboxSpec(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": "1g"}, "limits.memory must be a whole number, at least 16777216, not '1g'"),
        ({"memory": 1}, "limits.memory must be a whole number, at least 16777216, not 1"),
        ({"disk": 1.5 * 2**30}, "limits.disk must be a whole number, at least 1048576, not "),
        ({"processes": None}, "limits.processes must be a whole number, at least 8, not None"),
        ({"cpus": "2"}, "limits.cpus must be at least 0.01, or None for no limit, not '2'"),
        ({"cpus": 0}, "limits.cpus must be at least 0.01, or None for no limit, not 0"),
    ],
)
def test_what_no_limit_can_be_is_refused(settings: dict[str, Any], message: str):
    with pytest.raises(InvalidArgument, match=message):
        Limits(**settings)
