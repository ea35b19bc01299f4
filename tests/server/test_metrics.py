"""What a server counts is what its clients have counted, whatever kinds of sessions they have and however these end."""

import asyncio
import collections
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from prometheus_client.parser import text_string_to_metric_families

from gymhost.client import EnvironmentFault, RemoteServer, SessionError, Unimplemented, connect, make_vec
from gymhost.client.operations import Operations
from gymhost.v1 import operations_pb2 as pb
from support.server import PATIENCE, ServerProcess

# What an environment's overview has that clients can count too.
COUNTED = (
    "created", "closed", "lost", "steps", "resets", "terminated", "truncated", "rewarded", "rewards", "rewards_squared",
)  # fmt: skip


class Counts(collections.defaultdict[str, float]):
    """What one environment's clients have counted."""

    def __init__(self) -> None:
        super().__init__(float)

    def add(self, **counts: float) -> None:
        """Counts something."""
        for name, number in counts.items():
            self[name] += number

    def end(self, reward: float, terminated: bool) -> None:
        """An episode ended."""
        self.add(rewarded=1, rewards=reward, rewards_squared=reward * reward)
        self["terminated" if terminated else "truncated"] += 1


@pytest.fixture(scope="module")
def watched() -> Iterator[ServerProcess]:
    with ServerProcess(workers=2) as server:
        yield server


async def overviews(operations: Operations) -> dict[str, pb.EnvironmentOverview]:
    return {each.environment_id: each for each in (await operations.overview()).environments}


def told(environment: pb.EnvironmentOverview) -> dict[str, float]:
    return {name: getattr(environment, name) for name in COUNTED if getattr(environment, name)}


async def play(server: RemoteServer, id: str, action: Any, steps: int, counts: Counts, **kwargs: Any) -> None:
    """Plays one session, and counts what it does."""
    session = await server.session(id, **kwargs).open()
    counts["created"] += 1
    over, paid = True, 0.0
    for _ in range(steps):
        if over:
            await session.reset(seed=3)
            counts["resets"] += 1
            over, paid = False, 0.0
        _, reward, terminated, truncated, _ = await session.step(action)
        counts["steps"] += 1
        paid += reward
        if over := terminated or truncated:
            counts.end(paid, terminated)
    await session.close()
    counts["closed"] += 1


def play_copies(address: str, id: str, steps: int, counts: Counts, mode: AutoresetMode, **how: Any) -> None:
    """Plays a vector session of 5 copies, and counts what they do."""
    copies = 5
    env = make_vec(id, copies, server=address, **how)
    assert env.metadata["autoreset_mode"] == mode
    counts["created"] += copies
    paid, over = np.zeros(copies), np.zeros(copies, np.bool_)
    env.reset(seed=3)
    counts["resets"] += copies
    for _ in range(steps):
        if mode is AutoresetMode.DISABLED and over.any():
            env.reset(options={"reset_mask": over})
            counts["resets"] += int(over.sum())
            paid[over] = 0.0
        _, rewards, terminations, truncations, _ = env.step(env.action_space.sample())
        counts["steps"] += copies
        if mode is AutoresetMode.NEXT_STEP:
            counts["steps"] -= int(over.sum())
            counts["resets"] += int(over.sum())
            paid[over] = 0.0
        paid += rewards
        over = terminations | truncations
        for index in np.flatnonzero(over):
            counts.end(float(paid[index]), bool(terminations[index]))
        if mode is AutoresetMode.SAME_STEP:
            counts["resets"] += int(over.sum())
            paid[over] = 0.0
    env.close()
    counts["closed"] += copies


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "stream"])
async def test_figures_are_those_of_the_clients(direct: bool) -> None:
    counts: dict[str, Counts] = collections.defaultdict(Counts)
    with ServerProcess(workers=2) as server:
        async with Operations(server.address) as operations:
            async with connect(server.address, direct=direct) as remote:
                played = [
                    ("test/Terminates-v0", 1, 31),
                    ("test/Truncates-v0", 1, 17),
                    ("test/Counter-v0", 1, 40),
                    ("test/Async-v0", 0.0, 9),
                ]
                await asyncio.gather(
                    *(play(remote, id, action, n, counts[id]) for id, action, n in played for _ in range(4))
                )
                failed = await fail(remote, counts["test/Raises-v0"])
                await talk(remote, counts["test/Parrot-v0"])

            def copies() -> None:
                own = counts["test/TerminatesAndTruncates-v0"]
                for mode in AutoresetMode:
                    how = {"autoreset_mode": mode, "direct": direct}
                    play_copies(server.address, "test/TerminatesAndTruncates-v0", 10, own, mode, **how)
                native = {"vectorization_mode": "vector_entry_point", "direct": direct}
                play_copies(server.address, "CartPole-v1", 90, counts["CartPole-v1"], AutoresetMode.NEXT_STEP, **native)

            await asyncio.to_thread(copies)
            overview = await overviews(operations)
            assert {id: told(each) for id, each in overview.items()} == {
                id: {name: value for name, value in own.items() if value} for id, own in counts.items()
            }
            assert counts["CartPole-v1"]["terminated"] > 5
            assert {id: dict(each.failures) for id, each in overview.items() if each.failures} == {
                "test/Raises-v0": {"ENVIRONMENT_FAULT": failed}
            }
            for id, _, n in played:
                stages = overview[id].stages
                assert (stages["step"].count, stages["queue"].count) == (4 * n, 4)
                assert stages["make"].count == stages["close"].count == 4
                assert 0.0 < stages["step"].p50 <= stages["step"].p99
                assert overview[id].sent_bytes > overview[id].received_bytes > 4 * n
            assert_same(await operations.metrics(), overview)


