"""Files of a sandbox: exact, whole, and never the host's."""

import asyncio
import errno
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gymhost.envs.sandbox import CommandResult, Limits, Sandbox, SandboxSpec
from gymhost.envs.sandbox.files import Files
from gymhost.wire.errors import CommandTimeout, InvalidArgument, SandboxUnavailable, TooLarge
from support.sandboxes import BACKENDS, ISOLATING, fresh_sandbox

MIB = 2**20
EVERY_BYTE = bytes(range(256))
ODD_NAMES = ["-rf", "-", "a b", 'it\'s "$(id)"`id`', "new\nline", "\\", "*", "ü", "\udcff\udcfe", " ", "~", "x" * 255]


@pytest.fixture(params=BACKENDS)
async def sandbox(request: pytest.FixtureRequest) -> AsyncGenerator[Sandbox]:
    async with fresh_sandbox(request.param) as sandbox:
        yield sandbox


async def files_in(sandbox: Sandbox) -> list[str]:
    return [info.path for info in await sandbox.list(depth=9)]


@pytest.mark.parametrize("size", [0, 1, 255, 32 * 1024, 32 * 1024 + 1, 12 * MIB])
async def test_content_is_exact(sandbox: Sandbox, size: int):
    content = (EVERY_BYTE * (size // 256 + 1))[:size]
    await sandbox.write("file", content)
    assert await sandbox.read("file") == content


async def test_content_that_looks_like_a_marker_or_has_odd_ends_is_exact(sandbox: Sandbox):
    for content in (b"\x1e" * 99, b"\x1eabc 0 3\nxyz", b"\n", b"\n\n\n", b"\0", b"\\0\\n%s", b"\xff\xfe"):
        await sandbox.write("file", content)
        assert await sandbox.read("file") == content


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_names_may_be_anything(sandbox: Sandbox, name: str):
    await sandbox.write(name, "content")
    assert await sandbox.read(name) == b"content"
    assert await files_in(sandbox) == [name]
    await sandbox.remove(name)
    assert await files_in(sandbox) == []


async def test_text_is_utf8_and_what_is_none_is_marked(sandbox: Sandbox):
    await sandbox.write("text", "grüße")
    assert await sandbox.read("text") == "grüße".encode()
    assert await sandbox.read_text("text") == "grüße"
    await sandbox.write("none", b"a\xffb")
    assert await sandbox.read_text("none") == "a\ufffdb"
    with pytest.raises(UnicodeDecodeError):
        await sandbox.read_text("none", errors="strict")


async def test_relative_paths_begin_in_the_working_folder(sandbox: Sandbox):
    await sandbox.write("deep/er/file", "x")
    result = await sandbox.run("pwd; cat deep/er/file")
    folder = result.stdout.splitlines()[0]
    assert await sandbox.read(f"{folder}/deep/er/file") == b"x"
    assert await sandbox.read(f"{folder}/../{Path(folder).name}/deep/er/file") == b"x"


async def test_what_is_not_there_or_of_another_kind_is_said(sandbox: Sandbox):
    await sandbox.run("mkdir folder; echo x > file; mkfifo fifo; ln -s nowhere dangling; ln -s loop loop")
    with pytest.raises(FileNotFoundError, match="nothing"):
        await sandbox.read("nothing")
    with pytest.raises(FileNotFoundError):
        await sandbox.read("dangling")
    with pytest.raises(IsADirectoryError):
        await sandbox.read("folder")
    with pytest.raises(NotADirectoryError):
        await sandbox.read("file/x")
    with pytest.raises(OSError, match="Too many levels"):
        await sandbox.read("loop")
    for path in ("fifo", "/dev/null", "/dev/zero"):
        with pytest.raises(OSError, match="Not a regular file"):
            await sandbox.read(path)
        with pytest.raises(OSError, match="Not a regular file"):
            await sandbox.write(path, "x")
    for path in ("folder", "folder/", "folder/.", "new/", ".", ".."):
        with pytest.raises(IsADirectoryError):
            await sandbox.write(path, "x")
    with pytest.raises(NotADirectoryError):
        await sandbox.write("file/x", "x")
    with pytest.raises(NotADirectoryError):
        await sandbox.list("file")
    with pytest.raises(FileNotFoundError):
        await sandbox.list("nothing")
    with pytest.raises(FileNotFoundError):
        await sandbox.remove("nothing")
    with pytest.raises(OSError, match="refusing"):
        await sandbox.remove(".")
    with pytest.raises(OSError, match="too long"):
        await sandbox.read("x" * 256)
    assert await files_in(sandbox) == ["dangling", "fifo", "file", "folder", "loop"]


@pytest.mark.parametrize("path", ["", "a\0b"])
async def test_a_path_that_can_be_none_is_refused(sandbox: Sandbox, path: str):
    for operation in (sandbox.read(path), sandbox.write(path, "x"), sandbox.list(path), sandbox.remove(path)):
        with pytest.raises(InvalidArgument, match="path"):
            await operation


async def test_a_file_above_the_limit_is_refused(sandbox: Sandbox):
    await sandbox.write("file", b"x" * 1000)
    assert len(await sandbox.read("file", limit=1000)) == 1000
    with pytest.raises(TooLarge, match=r"more than 999 bytes: raise limit="):
        await sandbox.read("file", limit=999)
    await sandbox.run("truncate -s 200M huge")
    with pytest.raises(TooLarge):
        await sandbox.read("huge", limit=MIB)
    assert await sandbox.read("file") == b"x" * 1000


async def test_the_mode_is_set_or_kept(sandbox: Sandbox):
    async def mode() -> int:
        return (await sandbox.list())[0].mode

    await sandbox.write("file", "x")
    assert await mode() == 0o644
    await sandbox.write("file", "#!/bin/sh\necho ran\n", mode=0o755)
    assert await mode() == 0o755
    assert (await sandbox.run(["./file"])).stdout == "ran\n"
    await sandbox.write("file", "y")
    assert await mode() == 0o755


async def test_a_link_is_written_through_inside(sandbox: Sandbox):
    await sandbox.run("mkdir a; echo old > a/target; ln -s a/target link; ln -s a to-folder")
    await sandbox.write("link", "new")
    await sandbox.write("to-folder/other", "more")
    assert await sandbox.read("a/target") == b"new"
    assert await sandbox.read("a/other") == b"more"
    kinds = {info.path: info.kind for info in await sandbox.list()}
    assert kinds == {"a": "directory", "link": "symlink", "to-folder": "symlink"}


async def test_a_write_that_fails_leaves_what_was_there(sandbox: Sandbox):
    await sandbox.write("file", "old")
    with pytest.raises(CommandTimeout, match=r"timeout=0\.001"):
        await sandbox.write("file", b"x" * 30 * MIB, timeout=0.001)
    assert await sandbox.read("file") == b"old"
    assert await files_in(sandbox) == ["file"]


async def test_a_cancelled_write_leaves_what_was_there(sandbox: Sandbox):
    await sandbox.write("file", "old")
    for _ in range(5):
        writing = asyncio.create_task(sandbox.write("file", b"x" * 30 * MIB))
        await asyncio.sleep(0.003)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert await sandbox.read("file", limit=64 * MIB) == b"old"


async def test_several_at_once(sandbox: Sandbox):
    names = [f"f{number}" for number in range(20)]
    await asyncio.gather(*(sandbox.write(name, name * 1000) for name in names))
    read = await asyncio.gather(*(sandbox.read_text(name) for name in names))
    assert read == [name * 1000 for name in names]


async def test_a_list_tells_of_each_file(sandbox: Sandbox):
    await sandbox.run(
        "mkdir -p a/b/c; echo hello > a/f; chmod 640 a/f; ln -s /etc a/l; mkfifo a/p; touch -d @1700000000.5 a/f"
    )
    infos = {info.path: info for info in await sandbox.list(depth=2)}
    assert list(infos) == ["a", "a/b", "a/f", "a/l", "a/p"]
    file = infos["a/f"]
    assert (file.kind, file.size, file.mode, file.modified) == ("file", 6, 0o640, 1700000000.5)
    assert [infos[path].kind for path in ("a", "a/l", "a/p")] == ["directory", "symlink", "other"]
    assert [info.path for info in await sandbox.list("a")] == ["b", "f", "l", "p"]
    assert await sandbox.list("a/b/c") == []
    assert "passwd" in [info.path for info in await sandbox.list("a/l")]
    assert "a/b/c" in await files_in(sandbox)
    with pytest.raises(InvalidArgument, match="depth"):
        await sandbox.list(depth=0)
    with pytest.raises(TooLarge, match="depth="):
        await sandbox.list("/usr", depth=3, limit=4096)


async def test_a_name_can_not_feign_other_files_in_a_list(sandbox: Sandbox):
    await sandbox.write("x\n81a4 5 1.0 feigned", "")
    assert await files_in(sandbox) == ["x\n81a4 5 1.0 feigned"]


async def test_a_folder_is_removed_with_all_in_it_and_links_are_not_followed(sandbox: Sandbox):
    await sandbox.run("mkdir -p tree/sub kept; touch tree/sub/x kept/y; ln -s ../kept tree/link; ln -s kept link")
    await sandbox.remove("tree")
    await sandbox.remove("link/")
    assert await files_in(sandbox) == ["kept", "kept/y"]


async def test_a_folder_of_files_goes_in_and_comes_out(sandbox: Sandbox, tmp_path: Path):
    source = tmp_path / "source"
    (source / "sub" / "empty").mkdir(parents=True)
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    (source / "sub" / "data").write_bytes(EVERY_BYTE * 40_000)
    (source / "sub" / "link").symlink_to("../run.sh")
    (source / "\udcff\n-x").write_text("odd")
    await sandbox.upload(str(source), "there/in")
    assert (await sandbox.run(["there/in/run.sh"])).stdout == "ran\n"
    assert (await sandbox.run('[ "$(stat -c %u there/in/run.sh)" = "$(id -u)" ]')).ok
    download = await sandbox.download("there", str(tmp_path / "back"))
    assert download.complete
    assert (download.files, download.size) == (4, 19 + 256 * 40_000 + 3)
    back = tmp_path / "back" / "in"
    assert (back / "sub" / "data").read_bytes() == EVERY_BYTE * 40_000
    assert (back / "sub" / "link").readlink() == Path("../run.sh")
    assert (back / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (back / "\udcff\n-x").read_text() == "odd"
    assert (back / "sub" / "empty").is_dir()


async def test_files_go_in_by_name(sandbox: Sandbox):
    await sandbox.write("kept", "k")
    await sandbox.write("a/replaced", "old")
    await sandbox.upload({"a/replaced": "new", "a/b/bytes": b"\0\xff", "-n": ""})
    assert await files_in(sandbox) == ["-n", "a", "a/b", "a/b/bytes", "a/replaced", "kept"]
    assert await sandbox.read("a/replaced") == b"new"
    assert await sandbox.read("a/b/bytes") == b"\0\xff"
    with pytest.raises(FileExistsError):
        await sandbox.upload({"x": ""}, "kept")
    with pytest.raises(TooLarge, match="limit="):
        await sandbox.upload({"x": "four"}, limit=3)


async def test_a_download_says_what_it_leaves_out(sandbox: Sandbox, tmp_path: Path):
    await sandbox.run(
        "mkdir d; cd d; echo ok > ok; mkfifo fifo; ln -s /etc/passwd absolute; ln -s ../../.. up; ln -s ok inside;"
        "head -c 3000 /dev/zero > large; cp /bin/true true; chmod 4777 true"
    )
    download = await sandbox.download("d", tmp_path / "out", limit=2 * MIB)
    assert sorted(left.path for left in download.left_out) == ["./absolute", "./fifo", "./up"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["inside", "large", "ok", "true"]
    assert (tmp_path / "out" / "true").stat().st_mode & 0o7777 == 0o755
    small = await sandbox.download("d", tmp_path / "small", limit=2000)
    assert {"./large", "./true"} <= {left.path for left in small.left_out}
    assert (tmp_path / "small" / "ok").read_text() == "ok\n"
    few = await sandbox.download("d", tmp_path / "few", entries=3)
    assert few.left_out[-1].reason == "the rest: there are more than entries=3"
    with pytest.raises(FileExistsError):
        await sandbox.download("d", tmp_path / "out")
    with pytest.raises(FileNotFoundError):
        await sandbox.download("nothing", tmp_path / "nothing")
    with pytest.raises(NotADirectoryError):
        await sandbox.download("d/ok", tmp_path / "file")


async def test_a_download_of_more_than_fits_ends(sandbox: Sandbox, tmp_path: Path):
    await sandbox.run("echo a > a; truncate -s 200M z; mkfifo fifo")
    download = await sandbox.download(".", tmp_path / "out", limit=MIB)
    assert not download.complete
    assert "z" not in {path.name for path in (tmp_path / "out").iterdir()}


@pytest.mark.parametrize("program", ["head", "tar", "find"])
async def test_a_program_that_is_missing_is_named(sandbox: Sandbox, program: str):
    await sandbox.run(f"mkdir bin; for p in /bin/*; do [ ${{p##*/}} = {program} ] || ln -s $p bin/; done")
    folder = (await sandbox.run("cd bin; pwd")).stdout.strip()

    async def run(
        command: Sequence[str] | str, *, env: Mapping[str, str] | None = None, **arguments: Any
    ) -> CommandResult:
        return await sandbox.run(command, env={**(env or {}), "PATH": folder}, **arguments)

    files = Files(run)
    operation = {"head": lambda: files.read("bin/cat"), "tar": lambda: files.upload({"a": ""}), "find": files.list}[
        program
    ]
    with pytest.raises(SandboxUnavailable, match=program):
        await operation()


@pytest.mark.parametrize("backend", ISOLATING)
async def test_a_full_disk_is_said_and_leaves_what_was_there(backend: str):
    async with fresh_sandbox(backend, SandboxSpec(limits=Limits(disk=8 * MIB))) as sandbox:
        await sandbox.write("file", "old")
        with pytest.raises(OSError, match=r"limits\.disk") as raised:
            await sandbox.write("file", b"x" * 20 * MIB)
        assert raised.value.errno == errno.ENOSPC
        assert await sandbox.read("file") == b"old"
        assert await files_in(sandbox) == ["file"]
        with pytest.raises(OSError, match=r"limits\.disk"):
            await sandbox.upload({"large": b"x" * 20 * MIB})
        await sandbox.remove("large")
        await sandbox.write("file", b"x" * 4 * MIB)


@pytest.mark.parametrize("backend", ISOLATING)
async def test_what_the_user_may_not_do_is_said(backend: str):
    async with fresh_sandbox(backend) as sandbox:
        await sandbox.run("mkdir closed; echo x > closed/x; echo x > own; chmod 0 closed own")
        for operation in (
            sandbox.read("own"),
            sandbox.write("own", "x"),
            sandbox.read("closed/x"),
            sandbox.list("closed"),
            sandbox.read("/etc/shadow"),
            sandbox.list("/root"),
        ):
            with pytest.raises((PermissionError, FileNotFoundError)):
                await operation
        for path in ("/etc/new", "/usr/new", "/etc/passwd"):
            with pytest.raises(OSError, match=r"(?i)read-only|denied"):
                await sandbox.write(path, "x")
        with pytest.raises(OSError, match=r"(?i)read-only|denied"):
            await sandbox.remove("/usr/bin/env")
        assert [info.path for info in await sandbox.list(depth=3)] == ["closed", "own"]


@pytest.mark.parametrize("backend", ISOLATING)
async def test_no_path_leads_to_the_host(backend: str, tmp_path: Path):
    mark = tmp_path / "mark"
    mark.write_text("the host's")
    up = "../" * 40
    async with fresh_sandbox(backend) as sandbox:
        await sandbox.run(f"ln -s {mark} link; ln -s {tmp_path} to-folder; ln -s {up}proc/1/root root")
        for path in ("link", "to-folder/mark", str(mark), f"{up}{mark}", f"root{mark}", f"/proc/self/root{mark}"):
            with pytest.raises(OSError, match=r"(?i)no such file|denied"):
                await sandbox.read(path)
        # A link is followed inside, where there is no such folder.
        with pytest.raises(OSError, match=r"(?i)no such file|denied|read-only"):
            await sandbox.write("link", "x")
        download = await sandbox.download(".", tmp_path / "out")
        assert {left.path for left in download.left_out} == {"./link", "./to-folder", "./root"}
    assert mark.read_text() == "the host's"
    assert sorted(os.listdir(tmp_path)) == ["mark", "out"]
