"""Tasks that are listed and sampled through the API: what is public of them, and nothing else."""

import json

import pytest

from gymhost.client import EnvironmentFault, InvalidArgument, UnknownEnvironment, connect
from support.command import gymhost
from support.server import ServerProcess


async def test_tasks_are_listed_with_their_public_fields(server: ServerProcess) -> None:
    with connect(server.address) as remote:
        listed = await remote.tasks("test/Tasks-v0")
        assert (listed.split, listed.count) == ("train", 3)
        assert listed.tasks == {0: {"question": "q0"}, 1: {"question": "q1"}, 2: {"question": "q2"}}
        some = await remote.tasks("test/Tasks-v0", split="endless", start=5, limit=2)
        assert (some.count, some.tasks) == (None, {5: {"question": "e5"}, 6: {"question": "e6"}})
        assert (await remote.tasks("test/Tasks-v0", start=2, limit=9)).tasks.keys() == {2}
        assert (await remote.tasks("test/Tasks-v0", start=9)).tasks == {}


async def test_tasks_are_sampled_by_a_seed(server: ServerProcess) -> None:
    with connect(server.address) as remote:
        first, again, other = [
            list((await remote.tasks("test/Tasks-v0", split="endless", limit=50, sample=seed)).tasks)
            for seed in (1, 1, 2)
        ]
        assert first == again != other
        assert len(set(first)) == 50
        assert sorted((await remote.tasks("test/Tasks-v0", sample=3)).tasks) == [0, 1, 2]


async def test_no_answer_reaches_the_client(server: ServerProcess) -> None:
    with connect(server.address) as remote:
        for split in ("train", "endless"):
            assert "secret" not in repr(await remote.tasks("test/Tasks-v0", split=split))


async def test_what_can_not_be_listed_is_refused(server: ServerProcess) -> None:
    with connect(server.address) as remote:
        with pytest.raises(InvalidArgument, match="the splits are train, endless, odd"):
            await remote.tasks("test/Tasks-v0", split="dev")
        with pytest.raises(InvalidArgument, match="CartPole-v1 has no tasks"):
            await remote.tasks("CartPole-v1")
        with pytest.raises(InvalidArgument, match=r"1001 .* more than the 1000 that it may be"):
            await remote.tasks("test/Tasks-v0", limit=1001)
        with pytest.raises(InvalidArgument, match="start"):
            await remote.tasks("test/Tasks-v0", start=-1)
        with pytest.raises(UnknownEnvironment):
            await remote.tasks("test/None-v0")
        with pytest.raises(EnvironmentFault, match="can't travel"):
            await remote.tasks("test/Tasks-v0", split="odd")


def test_the_command_lists_them(server: ServerProcess) -> None:
    command = ["envs", "test/Tasks-v0", "--tasks", "--server", server.address]
    said = gymhost(*command, "--limit", "2")
    assert said.stdout.splitlines() == ['       0  {"question": "q0"}', '       1  {"question": "q1"}']
    assert "2 of the tasks of 'train' (3)" in said.stderr
    lines = gymhost(*command, "--json", "--split", "endless", "--sample", "4", "--limit", "5").stdout.splitlines()
    assert len({json.loads(line)["task"] for line in lines}) == 5