async def fail(remote: RemoteServer, counts: Counts) -> int:
    """Has commands fail: each is a step or a reset all the same. Returns how many did."""
    async with remote.session("test/Raises-v0") as session:
        counts.add(created=1, closed=1, resets=2, steps=4)
        await session.reset()
        for action in ("raise", "go", "raise", "go"):
            with contextlib.suppress(EnvironmentFault):
                await session.step(action)
        with pytest.raises(EnvironmentFault):
            await session.reset(options={"raise": True})
        # What a client asks of attributes is no failure of the environment's.
        with pytest.raises(Exception, match="attribute"):
            await session.get_attr("nothing_like_it")
    return 3


async def talk(remote: RemoteServer, counts: Counts) -> None:
    """Plays an episode by tools, and one whose reward comes with its evaluation; a third is broken off."""
    async with remote.session("test/Parrot-v0") as session:
        counts.add(created=1, closed=1, resets=3, steps=7)
        await session.reset(options={"task": 1})
        for _ in range(3):
            await session.call_tool("echo", {"text": "hello"})
        counts.end(1.0, terminated=True)
        await session.reset(options={"task": 1, "evaluate_apart": True})
        for _ in range(2):
            await session.call_tool("echo", {"text": "hello"})
        *_, info = await session.call_tool("echo", {"text": "hello"})
        assert info["evaluation_due"]
        await session.evaluate()
        counts.end(1.0, terminated=True)
        await session.reset(options={"task": 1})
        await session.call_tool("echo", {"text": "hello"})
        _, reward, terminated, truncated, _ = await session.evaluate(limit="patience")
        assert terminated or truncated
        counts.end(float(reward), terminated)


def assert_same(text: str, overview: dict[str, pb.EnvironmentOverview]) -> None:
    """The metrics say the same as the overview, by names and types that Prometheus takes."""
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert all(family.documentation for family in families.values())

    def values(name: str, *labels: str) -> dict[tuple[str, ...], float]:
        family = next(each for each in families.values() if any(sample.name == name for sample in each.samples))
        return {
            tuple(sample.labels[label] for label in ("environment", *labels)): sample.value
            for sample in family.samples
            if sample.name == name
        }

    all_of = list(overview.items())
    assert values("gymhost_steps_total") == {(id,): each.steps for id, each in all_of}
    assert values("gymhost_resets_total") == {(id,): each.resets for id, each in all_of}
    assert values("gymhost_sessions_created_total") == {(id,): each.created for id, each in all_of}
    assert values("gymhost_episode_reward_sum") == {(id,): each.rewards for id, each in all_of}
    assert values("gymhost_episodes_total", "end") == {
        (id, end): getattr(each, end) for id, each in all_of for end in ("terminated", "truncated")
    }
    assert values("gymhost_failures_total", "code") == {
        (id, code): number for id, each in all_of for code, number in each.failures.items()
    }
    stages = {(id, stage): spell for id, each in all_of for stage, spell in each.stages.items()}
    assert values("gymhost_stage_seconds_sum", "stage") == {key: spell.sum for key, spell in stages.items()}
    buckets = values("gymhost_stage_seconds_bucket", "stage", "le")
    for (id, stage), spell in stages.items():
        own = [value for (name, of, _), value in buckets.items() if (name, of) == (id, stage)]
        assert own == sorted(own)
        assert own[-1] == spell.count
    assert families["process_cpu_seconds"].samples[0].value > 0.0


async def test_what_a_killed_worker_has_counted_is_not_lost(watched: ServerProcess) -> None:
    id = "test/Slow-v0"
    async with Operations(watched.address) as operations, connect(watched.address) as remote:
        before = await operations.overview()
        sessions = [await remote.session(id).open() for _ in range(4)]
        for number, session in enumerate(sessions):
            await session.reset()
            for _ in range(number):
                await session.step(0.0)
        # One is in the middle of a step, which is never counted.
        running = asyncio.ensure_future(sessions[0].step(50.0))
        deadline = time.monotonic() + PATIENCE
        while not any(each.running for each in (await operations.overview()).environments):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        for pid in watched.workers:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(SessionError):
            await running
        deadline = time.monotonic() + PATIENCE
        while (overview := await operations.overview()).worker_deaths < before.worker_deaths + 2:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        [own] = [each for each in overview.environments if each.environment_id == id]
        assert told(own) == {"created": 4, "lost": 4, "resets": 4, "steps": 6}
        assert own.stages["step"].count == 6


async def test_a_worker_that_ends_as_asked_leaves_what_it_counted(watched: ServerProcess) -> None:
    async with Operations(watched.address) as operations, connect(watched.address) as remote:
        counts = Counts()
        for _ in range(2):
            await play(remote, "test/Process-v0", 1, 5, counts)
        assert told((await overviews(operations))["test/Process-v0"]) == counts


async def test_nothing_is_counted_where_nobody_wants_it(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server(workers=1, metrics=False)
    async with Operations(server.address) as operations, connect(server.address) as remote:
        await play(remote, "test/Terminates-v0", 1, 5, Counts())
        assert all(not told(each) for each in (await operations.overview()).environments)
        with pytest.raises(Unimplemented, match="--no-metrics"):
            await operations.metrics()
