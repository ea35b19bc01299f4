"""Snapshots by copies of files: for backends that can't keep files by themselves."""

import asyncio
import gc
import os
import tempfile
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

from gymhost.envs.sandbox import Sandbox
from gymhost.envs.sandbox.snapshots import TarSnapshot
from gymhost.wire.errors import CommandTimeout, InvalidArgument, TooLarge
from support.sandboxes import BACKENDS, ISOLATING, fresh_sandbox

MIB = 2**20


@pytest.fixture(params=BACKENDS)
async def pair(request: pytest.FixtureRequest) -> AsyncGenerator[tuple[Sandbox, Sandbox]]:
    async with fresh_sandbox(request.param) as source, fresh_sandbox(request.param) as target:
        yield source, target


def open_copies() -> int:
    """How many temporary files without names this process holds open."""
    links = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return sum(link.startswith(tempfile.gettempdir()) and link.endswith("(deleted)") for link in links)


@pytest.fixture(autouse=True)
def no_copies_left() -> Iterator[None]:
    before = open_copies()
    yield
    gc.collect()
    assert open_copies() == before


async def test_files_are_as_they_were(pair: tuple[Sandbox, Sandbox]):
    source, target = pair
    await source.run(
        "mkdir -p a/b/empty; printf 'x\\0\\377' > a/f; chmod 751 a/f; chmod 700 a/b; ln -s ../a/f a/link;"
        "ln -s /etc out; ln a/f hard; mkfifo fifo; printf odd > $'-n\\n\\377'; touch -d @1700000000 a/f;"
        "head -c 3000000 /dev/zero > big"
    )
    snapshot = await TarSnapshot.take(source.run, ["."], limit=16 * MIB)
    await source.run("echo changed > a/f; rm -r a/b")
    await snapshot.restore(target.run)
    assert snapshot.left_out == []
    script = (
        "find . -printf '%P %y %m %l %n\\n' | sort; cat a/f ./$'-n\\n\\377' | od -c; stat -c %Y a/f; stat -c %s big"
    )
    told = (await target.run(script)).stdout
    assert "a/f f 751  2\n" in told
    assert "a/b d 700 " in told
    assert "a/link l 777 ../a/f 1\n" in told
    assert "out l 777 /etc 1\n" in told
    assert "fifo p " in told
    assert "x  \\0 377   o   d   d" in told
    assert told.endswith("1700000000\n3000000\n")
    await snapshot.discard()


@pytest.mark.parametrize("backend", ISOLATING)
async def test_the_folder_of_temporary_files_is_part_of_it(backend: str):
    async with fresh_sandbox(backend) as source, fresh_sandbox(backend) as target:
        await source.run("echo 1 > /tmp/t; mkdir /tmp/.hidden; echo 2 > w")
        snapshot = await TarSnapshot.take(source.run, [".", "/tmp"], limit=16 * MIB)
        await snapshot.restore(target.run)
        assert (await target.run("cat /tmp/t w; ls -A /tmp; stat -c %a /tmp")).stdout == (
            (await source.run("cat /tmp/t w; ls -A /tmp; stat -c %a /tmp")).stdout
        )
        await snapshot.discard()


async def test_several_begin_with_the_same_one(pair: tuple[Sandbox, Sandbox]):
    source, target = pair
    await source.write("file", "x" * MIB)
    snapshot = await TarSnapshot.take(source.run, ["."], limit=16 * MIB)
    await asyncio.gather(*(snapshot.restore(sandbox.run) for sandbox in (source, target, target)))
    assert await target.read("file") == b"x" * MIB
    await snapshot.discard()
    await snapshot.discard()
    with pytest.raises(InvalidArgument, match="discarded"):
        await snapshot.restore(target.run)
    assert await target.read("file") == b"x" * MIB


async def test_an_empty_folder_can_be_kept(pair: tuple[Sandbox, Sandbox]):
    source, target = pair
    snapshot = await TarSnapshot.take(source.run, ["."], limit=MIB)
    await snapshot.restore(target.run)
    assert await target.list() == []


async def test_what_nobody_holds_is_freed(pair: tuple[Sandbox, Sandbox]):
    source, _ = pair
    before = open_copies()
    snapshot = await TarSnapshot.take(source.run, ["."], limit=MIB)
    assert open_copies() == before + 1
    del snapshot
    gc.collect()
    assert open_copies() == before


async def test_it_is_bounded(pair: tuple[Sandbox, Sandbox]):
    source, _ = pair
    await source.write("file", "x" * MIB)
    with pytest.raises(TooLarge, match="more than"):
        await TarSnapshot.take(source.run, ["."], limit=MIB)
    with pytest.raises(TooLarge, match="more than"):
        await TarSnapshot.take(source.run, [".", "."], limit=MIB + MIB // 2)
    with pytest.raises(CommandTimeout, match="timeout="):
        await TarSnapshot.take(source.run, ["."], limit=4 * MIB, timeout=0.0001)
    with pytest.raises(FileNotFoundError):
        await TarSnapshot.take(source.run, ["nothing"], limit=MIB)


@pytest.mark.parametrize("backend", ISOLATING)
async def test_what_can_not_be_read_is_told_and_the_rest_is_kept(backend: str):
    async with fresh_sandbox(backend) as source, fresh_sandbox(backend) as target:
        await source.run("echo 1 > file; echo 2 > closed; chmod 0 closed")
        snapshot = await TarSnapshot.take(source.run, ["."], limit=MIB)
        assert len(snapshot.left_out) == 1
        assert "closed" in snapshot.left_out[0]
        await snapshot.restore(target.run)
        assert [info.path for info in await target.list()] == ["file"]


async def test_nothing_of_it_has_a_name_on_the_host(
    pair: tuple[Sandbox, Sandbox], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    snapshot = await TarSnapshot.take(pair[0].run, ["."], limit=MIB)
    assert os.listdir(tmp_path) == []
    await snapshot.discard()
