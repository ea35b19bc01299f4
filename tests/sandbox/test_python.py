"""A persistent Python: what code says, whatever it does to the process that runs it."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from gymhost.envs.sandbox import Limits, PythonResult, PythonSession, Sandbox, SandboxSpec, interpreter_mounts
from gymhost.wire.errors import InvalidArgument, SandboxUnavailable
from support.sandboxes import BACKENDS, ISOLATING, fresh_sandbox

MIB = 2**20
DRIVER = "gymhost"


@pytest.fixture(params=BACKENDS)
async def sandbox(request: pytest.FixtureRequest) -> AsyncGenerator[Sandbox]:
    async with fresh_sandbox(request.param) as sandbox:
        yield sandbox


@pytest.fixture
async def python(sandbox: Sandbox) -> PythonSession:
    return await sandbox.python()


@pytest.fixture(params=BACKENDS)
async def plotting(request: pytest.FixtureRequest) -> AsyncGenerator[PythonSession]:
    """A Python with matplotlib: this process's own."""
    mounts = () if request.param == "local" else interpreter_mounts()
    spec = SandboxSpec(mounts=mounts, limits=Limits(memory=1024 * MIB))
    async with fresh_sandbox(request.param, spec) as sandbox:
        python = await sandbox.python(executable=sys.executable)
        assert (await python.run("import matplotlib.pyplot as plt", timeout=50.0)).ok
        yield python


async def value(python: PythonSession, code: str) -> str | None:
    """What an expression gives, in code that is to do well."""
    result = await python.run(code)
    assert result.ok, result
    return result.value


async def is_well(python: PythonSession) -> bool:
    """Whether code runs, and its output comes to it: nothing of what was before."""
    result = await python.run("import sys; print('out'); print('err', file=sys.stderr)\n6 * 7")
    assert (result.value, result.stdout, result.stderr, result.error) == ("42", "out\n", "err\n", None), result
    return True


async def test_what_code_defines_lasts(python: PythonSession):
    assert (await python.run("x = 20\ndef double(n):\n    return 2 * n\nimport math as m")).value is None
    assert await value(python, "double(x) + 2") == "42"
    assert await value(python, "m.floor(2.5)") == "2"
    assert await value(python, "__name__, double.__module__") == "('__main__', '__main__')"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("1 + 1", "2"),
        ("x = 1\nx", "1"),
        ("x = 1", None),
        ("None", None),
        ("", None),
        ("# nothing", None),
        ("if True:\n    5", None),
        ("'a\\nb'", repr("a\nb")),
        ("'\\ud800'", repr("\ud800")),
        ("'ü'", "'ü'"),
        ("1; 2; 3", "3"),
        ("(\n1,\n)", "(1,)"),
        ("lambda: 0\n5", "5"),
        ("...", "Ellipsis"),
    ],
)
async def test_the_value_is_that_of_the_last_expression(python: PythonSession, code: str, expected: str | None):
    assert await value(python, code) == expected


async def test_output_comes_in_order_with_that_of_other_programs(python: PythonSession):
    result = await python.run(
        "import os, subprocess, sys\n"
        "print('1', end='')\n"
        "subprocess.run(['printf', '2'])\n"
        "os.system('printf 3')\n"
        "os.write(1, b'4')\n"
        "sys.stdout.buffer.write(b'5\\xff')\n"
        "subprocess.run('echo e2 >&2', shell=True)\n"
        "print('e3', file=sys.stderr)\n"
        "None"
    )
    assert (result.stdout, result.stderr) == ("12345\ufffd", "e2\ne3\n")


async def test_an_exception_has_the_lines_of_the_code_and_nothing_else(python: PythonSession):
    await python.run("def divide(a, b):\n    return a / b")
    result = await python.run("print('before')\ndivide(1, 0)\nprint('after')")
    assert not result.ok
    assert (result.exception, result.stdout, result.value) == ("ZeroDivisionError", "before\n", None)
    assert result.error
    lines = [line.strip() for line in result.error.splitlines() if not set(line) <= set(" ^~")]
    assert lines == [
        "Traceback (most recent call last):",
        'File "<cell 2>", line 2, in <module>',
        "divide(1, 0)",
        'File "<cell 1>", line 2, in divide',
        "return a / b",
        "ZeroDivisionError: division by zero",
    ]


