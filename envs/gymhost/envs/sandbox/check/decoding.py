"""Decoding: whatever a command writes is returned, byte by byte, and as text it breaks nothing."""

from gymhost.envs.sandbox.check.trial import Family, Trial, shown
from gymhost.envs.sandbox.results import CommandResult

__all__ = ["FAMILY"]

FAMILY = Family("decoding")

# Commands, what they write, and what they return.
_ODD = {
    "bytes that are no text": (r"printf '\xff\xfe\x00A'; exit 3", b"\xff\xfe\0A", 3),
    "Latin-1": (r"printf 'caf\xe9\n'; exit 7", b"caf\xe9\n", 7),
    "a character that is cut off": (r"printf 'x\xe2\x82'", b"x\xe2\x82", 0),
    "line ends of other systems": (r"printf 'a\r\nb\rc\n\n'", b"a\r\nb\rc\n\n", 0),
    "control characters": (r"printf '\x1e\x04\x03\x1a\x1b[2J\x00\x7f'", b"\x1e\x04\x03\x1a\x1b[2J\0\x7f", 0),
    "a character in two pieces": (r"printf '\xe2'; sleep 0.05; printf '\x82\xac'", "€".encode(), 0),
}


@FAMILY.case("what a command writes")
async def _commands(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        for what, (command, written, status) in _ODD.items():
            _compare(trial, what, await sandbox.run(command), written, b"", status)
            result = await sandbox.run(["bash", "-c", f"{{ {command}; }} >&2"])
            _compare(trial, f"{what}, to standard error", result, b"", written, status)
            await trial.usable(sandbox)


@FAMILY.case("what a command of the shell writes")
async def _shell(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        shell = await sandbox.shell()
        for what, (command, written, status) in _ODD.items():
            _compare(trial, what, await shell.run(f"({command})"), written, b"", status)
            after = await shell.run("echo fine")
            trial.expect(after.ok and after.stdout == "fine\n", f"{what}: then `echo fine` gave {shown(after)}")


@FAMILY.case("random bytes")
async def _random(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        for size in (2000, 200_000):
            result = await sandbox.run(f"head -c {size} /dev/urandom | tee random", output_limit=2**20)
            _compare(trial, f"{size} random bytes", result, await sandbox.read("random"), b"", 0)
        await trial.usable(sandbox)


@FAMILY.case("standard input")
async def _input(trial: Trial) -> None:
    every = bytes(range(256)) * 1000
    async with trial.sandbox() as sandbox:
        _compare(trial, "every byte", await sandbox.run(["cat"], stdin=every, output_limit=2**20), every, b"", 0)
        _compare(trial, "no input", await sandbox.run(["cat"]), b"", b"", 0)
        _compare(trial, "input that is not read", await sandbox.run("exit 4", stdin=every), b"", b"", 4)
        await trial.usable(sandbox)


@FAMILY.case("characters at the borders of pieces")
async def _borders(trial: Trial) -> None:
    # Every length of UTF-8, at every offset from the sizes in which pipes and sockets are read.
    text = "aé€😀" * 30_000
    async with trial.sandbox() as sandbox:
        for offset in range(4):
            await sandbox.write("text", "x" * offset + text)
            result = await sandbox.run("cat text", output_limit=2**20)
            trial.expect(result.stdout == "x" * offset + text, f"text is changed on its way (after {offset} bytes)")
        result = await sandbox.run("cat text", output_limit=10_001)
        trial.expect(result.truncated and result.ok, f"long output is not said to be cut: {shown(result)}")
        trial.expect(len(result.stdout_bytes) <= 10_001, f"{len(result.stdout_bytes)} bytes are kept of 10001")
        kept = len(result.stdout_bytes) + result.stdout_left_out
        trial.expect(kept == 3 + len(text.encode()), f"{kept} bytes are accounted for, not {3 + len(text.encode())}")
        trial.expect(
            result.stdout.startswith("xxxaé€😀") and "left out" in result.stdout,
            "cut output does not say what is missing",
        )


@FAMILY.case("characters in commands")
async def _characters(trial: Trial) -> None:
    text = "naïve 日本 😀 'single' \"double\" \\ $HOME `x`"
    async with trial.sandbox(env={**trial.spec.env, "ODD": text}) as sandbox:
        _compare(trial, "an argument", await sandbox.run(["printf", "%s", text]), text.encode(), b"", 0)
        _compare(trial, "a variable", await sandbox.run('printf %s "$ODD"'), text.encode(), b"", 0)
        result = await sandbox.run('printf %s "$MORE"', env={"MORE": f"{text}\n"})
        _compare(trial, "a variable of a command", result, f"{text}\n".encode(), b"", 0)
        _compare(trial, "a line of shell", await sandbox.run("printf %s 'é€😀'"), "é€😀".encode(), b"", 0)


@FAMILY.case("what Python writes")
async def _python(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        await trial.python_of(sandbox)
        python = await sandbox.python()
        said = await python.run("import sys; _ = sys.stdout.buffer.write(bytes(range(256))); 'é\\udcff'")
        trial.expect(said.error is None and "\ufffd" in said.stdout, f"bytes that are no text gave {said}")
        after = await python.run("40 + 2")
        trial.expect(after.value == "42", f"afterwards `40 + 2` gave {after}")


def _compare(trial: Trial, what: str, result: CommandResult, stdout: bytes, stderr: bytes, status: int) -> None:
    trial.expect(result.stdout_bytes == stdout, f"{what}: standard output is not what was written: {shown(result)}")
    trial.expect(result.stderr_bytes == stderr, f"{what}: standard error is not what was written: {shown(result)}")
    trial.expect(result.stdout == stdout.decode(errors="replace"), f"{what}: the text is not that of the bytes")
    trial.expect(result.exit_status == status, f"{what}: the exit status is {result.exit_status}, not {status}")
