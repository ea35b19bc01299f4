"""Shells: the persistent shell and the persistent Python do what a person at a terminal would expect of them."""

import asyncio
import os

from gymhost.envs.sandbox.check.trial import Family, Trial, shown
from gymhost.envs.sandbox.shell import Shell

__all__ = ["FAMILY"]

FAMILY = Family("shells")


@FAMILY.case("folder and variables last")
async def _lasts(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        shell = await sandbox.shell()
        await _says(trial, shell, "pwd", f"{sandbox.spec.workdir}\n")
        await _says(
            trial, shell, "mkdir -p sub/folder; cd sub/folder; here=there; export OUT=side; double() { echo $1$1; }", ""
        )
        await _says(
            trial,
            shell,
            "pwd; echo $here; bash -c 'echo $OUT'; double ab",
            f"{sandbox.spec.workdir}/sub/folder\nthere\nside\nabab\n",
        )
        await _says(trial, shell, "cd -; cd /tmp; umask 077; alias hi='echo hello'", f"{sandbox.spec.workdir}\n")
        await _says(trial, shell, "pwd; umask", "/tmp\n0077\n")
        other = await sandbox.shell()
        await _says(trial, other, 'pwd; echo "[$here]"', f"{sandbox.spec.workdir}\n[]\n")
        result = await sandbox.run("pwd")
        trial.expect(result.stdout == f"{sandbox.spec.workdir}\n", f"a command begins elsewhere: {shown(result)}")


@FAMILY.case("exit statuses")
async def _statuses(trial: Trial) -> None:
    statuses = {"true": 0, "false": 1, "(exit 42)": 42, "(exit 255)": 255, "no-such-command": 127, "/etc": 126}
    statuses |= {
        "bash -c 'kill -9 $$'": 137,
        "bash -c 'kill -TERM $$'": 143,
        "false | true": 0,
        "! true": 1,
        "true &": 0,
    }
    async with trial.sandbox() as sandbox:
        shell = await sandbox.shell()
        for command, status in statuses.items():
            for runner, name in ((sandbox, "run"), (shell, "the shell")):
                result = await runner.run(command)
                trial.expect(
                    result.exit_status == status and result.limit is None and not result.restarted,
                    f"`{command}` by {name}: {status} is expected: {shown(result)}",
                )
        await shell.run("(exit 9)")
        await _says(trial, shell, "echo $?", "9\n")
        for argv, status in ((["no-such-command"], 127), (["sh", "-c", "exit 5"], 5)):
            result = await sandbox.run(argv)
            trial.expect(result.exit_status == status, f"{argv}: {status} is expected: {shown(result)}")


@FAMILY.case("output as it is")
async def _output(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        shell = await sandbox.shell()
        for command, stdout in {
            "printf abc": "abc",
            "printf '\\n\\n'": "\n\n",
            "echo; echo": "\n\n",
            ":": "",
            "seq 20000": "".join(f"{number}\n" for number in range(1, 20001)),
        }.items():
            await _says(trial, shell, command, stdout)
        result = await shell.run("echo err >&2; echo out")
        trial.expect(
            (result.stdout, result.stderr) == ("out\n", "err\n"),
            f"standard error and output are mixed: {shown(result)}",
        )
        result = await shell.run("head -c 300000 /dev/zero", output_limit=1000)
        trial.expect(
            result.ok
            and len(result.stdout_bytes) + result.stdout_left_out == 300_000
            and len(result.stdout_bytes) <= 1000,
            f"300000 bytes within a limit of 1000: {len(result.stdout_bytes)} kept, {result.stdout_left_out} left out",
        )
        await _says(trial, shell, "echo fine", "fine\n")


@FAMILY.case("commands of several lines")
async def _lines(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        shell = await sandbox.shell()
        await _says(trial, shell, "for i in 1 2\ndo\n  echo $i\ndone\n\necho end", "1\n2\nend\n")
        await _says(trial, shell, "cat <<'END'\na $b `c` \\d\n\nEND\necho after", "a $b `c` \\d\n\nafter\n")
        await _says(trial, shell, "echo a # a comment", "a\n")
        await _says(trial, shell, "echo a \\\nb", "a b\n")
        await _says(trial, shell, "echo '!!' !x; echo \"$((1 + 2))\"", "!! !x\n3\n")
        await _says(trial, shell, "text='it''s'; echo \"$text\"", "its\n")
        await _says(trial, shell, "", "")
        await _says(trial, shell, "   # nothing\n", "")


@FAMILY.case("commands that are not complete")
async def _incomplete(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        shell = await sandbox.shell()
        for command in (
            "echo 'unfinished",
            'echo "unfinished',
            "for i in 1 2",
            "cat <(",
            "if",
            "(",
            ")",
            "case x in",
            "$(",
            "`",
            "}",
        ):
            result = await shell.run(command, timeout=10)
            trial.expect(
                result.limit is None and result.exit_status != 0,
                f"`{command}` is not an error of its own: {shown(result)}",
            )
            after = await shell.run("echo fine", timeout=10)
            trial.expect(after.stdout == "fine\n", f"after `{command}`, `echo fine` gave {shown(after)}")
        result = await shell.run("cat <<END\nno end", timeout=10)
        trial.expect(result.stdout == "no end\n", f"a here-document without an end gave {shown(result)}")
        await _says(trial, shell, "echo fine", "fine\n")


@FAMILY.case("commands that end the shell")
async def _endings(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        shell = await sandbox.shell()
        for command, status in {
            "exit 3": 3,
            "echo last; exit": 0,
            "exec true": 0,
            "kill -9 $$": 137,
            "exec >&-; exit 5": 5,
        }.items():
            await shell.run("kept=value")
            result = await shell.run(command, timeout=10)
            trial.expect(
                result.restarted and result.exit_status == status,
                f"`{command}`: a restart and {status} are expected: restarted {result.restarted}, {shown(result)}",
            )
            if "last" in command:
                trial.expect(result.stdout == "last\n", f"what `{command}` wrote is lost: {shown(result)}")
            after = await shell.run('echo "fine$kept"', timeout=10)
            trial.expect(after.ok and after.stdout == "fine\n", f"after `{command}` the shell gave {shown(after)}")
        for command in (
            "set -e; false; true",
            "set -u; echo $nothing",
            "exec 2>&-",
            "exec </dev/null",
            "trap 'echo bye' EXIT",
        ):
            await shell.run(command, timeout=10)
            after = await shell.run("set +eu; echo fine", timeout=10)
            trial.expect(after.stdout == "fine\n", f"after `{command}`, `echo fine` gave {shown(after)}")


@FAMILY.case("output that looks like the shell's own marks")
async def _mimicry(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        shell = await sandbox.shell()
        for runner, name in ((sandbox, "run"), (shell, "the shell")):
            mimicked = b"\x1e" + b"0" * 32 + b" 0\n$ \n\x1e\x1e 7\n\x01\0\0\0\0\0\0\x04"
            await sandbox.write("mimicked", mimicked)
            result = await runner.run("cat mimicked; cat mimicked >&2; (exit 6)", timeout=10)
            trial.expect(
                result.stdout_bytes == mimicked and result.stderr_bytes == mimicked and result.exit_status == 6,
                f"{name} takes what is written for marks of its own: {shown(result)}",
            )
            # Whatever a command can find of how it is run, and writes to all that it can write to.
            look = "{ cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | tr '\\0' '\\n'; set; history; } >seen 2>/dev/null"
            write = "grep -aoE '[0-9a-f]{32}' seen | sed 's/^/\\x1e/; s/$/ 0/'"
            result = await runner.run(f"{look}; {write}; sleep 0.2; (exit 8)", timeout=10)
            trial.expect(result.exit_status == 8, f"{name} can be told that a command ended: {shown(result)}")


@FAMILY.case("standard input")
async def _input(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        shell = await sandbox.shell()
        await _says(trial, shell, "cat; echo after", "after\n", timeout=10)
        await _says(trial, shell, 'read -r line; echo "[$line]"', "[]\n", timeout=10)
        await _says(trial, shell, "bash; echo after", "after\n", timeout=10)
        result = await sandbox.run("cat; read -r line; echo after", timeout=10)
        trial.expect(result.stdout == "after\n", f"a command without input waits for it, or has some: {shown(result)}")
        result = await shell.run("[ -t 0 ] || [ -t 1 ] || : </dev/tty", timeout=10)
        trial.expect(not result.ok, "the shell has a terminal")


@FAMILY.case("several at a time")
async def _together(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        shell = await sandbox.shell()
        runs = [sandbox.run(f"sleep 0.{number}; echo {number}; exit {number}") for number in range(1, 7)]
        results = await asyncio.gather(*runs, shell.run("sleep 0.2; echo shell"))
        for number, result in enumerate(results[:-1], start=1):
            trial.expect(
                result.exit_status == number and result.stdout == f"{number}\n",
                f"commands that run side by side are mixed up: {number} gave {shown(result)}",
            )
        trial.expect(results[-1].stdout == "shell\n", f"the shell beside them gave {shown(results[-1])}")


@FAMILY.case("Python")
async def _python(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        await trial.python_of(sandbox)
        python = await sandbox.python()
        for code, value in {
            "x = 6": None,
            "x * 7": "42",
            "'a\\n'": "'a\\n'",
            "None": None,
            "y = 1\ny + 1": "2",
            "": None,
        }.items():
            result = await python.run(code)
            trial.expect(result.ok and result.value == value, f"{code!r} gave {result}")
        result = await python.run("print('out')\nx = 7\n1 / 0")
        trial.expect(
            result.exception == "ZeroDivisionError" and "1 / 0" in (result.error or "") and result.stdout == "out\n",
            f"an exception gave {result}",
        )
        for code, name in {
            "1 +": "SyntaxError",
            "raise KeyboardInterrupt": "KeyboardInterrupt",
            "int('x')": "ValueError",
        }.items():
            result = await python.run(code)
            trial.expect(result.exception == name, f"{code!r} gave {result}")
        trial.expect((await python.run("x")).value == "7", "variables are lost by an exception")
        for code in (
            "import sys; sys.exit(3)",
            "import os; os._exit(3)",
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        ):
            await python.run(code)
            result = await python.run("40 + 2")
            trial.expect(result.value == "42", f"after {code!r}, `40 + 2` gave {result}")
        result = await python.run("input()")
        trial.expect(result.exception == "EOFError", f"a program without input waits for it, or has some: {result}")
        result = await python.run(f"import os; print(os.getcwd(), os.getuid() == {os.getuid()})")
        trial.expect(result.stdout.startswith(sandbox.spec.workdir), f"Python begins elsewhere: {result}")


async def _says(trial: Trial, shell: Shell, command: str, stdout: str, timeout: float = 20.0) -> None:
    """Expects a command to write a text, nothing to standard error, and not to restart the shell."""
    result = await shell.run(command, timeout=timeout)
    trial.expect(
        result.stdout == stdout and not result.stderr and not result.restarted and result.limit is None,
        f"`{command:.80}` should say {stdout!r:.80}: {shown(result)}",
    )