@pytest.mark.parametrize(
    ("code", "exception", "said"),
    [
        ("a b", "SyntaxError", "invalid syntax"),
        ("if True:\nx", "IndentationError", "expected an indented block"),
        ("x = '\ud800'", "UnicodeEncodeError", "surrogates"),
        ("1\0", None, "null byte"),
        ("try:\n    1/0\nexcept Exception as e:\n    raise KeyError('k') from e", "KeyError", "direct cause"),
        ("raise SystemExit(3)", "SystemExit", "SystemExit: 3"),
        ("import sys; sys.exit('bye')", "SystemExit", "bye"),
        ("exit()", "SystemExit", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", "KeyboardInterrupt"),
        ("class E(Exception):\n  def __str__(self): raise E\nraise E", "E", "E"),
        ("class R:\n  def __repr__(self): raise KeyError('r')\nR()", "KeyError", "__repr__"),
        ("class R:\n  def __repr__(self): return 5\nR()", "TypeError", "__repr__ returned non-string"),
        ("input('name? ')", "EOFError", "EOF"),
        ("import sys; print(repr(sys.stdin.read()))\nraise EOFError", "EOFError", ""),
        ("def f(): f()\nf()", "RecursionError", "repeated"),
        ("[0] * 10**14", "MemoryError", "MemoryError"),
        ("import asyncio\nasync def f(): raise ValueError('in')\nawait f()", "ValueError", "in f"),
        (
            "class M(type):\n  @property\n  def __name__(c): raise E\nclass E(Exception, metaclass=M): pass\nraise E",
            None,
            "",
        ),
    ],
)
async def test_whatever_is_raised_is_told(python: PythonSession, code: str, exception: str | None, said: str):
    result = await python.run(code)
    assert result.error
    assert said in result.error
    assert DRIVER not in result.error
    assert result.exception == exception or exception is None
    assert result.exception
    assert not result.restarted
    assert await is_well(python)


async def test_await_may_stand_outside_of_functions(python: PythonSession):
    await python.run("import asyncio\nqueue = asyncio.Queue()\nasync def put():\n    await queue.put(5)")
    assert await value(python, "task = asyncio.create_task(put())\nawait queue.get()") == "5"
    assert await value(python, "await asyncio.sleep(0, 7)") == "7"
    assert await value(python, "async with asyncio.Lock() as lock:\n    x = 8\nx") == "8"
    assert await value(python, "asyncio.run(asyncio.sleep(0, 9))") == "9"


async def test_threads_run_on(python: PythonSession):
    await python.run(
        "import threading\n"
        "go, gone = threading.Event(), threading.Event()\n"
        "def work():\n    go.wait()\n    print('from the thread')\n    gone.set()\n"
        "threading.Thread(target=work).start()"
    )
    result = await python.run("go.set()\ngone.wait(20)")
    assert (result.value, result.stdout) == ("True", "from the thread\n")


async def test_code_and_values_may_be_large(python: PythonSession):
    code = "".join(f"a{number} = {number}\n" for number in range(80_000)) + "a79999"
    assert len(code) > MIB
    assert (await python.run(code, timeout=50.0)).value == "79999"
    result = await python.run("'x' * 3_000_000", output_limit=4 * MIB)
    assert result.value == repr("x" * 3_000_000)
    assert not result.truncated
    assert await is_well(python)


async def test_what_is_too_long_is_cut_in_the_middle(python: PythonSession):
    code = "import sys; print('o' * 5000); print('e' * 5000, file=sys.stderr)\n'v' * 5000"
    result = await python.run(code, output_limit=100)
    assert result.truncated
    assert "4902 characters left out" in (result.value or "")
    assert "4901 bytes left out" in result.stdout
    assert "4901 bytes left out" in result.stderr
    result = await python.run("raise ValueError('x' * 5000)", output_limit=100)
    assert result.truncated
    assert "characters left out" in (result.error or "")
    assert await is_well(python)


async def test_a_flood_of_output_ends_the_code(python: PythonSession):
    await python.run("kept = 1")
    result = await python.run("while True: print('x' * 100_000)", output_limit=1000, timeout=50.0)
    assert result.limit == "output"
    assert len(result.stdout) < 2000
    assert await value(python, "kept") == "1"


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(100)",
        "import subprocess; subprocess.run(['sleep', '100'])",
        "import os; os.system('sleep 100; sleep 100; sleep 100'); 1 / 0",
        "import threading; threading.Event().wait()",
        "import asyncio; await asyncio.sleep(100)",
        "import asyncio; asyncio.run(asyncio.sleep(100))",
        "class R:\n  def __repr__(self):\n    while True: pass\nR()",
        "class E(Exception):\n  def __str__(self):\n    while True: pass\nraise E",
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\nwhile True: pass",
        "import sys\nclass Out:\n  def flush(self):\n    while True: pass\nsys.stdout = Out()",
        "import asyncio\nasync def f():\n  while True:\n    try: await asyncio.sleep(100)\n"
        "    except BaseException: pass\nawait f()",
        "9 ** 9 ** 9",
    ],
)
async def test_the_time_limit_interrupts_and_keeps_variables(python: PythonSession, code: str):
    await python.run("kept = 5")
    started = time.monotonic()
    result = await python.run(code, timeout=0.3)
    assert (result.limit, result.restarted) == ("time", False), result
    assert result.exception
    assert DRIVER not in (result.error or "")
    assert time.monotonic() - started < 10
    assert await value(python, "kept") == "5"


