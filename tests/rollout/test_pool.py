"""Several generators as one: where requests go, what happens when a member dies, and which versions play."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gymhost.rollout.generators import (
    DiskWeights,
    Generation,
    GeneratorError,
    GeneratorGone,
    GeneratorPool,
    Sampling,
    ScriptedGenerator,
    VllmServerGenerator,
)
from support.completions_server import CompletionsServer, choice, weights
from support.virtual_time import now, simulated

pytestmark = pytest.mark.heavy

SHORT = Sampling(max_tokens=5)


@pytest.fixture
async def changed() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
async def servers(changed: asyncio.Event) -> AsyncIterator[list[CompletionsServer]]:
    async with CompletionsServer(changed=changed) as one, CompletionsServer(changed=changed) as two:
        yield [one, two]


@pytest.fixture
async def pool(servers: list[CompletionsServer], tmp_path: Path) -> AsyncIterator[GeneratorPool]:
    sync = DiskWeights(tmp_path)
    made = GeneratorPool(
        [VllmServerGenerator(server.url, policy_version=4, sync=sync) for server in servers],
        patience=1.0,
        probe_seconds=0.5,
    )
    yield made
    await made.aclose()


async def until(changed: asyncio.Event, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            changed.clear()
            await changed.wait()


def ask(pool: GeneratorPool, count: int, prompt: Sequence[int] = (9,)) -> list["asyncio.Task[Generation]"]:
    """So many rollouts, each with its first turn in flight; the last id of a prompt tells them apart."""
    return [asyncio.create_task(pool.generate([*prompt, n], SHORT, request_id=f"{n}/1")) for n in range(count)]


async def plays_again(pool: GeneratorPool, server: CompletionsServer) -> None:
    """Samples until a server is given something."""
    before = len(server.bodies)
    async with asyncio.timeout(5):
        n = 0
        while len(server.bodies) == before:
            n += 1
            await asyncio.gather(
                *(pool.generate([9], SHORT, request_id=f"new{n}.{i}/1") for i in range(2)), return_exceptions=True
            )


async def test_a_rollout_stays_where_it_began_and_others_go_where_there_is_room(
    servers: list[CompletionsServer], pool: GeneratorPool, changed: asyncio.Event
) -> None:
    for server in servers:
        server.hold.clear()
    tasks = ask(pool, 6)
    await until(changed, lambda: sum(len(server.bodies) for server in servers) == 6)
    assert [len(server.bodies) for server in servers] == [3, 3]
    assert [(m.load, m.requests, m.healthy, m.current) for m in pool.members()] == [(3 * 7, 3, True, True)] * 2
    for server in servers:
        server.hold.set()
    generations = await asyncio.gather(*tasks)
    assert {generation.generator for generation in generations} == {server.url for server in servers}
    for turn in (2, 3):
        for n in range(6):
            await pool.generate([9, n], SHORT, request_id=f"{n}/{turn}")
    for server in servers:
        assert len({body["prompt"][1] for body in server.bodies}) == 3
    assert [(m.load, m.requests) for m in pool.members()] == [(0, 0)] * 2


async def test_only_so_many_rollouts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymhost.rollout.generators.pool._REMEMBERED_ROLLOUTS", 2)
    pool = GeneratorPool([ScriptedGenerator(lambda *_: [2], name=name) for name in "ab"])
    for n in range(9):
        await pool.generate([1], SHORT, request_id=f"{n}/1")
    assert len(pool._homes) == 2  # pyright: ignore[reportPrivateUsage]
    await pool.aclose()


async def test_load_is_counted_in_tokens(
    servers: list[CompletionsServer], pool: GeneratorPool, changed: asyncio.Event
) -> None:
    for server in servers:
        server.hold.clear()
    long = asyncio.create_task(pool.generate([9] * 50, Sampling(max_tokens=40), request_id="long/1"))
    await until(changed, lambda: len(servers[0].bodies) == 1)
    tasks = ask(pool, 8)
    await until(changed, lambda: sum(len(server.bodies) for server in servers) == 9)
    assert [len(server.bodies) for server in servers] == [1, 8]
    for server in servers:
        server.hold.set()
    await asyncio.gather(long, *tasks)


async def test_a_server_that_dies_is_left_at_once_and_its_requests_go_on_elsewhere(
    servers: list[CompletionsServer], pool: GeneratorPool, changed: asyncio.Event, caplog: pytest.LogCaptureFixture
) -> None:
    for server in servers:
        server.hold.clear()
    tasks = ask(pool, 6)
    await until(changed, lambda: all(len(server.bodies) == 3 for server in servers))
    await servers[0].stop()
    servers[1].hold.set()
    generations = await asyncio.wait_for(asyncio.gather(*tasks), 5)
    assert [generation.token_ids for generation in generations] == [[n + 1] for n in range(6)]
    assert len(servers[1].bodies) == 6
    assert f"pool leaves {servers[0].url}" in caplog.text
    assert [member.healthy for member in pool.members()] == [False, True]


async def test_a_server_that_hangs_is_left_and_used_again_when_it_is_well(
    servers: list[CompletionsServer], pool: GeneratorPool
) -> None:
    servers[0].hold.clear()
    servers[0].healthy = False
    generations = await asyncio.wait_for(asyncio.gather(*ask(pool, 4)), 5)
    assert [generation.token_ids for generation in generations] == [[n + 1] for n in range(4)]
    assert len(servers[0].bodies) > 0
    servers[0].hold.set()
    servers[0].healthy = True
    await plays_again(pool, servers[0])


async def test_when_none_answers_the_error_names_them_and_why(
    servers: list[CompletionsServer], pool: GeneratorPool
) -> None:
    for server in servers:
        await server.stop()
    for _ in range(2):
        with pytest.raises(GeneratorError, match=rf"no member of pool .*{servers[0].url} \(.* does not answer"):
            await pool.generate([1], SHORT, request_id="a/1")


async def test_a_request_waits_for_a_member_that_comes_back_in_time(
    servers: list[CompletionsServer], tmp_path: Path
) -> None:
    pool = GeneratorPool([VllmServerGenerator(servers[0].url)], patience=10, probe_seconds=0.2)
    await servers[0].stop()
    task = asyncio.create_task(pool.generate([1], SHORT, request_id="a/1"))
    await asyncio.sleep(0.1)
    await servers[0].start(servers[0].port)
    assert (await asyncio.wait_for(task, 5)).token_ids == [2]
    await pool.aclose()


@pytest.mark.parametrize("way", ["remove", "drain"])
async def test_a_request_waits_for_the_one_that_takes_the_place_of_the_last_member(way: str) -> None:
    pool = GeneratorPool([ScriptedGenerator(lambda *_: [1], name="old")], patience=5.0)
    if way == "remove":
        pool.remove("old")
    else:
        await pool.drain("old")
    [asked] = ask(pool, 1)
    await asyncio.sleep(0.05)
    assert not asked.done()
    pool.add(ScriptedGenerator(lambda *_: [2], name="new"))
    assert (await asyncio.wait_for(asked, 2)).token_ids == [2]
    await pool.aclose()


async def test_resuming_what_nobody_paused_changes_nothing(
    servers: list[CompletionsServer], pool: GeneratorPool
) -> None:
    """Members are looked after as before: one that hangs is left."""
    for _ in range(2):
        await pool.resume()
    servers[0].hold.clear()
    servers[0].healthy = False
    generations = await asyncio.wait_for(asyncio.gather(*ask(pool, 4)), 5)
    assert {generation.generator for generation in generations} == {servers[1].url}


async def test_a_failure_without_a_message_goes_by_its_type(caplog: pytest.LogCaptureFixture) -> None:
    class Silent(ScriptedGenerator):
        async def load_weights(self, weights: Any, version: int) -> None:
            raise ConnectionResetError

        async def healthy(self) -> bool:
            return False

    def gone(*_: Any) -> list[int]:
        raise GeneratorGone

    pool = GeneratorPool([Silent(gone, name="silent")], patience=0.1)
    with pytest.raises(ConnectionResetError):
        await pool.update(None, 1)
    assert "silent, a member of pool: ConnectionResetError" in caplog.text
    with pytest.raises(GeneratorError, match=r"silent \(ConnectionResetError\)"):
        await pool.generate([1], SHORT, request_id="a/1")
    await pool.aclose()
    pool = GeneratorPool([Silent(gone, name="silent")], patience=0.1)
    with pytest.raises(GeneratorError, match=r"silent \(GeneratorGone\)"):
        await pool.generate([1], SHORT, request_id="a/1")
    assert "does its work elsewhere: GeneratorGone" in caplog.text
    await pool.aclose()


async def test_a_member_of_another_version_says_so() -> None:
    class Loading(ScriptedGenerator):
        async def catch_up(self, version: int) -> bool:
            return await asyncio.Event().wait()

    pool = GeneratorPool([ScriptedGenerator([], name="old")], patience=0.1)
    pool.remove("old")
    pool.add(Loading([], 3, name="new"))
    with pytest.raises(GeneratorError, match=r"new \(its weights are of version 3, not 0\)"):
        await pool.generate([1], SHORT, request_id="a/1")
    await pool.aclose()


async def test_cancelling_a_request_ends_it_where_it_runs(
    servers: list[CompletionsServer], pool: GeneratorPool, changed: asyncio.Event
) -> None:
    servers[0].hold.clear()
    task = asyncio.create_task(pool.generate([1], SHORT, request_id="a/1"))
    await until(changed, lambda: len(servers[0].bodies) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(changed, lambda: servers[0].dropped == 1)
    assert [(m.load, m.requests) for m in pool.members()] == [(0, 0)] * 2


async def test_what_a_member_answers_wrongly_is_no_death(servers: list[CompletionsServer], pool: GeneratorPool) -> None:
    servers[0].answer = lambda _body: 500
    with pytest.raises(GeneratorError, match="answered 500") as raised:
        await pool.generate([1], SHORT, request_id="a/1")
    assert not isinstance(raised.value, GeneratorGone)
    assert all(member.healthy for member in pool.members())


class TestMembers:
    async def test_one_that_drains_is_given_nothing_and_ends_what_it_has(
        self, servers: list[CompletionsServer], pool: GeneratorPool, changed: asyncio.Event
    ) -> None:
        for server in servers:
            server.hold.clear()
        tasks = ask(pool, 4)
        await until(changed, lambda: all(len(server.bodies) == 2 for server in servers))
        drained = asyncio.create_task(pool.drain(servers[0].url))
        await asyncio.sleep(0)
        assert pool.members()[0].draining
        servers[1].hold.set()
        for n in range(4):
            await pool.generate([9, n], SHORT, request_id=f"{n}/2")
        assert not drained.done()
        servers[0].hold.set()
        await asyncio.wait_for(drained, 5)
        assert [generation.token_ids for generation in await asyncio.gather(*tasks)] == [[n + 1] for n in range(4)]
        assert [len(server.bodies) for server in servers] == [2, 6]
        await pool.remove(servers[0].url).aclose()
        assert [member.name for member in pool.members()] == [servers[1].url]

    async def test_what_does_not_end_in_time_goes_on_elsewhere(
        self, servers: list[CompletionsServer], pool: GeneratorPool, changed: asyncio.Event
    ) -> None:
        servers[0].hold.clear()
        tasks = ask(pool, 4)
        await until(changed, lambda: all(len(server.bodies) == 2 for server in servers))
        await pool.drain(servers[0].url, patience=0.05)
        generations = await asyncio.wait_for(asyncio.gather(*tasks), 5)
        assert {generation.generator for generation in generations} == {servers[1].url}

    async def test_one_that_is_removed_leaves_its_requests_to_others(
        self, servers: list[CompletionsServer], pool: GeneratorPool, changed: asyncio.Event
    ) -> None:
        servers[0].hold.clear()
        tasks = ask(pool, 4)
        await until(changed, lambda: all(len(server.bodies) == 2 for server in servers))
        removed = pool.remove(servers[0].url)
        generations = await asyncio.wait_for(asyncio.gather(*tasks), 5)
        assert {generation.generator for generation in generations} == {servers[1].url}
        await removed.aclose()
        pool.remove(servers[1].url)
        with pytest.raises(GeneratorError, match="no member of pool can be used: it has none"):
            await pool.generate([1], SHORT, request_id="a/1")

    async def test_one_that_is_added_takes_its_share(
        self, servers: list[CompletionsServer], pool: GeneratorPool, changed: asyncio.Event
    ) -> None:
        async with CompletionsServer(changed=changed) as third:
            with pytest.raises(ValueError, match="is a generator named"):
                pool.add(VllmServerGenerator(servers[0].url, policy_version=4))
            pool.add(VllmServerGenerator(third.url, policy_version=4))
            for server in (*servers, third):
                server.hold.clear()
            tasks = ask(pool, 6)
            await until(changed, lambda: len(third.bodies) == 2)
            for server in (*servers, third):
                server.hold.set()
            await asyncio.gather(*tasks)
            assert [len(server.bodies) for server in (*servers, third)] == [2, 2, 2]

    async def test_members_may_be_of_any_kind(self) -> None:
        async def patient(_prompt: Sequence[int], _request: str) -> list[int]:
            await asyncio.sleep(0.01)
            return [2]

        with pytest.raises(ValueError, match="named scripted"):
            GeneratorPool([ScriptedGenerator([]), ScriptedGenerator([])])
        pool = GeneratorPool([ScriptedGenerator(patient, name="one"), ScriptedGenerator(patient, name="two")])
        generations = await asyncio.gather(*(pool.generate([1], SHORT, request_id=f"{n}/1") for n in range(4)))
        assert sorted(generation.generator for generation in generations) == ["one", "one", "two", "two"]
        await pool.aclose()
        with pytest.raises(GeneratorError, match="pool is closed"):
            await pool.generate([1], SHORT, request_id="a/1")


class TestVersions:
    async def test_all_members_change_as_one(
        self, servers: list[CompletionsServer], pool: GeneratorPool, changed: asyncio.Event, tmp_path: Path
    ) -> None:
        for server in servers:
            server.hold.clear()
            server.answer = lambda _body, server=server: choice([server.version])
        old = ask(pool, 4)
        await until(changed, lambda: all(len(server.bodies) == 2 for server in servers))
        folder = await DiskWeights(tmp_path).prepare(weights(5), 5)
        update = asyncio.create_task(pool.update(folder, 5))
        await asyncio.sleep(0)
        new = ask(pool, 4, prompt=(8,))
        servers[0].hold.set()
        await asyncio.sleep(0.05)
        assert servers[0].version == 0, "one member loads while the other still samples"
        servers[1].hold.set()
        await asyncio.wait_for(update, 5)
        assert {(g.policy_version, g.token_ids[0]) for g in await asyncio.gather(*old)} == {(4, 0)}
        assert {(g.policy_version, g.token_ids[0]) for g in await asyncio.gather(*new)} == {(5, 5)}
        assert [(m.policy_version, m.current) for m in pool.members()] == [(5, True)] * 2

    async def test_a_server_that_comes_back_with_old_weights_gets_the_latest_first(
        self, servers: list[CompletionsServer], pool: GeneratorPool
    ) -> None:
        await pool.update(weights(5), 5)
        port = servers[0].port
        await servers[0].stop()
        await asyncio.gather(*ask(pool, 2))
        await pool.update(weights(6), 6)
        assert [(m.policy_version, m.healthy) for m in pool.members()] == [(5, False), (6, True)]
        await servers[0].start(port)
        for server in servers:
            server.answer = lambda _body, server=server: choice([server.version])
        seen: list[int] = []
        before = len(servers[0].bodies)
        async with asyncio.timeout(5):
            while len(servers[0].bodies) == before:
                done = await asyncio.gather(
                    *(pool.generate([9], SHORT, request_id=f"new{len(seen) + i}/1") for i in range(2))
                )
                seen += [generation.token_ids[0] for generation in done]
        assert set(seen) == {6}
        assert [(m.policy_version, m.healthy) for m in pool.members()] == [(6, True)] * 2

    async def test_one_that_can_not_be_given_the_latest_waits_for_the_next_update(
        self, servers: list[CompletionsServer], caplog: pytest.LogCaptureFixture, tmp_path: Path
    ) -> None:
        members = [
            VllmServerGenerator(server.url, sync=DiskWeights(tmp_path / f"{n}")) for n, server in enumerate(servers)
        ]
        pool = GeneratorPool(members, probe_seconds=0.2)
        pool.policy_version = 5  # somebody else has loaded them
        port = servers[0].port
        await servers[0].stop()
        await asyncio.gather(*ask(pool, 2))
        await servers[0].start(port)
        before = len(servers[0].bodies)
        async with asyncio.timeout(5):
            while "waits for the next update" not in caplog.text:
                await asyncio.gather(*ask(pool, 2))
        assert len(servers[0].bodies) == before
        assert [(m.healthy, m.current) for m in pool.members()] == [(True, False), (True, True)]
        await pool.update(weights(6), 6)
        assert [(m.policy_version, m.current) for m in pool.members()] == [(6, True)] * 2
        await plays_again(pool, servers[0])
        await pool.aclose()

    async def test_a_member_that_fails_to_load_is_out_until_it_has(
        self, servers: list[CompletionsServer], pool: GeneratorPool
    ) -> None:
        servers[0].refuses_weights = True
        await pool.update(weights(5), 5)
        assert [member.current for member in pool.members()] == [False, True]
        before = len(servers[0].bodies)
        await asyncio.gather(*ask(pool, 4))
        assert len(servers[0].bodies) == before
        servers[0].refuses_weights = False
        await plays_again(pool, servers[0])
        assert [(m.policy_version, m.current) for m in pool.members()] == [(5, True)] * 2

    async def test_when_no_member_loads_the_update_fails_and_none_samples(
        self, servers: list[CompletionsServer], pool: GeneratorPool
    ) -> None:
        for server in servers:
            server.refuses_weights = True
        with pytest.raises(GeneratorError, match="answered /collective_rpc with 500"):
            await pool.update(weights(5), 5)
        assert pool.policy_version == 4
        with pytest.raises(GeneratorError, match="no member of pool can be used"):
            await pool.generate([1], SHORT, request_id="a/1")

    async def test_an_update_that_is_cancelled_half_way_leaves_no_mixture(
        self, servers: list[CompletionsServer], pool: GeneratorPool, changed: asyncio.Event
    ) -> None:
        for server in servers:
            server.answer = lambda _body, server=server: choice([server.version])
        servers[1].loads.clear()
        update = asyncio.create_task(pool.update(weights(5), 5))
        await until(changed, lambda: servers[0].version == 5 and "/collective_rpc" in servers[1].controls)
        for _ in range(1000):
            if pool.members()[0].policy_version == 5:
                break
            await asyncio.sleep(0.005)
        update.cancel()
        with pytest.raises(asyncio.CancelledError):
            await update
        assert pool.policy_version == 5
        assert [member.current for member in pool.members()] == [True, False]
        servers[1].loads.set()
        await plays_again(pool, servers[1])
        generations = await asyncio.gather(*ask(pool, 6))
        assert {(item.policy_version, item.token_ids[0]) for item in generations} == {(5, 5)}

    async def test_members_whose_weights_can_not_change_are_named(self, pool: GeneratorPool) -> None:
        class Fixed:
            name = "fixed"
            policy_version = 4

            async def generate(self, *_: Any, **__: Any) -> Generation:
                return Generation([1], [0.0])

            async def aclose(self) -> None: ...

        pool.add(Fixed())
        with pytest.raises(GeneratorError, match="these members of pool can't be paused: fixed"):
            await pool.update(weights(5), 5)
        assert (await pool.generate([1], SHORT, request_id="a/1")).policy_version == 4

    async def test_weights_that_all_refuse_change_nothing(
        self, servers: list[CompletionsServer], pool: GeneratorPool
    ) -> None:
        with pytest.raises(GeneratorError, match="weights are a model, a state dict or a folder"):
            await pool.update([("a", 1)], 5)
        generation = await pool.generate([1], SHORT, request_id="a/1")
        assert (generation.policy_version, generation.token_ids) == (4, [2])

    async def test_a_member_that_dies_during_an_update_does_not_hold_it_up(
        self, servers: list[CompletionsServer], pool: GeneratorPool, changed: asyncio.Event
    ) -> None:
        for server in servers:
            server.hold.clear()
        tasks = ask(pool, 4)
        await until(changed, lambda: all(len(server.bodies) == 2 for server in servers))
        servers[0].healthy = False
        update = asyncio.create_task(pool.update(weights(5), 5))
        servers[1].hold.set()
        await asyncio.wait_for(update, 5)
        generations = await asyncio.wait_for(asyncio.gather(*tasks), 5)
        assert sorted(generation.policy_version for generation in generations) == [4, 4, 5, 5]
        assert not any(generation.mixed_versions for generation in generations)
        servers[0].hold.set()

    async def test_scripted_members_take_part(self) -> None:
        pool = GeneratorPool([ScriptedGenerator(lambda *_: [2], name=name) for name in "ab"], probe_seconds=0.2)
        await pool.update(None, 3, in_flight="cut")
        pool.add(ScriptedGenerator(lambda *_: [2], name="c"))  # of version 0
        async with asyncio.timeout(5):
            while not all(member.current for member in pool.members()):
                generation = await pool.generate([1], SHORT, request_id="a/1")
                assert generation.policy_version == 3
        assert {member.policy_version for member in pool.members()} == {3}
        await pool.aclose()


def test_a_member_that_samples_is_not_left_though_nothing_is_heard_of_its_health() -> None:
    class Deaf(ScriptedGenerator):
        async def healthy(self) -> bool:
            return await asyncio.Event().wait()

    async def sample(_prompt_ids: Sequence[int], request_id: str) -> list[int]:
        await asyncio.sleep(1.0 if request_id.startswith("short") else 30.0)
        return [7]

    async def main() -> None:
        pool = GeneratorPool([Deaf(sample, name="deaf")], patience=0.0, probe_seconds=2.0)
        long = asyncio.create_task(pool.generate([1], SHORT, request_id="long/1"))
        for number in range(40):
            await pool.generate([1], SHORT, request_id=f"short/{number}")
        assert (await long).token_ids == [7]
        # Now nothing else is heard of it either.
        begun = now()
        with pytest.raises(GeneratorError, match=r"deaf .it missed 2 health checks"):
            await pool.generate([1], SHORT, request_id="long/2")
        assert now() - begun < 15
        await pool.aclose()

    simulated(main())
