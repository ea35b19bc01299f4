"""Environments that say that they are replayable: who is told, and whether it is true."""

from typing import Any

import gymnasium
import pytest

from gymhost.client import RemoteEnv, connect, make
from gymhost.envs import checks, register, registration
from gymhost.envs.check import Finding, check
from support import replayable_environments

MODULES = [replayable_environments.__name__]


def remote(id: str, kwargs: dict[str, Any]) -> RemoteEnv:
    return make(id, modules=MODULES, **kwargs)


def found(id: str) -> Finding:
    """What is found out by replays alone."""
    (finding,) = checks.repeats_elsewhere(
        lambda: registration.make(id), lambda: remote(id, {}), registration.hosted(id)
    )
    return finding


def test_check_proves_it() -> None:
    report = check("test/Walk-v0", remote_factory=remote)
    title = "Replayable: another process gives the same replies after a seeded reset, byte for byte"
    assert title in [finding.title for finding in report.findings]
    assert report.ok


def test_check_tells_who_could_say_so() -> None:
    finding = found("test/WalkUnsaid-v0")
    assert (finding.level, finding.title) == ("ok", "It could be replayable")
    assert "replayable=True" in finding.detail


def test_check_finds_the_first_reply_that_differs() -> None:
    finding = found("test/Forgets-v0")
    title = "It is not replayable: in another process episode 1 after a seeded reset differs"
    assert (finding.level, finding.title) == ("error", title)
    where = "The first reply that differs is that of step 3. step 3's info['episodes']: 2 and 1"
    assert finding.detail.startswith(where)


def test_what_is_nondeterministic_can_not_say_so() -> None:
    with pytest.raises(ValueError, match="nondeterministic can't be replayable"):
        register("test/Never-v0", replayable_environments.Walk, replayable=True, nondeterministic=True)
    assert "test/Never-v0" not in gymnasium.registry


async def test_the_shelf_says_so_where_it_is() -> None:
    async with connect() as server:
        said = {one.id.partition("/")[2]: one.replayable for one in await server.environments("gymhost/")}
        assert {name for name, replayable in said.items() if not replayable} == {
            "MiniSweAgentRepoRepair-v0",
            "PythonCode-v0",
            "RepoRepair-v0",
            "Sql-v0",
            "Terminal-v0",
        }
        assert (await server.describe("gymhost/Echo-v0")).replayable
        async with server.session("gymhost/Echo-v0") as session:
            assert session.replayable
        async with server.session("CartPole-v1") as session:
            assert not session.replayable