@pytest.mark.parametrize(
    "code",
    [
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        "import time\nwhile True:\n  try: time.sleep(100)\n  except BaseException: pass",
        "import os, signal; signal.signal(2, signal.SIG_IGN); os.kill(os.getpid(), signal.SIGSTOP)\nwhile True: pass",
        "import itertools; all(itertools.repeat(1))",
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
    ],
)
async def test_code_that_does_not_yield_has_python_started_anew(python: PythonSession, code: str):
    await python.run("lost = 5")
    result = await python.run("print('before')\n" + code, timeout=0.3)
    assert (result.limit, result.restarted, result.stdout) == ("time", True, "before\n"), result
    assert "lost" in (result.error or "")
    assert (await python.run("lost")).exception == "NameError"
    assert await is_well(python)


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import os; os._exit(3)", "exit status 3"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
        ("import os; os.abort()", "SIGABRT"),
        ("import os; os.closerange(0, 200)", ""),
        ("import os; os.execvp('true', ['true'])", "exit status 0"),
        ("import os, subprocess; subprocess.Popen(['sleep', '100']); os._exit(4)", "exit status 4"),
    ],
)
async def test_code_that_ends_python_has_it_started_anew(python: PythonSession, code: str, how: str):
    await python.run("lost = 5")
    result = await python.run("print('before')\n" + code, timeout=20.0)
    assert (result.limit, result.restarted, result.stdout) == (None, True, "before\n"), result
    assert how in (result.error or "")
    assert not result.ok
    assert (await python.run("lost")).exception == "NameError"
    assert await is_well(python)


@pytest.mark.parametrize("backend", ISOLATING)
async def test_code_that_uses_up_the_memory_says_so(backend: str):
    spec = SandboxSpec(limits=Limits(memory=64 * MIB))
    async with fresh_sandbox(backend, spec) as sandbox:
        python = await sandbox.python()
        result = await python.run("hog = [bytearray(2**20) for _ in range(1000)]", timeout=30.0)
        # Python is told by a limit of its process, or ended by one of the whole sandbox.
        assert result.exception == "MemoryError" or (result.limit, result.restarted) == ("memory", True), result
        assert await is_well(python)


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.stdout.close(); sys.stderr.close(); sys.stdin.close()",
        "import sys; sys.stdout = sys.stderr = sys.__stdout__ = None",
        "import sys; del sys.stdout, sys.stderr",
        "import sys; sys.stdout = sys.stderr = 5",
        "import os; os.close(0); os.close(1); os.close(2)",
        "import os; null = os.open('/dev/null', os.O_RDWR); os.dup2(null, 1); os.dup2(null, 2); os.dup2(null, 0)",
        "import builtins\nfor name in dir(builtins):\n  if name not in ('setattr', '__build_class__', '__import__'):\n"
        "    setattr(builtins, name, None)",
        "import builtins; del builtins.print, builtins.len, builtins.repr, builtins.isinstance, builtins.BaseException",
        "import json, ast, traceback, linecache, base64\n"
        "for module in (json, json.encoder, ast, traceback, linecache, base64):\n"
        "    for name in [n for n in vars(module) if not n.startswith('__')]: setattr(module, name, None)",
        "import os, signal, io\nos.write = os.read = os.dup2 = os.getpid = signal.signal = io.TextIOWrapper = None",
        "import sys; sys.setrecursionlimit(50)",
        "import sys; sys.settrace(lambda *a: 1 / 0)",
        "import sys; sys.setprofile(lambda *a: 1 / 0)",
        "import signal; signal.signal(signal.SIGALRM, lambda *a: 1 / 0); signal.setitimer(signal.ITIMER_REAL, 0.01)",
        "globals().clear()",
        "import sys; sys.modules['__main__'] = None; sys.path.clear(); sys.meta_path.clear()",
        "import sys; sys.displayhook = sys.excepthook = None",
        "import gc; gc.disable(); gc.freeze()",
        "import os; os.environ.clear(); os.chdir('/')",
        "import threading; threading.Thread(target=lambda: 1 / 0).start()",
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))",
    ],
)
async def test_nothing_that_code_does_to_its_process_gets_calls_out_of_step(python: PythonSession, code: str):
    first = await python.run(code, timeout=20.0)
    assert first.limit is None
    for number in range(3):
        result = await python.run(f"import os; os.write(1, b'{number}'); {number} + 10", timeout=20.0)
        assert result.limit is None
        if not result.restarted:
            assert (result.stdout, result.value) == (str(number), str(number + 10)) or result.exception
    await python.run("raise Exception")


