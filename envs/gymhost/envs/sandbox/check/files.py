"""Files: what is written is read, byte by byte and under any name, and nothing leads out."""

import contextlib
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from gymhost.envs.sandbox.check.trial import Family, Trial, shown
from gymhost.wire.errors import Error

__all__ = ["FAMILY"]

FAMILY = Family("files")

_CONTENTS = {
    "nothing": b"",
    "every byte": bytes(range(256)) * 40,
    "line ends": b"a\r\nb\n\nc\r",
    "no line end": b"no end",
    "zeros": b"\0" * 70_000,
    "much": bytes(range(251)) * 8000,
}
_NAMES = (
    "with space",
    "-n",
    "--help",
    "'quoted\"",
    "new\nline",
    "tab\t",
    "$HOME `x` *",
    "naïve 日本 😀",
    ".hidden",
    "back\\slash",
    "x" * 200,
)


@FAMILY.case("contents")
async def _contents(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        for what, data in _CONTENTS.items():
            await sandbox.write("file", data)
            read = await sandbox.read("file")
            trial.expect(read == data, f"{what}: {len(data)} bytes written, {len(read)} read, and not the same")
            result = await sandbox.run("wc -c <file")
            trial.expect(
                result.stdout.strip() == str(len(data)), f"{what}: inside it is of another size: {shown(result)}"
            )
        await sandbox.write("text", "é€😀\r\n")
        trial.expect(await sandbox.read_text("text") == "é€😀\r\n", "text is not read as it was written")
        await sandbox.write("folder/of/its/own", "x")
        trial.expect(await sandbox.read("folder/of/its/own") == b"x", "folders are not made")
        await sandbox.write("script", "#!/bin/sh\necho ran", mode=0o755)
        result = await sandbox.run("./script; stat -c %a script")
        trial.expect(result.stdout == "ran\n755\n", f"a mode is not kept: {shown(result)}")
        shell = await sandbox.shell()
        await shell.run("cd folder; printf changed >file")
        trial.expect(await sandbox.read("folder/file") == b"changed", "what the shell wrote is not read")


@FAMILY.case("odd names")
async def _names(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        for name in _NAMES:
            await sandbox.write(f"odd/{name}", name)
            trial.expect(await sandbox.read_text(f"odd/{name}") == name, f"{name!r} is not read as it was written")
        listed = {Path(entry.path).name for entry in await sandbox.list("odd")}
        trial.expect(listed == set(_NAMES), f"a list of odd names has, or lacks, {sorted(listed ^ set(_NAMES))}")
        await sandbox.run("mkdir bytes; touch bytes/$'\\xff\\xfe'")
        trial.expect(len(await sandbox.list("bytes")) == 1, "a name that is no text is not listed")
        for name in _NAMES:
            await sandbox.remove(f"odd/{name}")
        trial.expect(not await sandbox.list("odd"), "files with odd names are not removed")


@FAMILY.case("lists")
async def _lists(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        await sandbox.run(
            "mkdir -p l/a/b; printf 12345 >l/file; chmod 640 l/file; ln -s /etc l/link; mkfifo l/fifo; touch l/a/b/c"
        )
        entries = {Path(entry.path).name: entry for entry in await sandbox.list("l")}
        kinds = {name: entry.kind for name, entry in entries.items()}
        expected = {"a": "directory", "file": "file", "link": "symlink", "fifo": "other"}
        trial.expect(kinds == expected, f"a folder is listed as {kinds}")
        if "file" in entries:
            file = entries["file"]
            trial.expect((file.size, file.mode & 0o777) == (5, 0o640), f"a file is listed as {file}")
        deep = {Path(entry.path).name for entry in await sandbox.list("l", depth=3)}
        trial.expect({"c", "b"} <= deep, f"a tree is listed as {sorted(deep)}")


@FAMILY.case("errors")
async def _errors(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        await sandbox.run("mkdir folder; touch folder/file secret; chmod 000 secret")
        calls: list[tuple[str, Callable[[], Awaitable[object]], type[OSError]]] = [
            ("reading what is not there", lambda: sandbox.read("none"), FileNotFoundError),
            ("reading a folder", lambda: sandbox.read("folder"), IsADirectoryError),
            ("writing a folder", lambda: sandbox.write("folder", "x"), IsADirectoryError),
            ("listing what is not there", lambda: sandbox.list("none"), FileNotFoundError),
            ("listing a file", lambda: sandbox.list("folder/file"), NotADirectoryError),
            ("removing what is not there", lambda: sandbox.remove("none"), FileNotFoundError),
        ]
        # Where it has the rights of this process, it may have that of all.
        if trial.backend.isolates:
            calls += [
                ("reading without the right", lambda: sandbox.read("secret"), PermissionError),
                ("writing to the system", lambda: sandbox.write("/usr/bin/x", "x"), OSError),
            ]
        for what, call, kind in calls:
            try:
                await call()
            except kind:
                continue
            except (OSError, Error) as error:
                trial.fault(f"{what} raises {type(error).__name__}, not {kind.__name__}: {error}")
            else:
                trial.fault(f"{what} raises nothing")


@FAMILY.case("no way out")
async def _escapes(trial: Trial) -> None:
    with tempfile.TemporaryDirectory(prefix="gymhost-check-") as name:
        outside = _Outside(Path(name), trial.secrets.text)
        async with trial.sandbox() as sandbox:
            make = "mkdir folder tree; ln -s $1 link; ln -s $2 chain; ln -s $1 tree/outside; ln -s / tree/root"
            await sandbox.run(["bash", "-c", make, "bash", outside.path, name])
            if not trial.backend.isolates:
                # It shares the host's files: what counts is that a link leads where it leads.
                trial.expect(await sandbox.read_text("link") == outside.text, "a symbolic link is not followed")
                return
            up = "../" * 20
            plain = [outside.path, f"{up}{outside.path}", f"folder/{up}{outside.path}", f"/proc/1/root{outside.path}"]
            for way in (*plain, "link", "chain/outside", "/proc/self/root/link"):
                with contextlib.suppress(OSError, Error):
                    trial.expect(outside.text not in await sandbox.read_text(way), f"read({way!r}) leads out")
                with contextlib.suppress(OSError, Error):
                    await sandbox.write(way, "from inside")
                trial.expect(outside.untouched(), f"write({way!r}) leads out")
                with contextlib.suppress(OSError, Error):
                    await sandbox.remove(way)
                trial.expect(outside.untouched(), f"remove({way!r}) leads out")
            with contextlib.suppress(OSError, Error):
                await sandbox.download("tree", Path(name, "target"))
            for path, kind in _kinds(Path(name, "target")).items():
                trial.expect(kind == "folder", f"download() brought {path}, a {kind}, by a link that leads out")


@FAMILY.case("files that are none")
async def _specials(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        await sandbox.run("mkfifo fifo; mkdir tree; mkfifo tree/fifo; echo x >tree/file; ln -s loop loop")
        for path in ("fifo", "/dev/zero", "loop", "/dev/tty"):
            try:
                await sandbox.read(path, limit=10_000)
            except (OSError, Error):
                continue
            trial.fault(f"read({path!r}) raises nothing")
        await trial.usable(sandbox)
        with tempfile.TemporaryDirectory(prefix="gymhost-check-") as name:
            target = Path(name, "tree")
            await sandbox.download("tree", target)
            trial.expect(_kinds(target) == {"file": "file of b'x\\n'"}, "a tree with a pipe in it is not downloaded")


@FAMILY.case("trees")
async def _trees(trial: Trial) -> None:
    with tempfile.TemporaryDirectory(prefix="gymhost-check-") as name:
        source, target = Path(name, "source"), Path(name, "target")
        _make_tree(source)
        async with trial.sandbox() as sandbox:
            await sandbox.upload(source, "up")
            look = "up/run; readlink up/link; [ -d up/empty ] && [ -w up/a/b ] && rm up/a/b/data && echo own"
            result = await sandbox.run(look)
            trial.expect(result.stdout == "ran\na/b/data\nown\n", f"a tree is not uploaded as it is: {shown(result)}")
            await sandbox.upload({"more/one": b"\0\1", "two": "é"}, "up")
            trial.expect(await sandbox.read("up/more/one") == b"\0\1", "files given by name are not uploaded")
            await sandbox.upload(source, "up")
            await sandbox.download("up", target)
        (source / "more").mkdir()
        (source / "more/one").write_bytes(b"\0\1")
        (source / "two").write_text("é")
        for path, kind in _kinds(source).items():
            copied = _kinds(target).get(path)
            trial.expect(copied == kind, f"{path}, {kind[:60]!r}, is downloaded as {str(copied)[:60]!r}")


class _Outside:
    """A file of the host that anybody could change.

    Attributes:
        path: Where it is.
        text: What is in it.
    """

    def __init__(self, folder: Path, text: str) -> None:
        folder.chmod(0o777)
        self._file = folder / "outside"
        self._file.write_text(text)
        self._file.chmod(0o666)
        self.path = str(self._file)
        self.text = text

    def untouched(self) -> bool:
        """Whether it is as it was; it is again."""
        with contextlib.suppress(OSError):
            if self._file.read_text() == self.text:
                return True
        self._file.write_text(self.text)
        return False


def _make_tree(folder: Path) -> None:
    (folder / "a/b").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "a/b/data").write_bytes(bytes(range(256)) * 1000)
    (folder / "a/naïve name").write_text("text")
    (folder / "run").write_text("#!/bin/sh\necho ran")
    (folder / "run").chmod(0o755)
    (folder / "link").symlink_to("a/b/data")


def _kinds(folder: Path) -> dict[str, str]:
    """What is in a tree: for each path what it is and has."""
    return {str(path.relative_to(folder)): _kind(path) for path in folder.rglob("*")}


def _kind(path: Path) -> str:
    if path.is_symlink():
        return f"link to {path.readlink()}"
    if path.is_dir():
        return "folder"
    run = "program" if path.stat().st_mode & 0o100 else "file"
    return f"{run} of {path.read_bytes()!r}"