async def test_output_that_mimics_an_answer_is_output(python: PythonSession):
    code = r"import os; os.write(1, b'\x1eabc 0 3\n.{}\x1e\x1e'); os.write(2, b'\x1eabc\n'); 5"
    result = await python.run(code)
    assert (result.value, result.stdout, result.stderr) == ("5", "\x1eabc 0 3\n.{}\x1e\x1e", "\x1eabc\n")
    assert await is_well(python)


async def test_an_answer_that_code_forges_does_no_harm(python: PythonSession):
    # The nonce of the call can be found in the driver's frames.
    forge = (
        "import sys, os\n"
        "frame = sys._getframe()\n"
        "while 'nonce' not in frame.f_locals: frame = frame.f_back\n"
        "nonce = frame.f_locals['nonce']\n"
        "def forge(payload):\n"
        "    os.write(1, b'\\x1e%s 0 %d\\n%s' % (nonce, len(payload), payload)); os.write(2, b'\\x1e%s\\n' % nonce)\n"
    )
    for payload in ("b'.nonsense'", "b'.' + b'[' * 4000", "b'?'", "b''", "b'.{}'", "b'.5'", "b'.{\"value\":5}'"):
        result = await python.run(forge + f"forge({payload})", timeout=20.0)
        assert result.restarted, result
        assert await is_well(python)
    result = await python.run(
        forge
        + 'forge(b\'.{"value":"\\\\ud800","error":null,"exception":null,"truncated":1,"images":[]}\')\nos._exit(0)'
    )
    assert result.value == "?"
    assert (await python.run("1")).restarted
    assert await is_well(python)


async def test_a_fork_that_is_left_running_answers_nothing(python: PythonSession):
    code = "import os\npid = os.fork()\nif pid: status = os.waitpid(pid, 0)[1]\nelse: print('child')\npid"
    result = await python.run(code)
    assert (result.stdout, result.error) == ("child\n", None)
    assert await value(python, "status") == "0"
    result = await python.run("if not os.fork(): raise ValueError\nos.wait()[1]")
    assert result.value == "256"
    assert await is_well(python)


async def test_other_processes_can_write_while_a_long_answer_is_given(python: PythonSession):
    await python.run("import subprocess; noise = subprocess.Popen(['sh', '-c', 'while :; do echo nnnnnnnn; done'])")
    for _ in range(5):
        result = await python.run("'v' * 200_000", output_limit=MIB)
        assert result.value == repr("v" * 200_000)
    await python.run("noise.kill(); noise.wait()")
    assert set((await python.run("print()")).stdout) <= set("n\n")
    assert await is_well(python)


async def test_what_runs_on_writes_to_the_next_piece(python: PythonSession):
    await python.run("import subprocess; p = subprocess.Popen('read line; echo late', shell=True, stdin=-1)")
    assert (await python.run("p.communicate(b'\\n'); None")).stdout == "late\n"


async def test_modules_come_from_the_working_folder_but_not_those_of_the_session(sandbox: Sandbox):
    for name in ("json", "ast", "traceback", "binascii", "fcntl", "io", "types", "_signal", "importlib"):
        await sandbox.write(f"{name}.py", "raise SystemExit('shadowed')")
    await sandbox.write("own.py", "answer = 42")
    python = await sandbox.python()
    assert await value(python, "import own; own.answer") == "42"
    await python.run("import os; os._exit(0)")
    assert await value(python, "import own; own.answer") == "42"


async def test_pythons_own_name_for_itself_is_found_whatever_way_it_takes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    # As of one that was started as `../bin/python`, from a folder that the sandbox has not.
    monkeypatch.setattr(sys, "executable", f"{tmp_path}{'/..' * len(tmp_path.parents)}{sys.executable}")
    async with fresh_sandbox("bubblewrap", SandboxSpec(mounts=interpreter_mounts())) as sandbox:
        python = await sandbox.python(executable=sys.executable)
        assert await value(python, "import gymnasium") is None


async def test_features_of_the_future_last(python: PythonSession):
    await python.run("from __future__ import annotations")
    assert await value(python, "def f(x: nothing): pass\nf.__annotations__") == "{'x': 'nothing'}"


async def test_calls_take_turns(python: PythonSession):
    results = await asyncio.gather(*(python.run(f"print({number}); {number}") for number in range(20)))
    assert [(result.value, result.stdout) for result in results] == [(str(n), f"{n}\n") for n in range(20)]


async def test_a_cancelled_call_is_stopped_and_variables_are_kept(python: PythonSession):
    await python.run("kept = 5")
    call = asyncio.create_task(python.run("while True: pass"))
    await asyncio.sleep(0.1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await value(python, "kept") == "5"
    call = asyncio.create_task(python.run("import signal; signal.signal(2, signal.SIG_IGN)\nwhile True: pass"))
    await asyncio.sleep(0.1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    result = await python.run("kept")
    assert (result.exception, result.restarted) == ("NameError", True)
    assert await is_well(python)


async def test_sessions_know_nothing_of_each_other(sandbox: Sandbox):
    first, second = await sandbox.python(), await sandbox.python()
    await first.run("x = 1")
    assert (await second.run("x")).exception == "NameError"
    await second.run("import os; os._exit(1)")
    assert await value(first, "x") == "1"


async def test_a_closed_session_is_over_and_so_is_what_it_ran(sandbox: Sandbox):
    python = await sandbox.python()
    pid = await value(python, "import subprocess; subprocess.Popen(['sleep', '1000']).pid")
    runs = f"grep -q '^State:.[^ZX]' /proc/{pid}/status"
    assert (await sandbox.run(runs)).ok
    await python.close()
    await python.close()
    assert not (await sandbox.run(runs)).ok
    with pytest.raises(InvalidArgument, match="closed"):
        await python.run("1")


async def test_a_python_that_is_not_there_is_named(sandbox: Sandbox):
    with pytest.raises(SandboxUnavailable, match=r"no-such-python.*executable=.*not found"):
        await sandbox.python(executable="no-such-python")
    with pytest.raises(SandboxUnavailable, match="could not be started"):
        await sandbox.python(executable="true")
    with pytest.raises(InvalidArgument, match="executable"):
        await sandbox.python(executable="a\0b")


@pytest.mark.parametrize("limits", [{"timeout": 0}, {"timeout": float("inf")}, {"output_limit": -1}])
async def test_limits_that_are_none_are_refused(python: PythonSession, limits: dict[str, float]):
    with pytest.raises(InvalidArgument):
        await python.run("1", **limits)  # type: ignore[arg-type]


def pictures(result: PythonResult) -> list[bytes]:
    assert all(image.media_type == "image/png" for image in result.images)
    return [image.data for image in result.images]


async def test_figures_are_shown_once_and_closed(plotting: PythonSession):
    code = "plt.plot([1, 2])\nplt.show()\nplt.figure()\nplt.plot([2, 1])\nlen(plt.get_fignums())"
    result = await plotting.run(code, timeout=50.0)
    assert result.ok, result
    assert (result.value, result.stderr) == ("1", "")
    first, second = pictures(result)
    assert first.startswith(b"\x89PNG\r\n")
    assert second.startswith(b"\x89PNG\r\n")
    assert first != second
    result = await plotting.run("plt.get_fignums()")
    assert (result.value, result.images) == ("[]", ())


async def test_figures_are_bounded_and_those_that_fail_are_told(plotting: PythonSession):
    result = await plotting.run("for _ in range(18): plt.figure(figsize=(1, 1))", timeout=50.0)
    assert (len(result.images), result.truncated) == (16, True)
    code = "plt.figure(); plt.title(r'$\\nonsense$'); plt.figure(figsize=(1, 1)); 1/0"
    result = await plotting.run(code, timeout=50.0)
    assert len(result.images) == 1
    assert "nonsense" in result.stderr
    assert DRIVER not in result.stderr
    assert result.exception == "ZeroDivisionError"
    code = (
        "import numpy as np; noise = np.random.randint(0, 255, (900, 900, 3), np.uint8)\n"
        "for _ in range(14): plt.figure(figsize=(9, 9)); plt.imshow(noise)"
    )
    result = await plotting.run(code, timeout=50.0)
    assert 0 < sum(map(len, pictures(result))) <= 8 * MIB
    assert result.truncated
    assert await is_well(plotting)
