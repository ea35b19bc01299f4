r"""What runs a Python session in a sandbox: a program that is sent there as text, and never imported here.

It runs with any Python from 3.8 on, and has to stand whatever the code that it runs does to its own process. So what it
needs it takes at the start, under names of its own; its `__builtins__` are a copy (see `python_session`); and its ends
of the pipes are duplicates, so that standard input, output and error can be closed or replaced.

Requests are lines: `NONCE hello`, `NONCE run LENGTH LIMIT` with so many bytes of code after it, and `NONCE more`. What
comes back on standard output is a piece of JSON: `\x1eNONCE 0 LENGTH`, and on the next line `.` before the last piece
and `+` before the others, for which `more` asks. Each is written at once, and is small enough that no process that the
code left running can write into it. A line `\x1eNONCE` on standard error follows.
"""

from __future__ import annotations
import __future__ as futures

import ast
import binascii
import builtins
import fcntl
import importlib.util
import io
import json.encoder
import linecache
import os
import sys
import traceback
import types
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    import signal as _signal
    from collections.abc import Coroutine
    from typing import Any
else:
    import _signal  # `signal` is written in Python, and so is at the mercy of the code.

PIECE = 4096 - 64  # Up to 4096 bytes are written to a pipe as one.
MOST_IMAGES = 16
IMAGE_BYTES = 8 * 2**20
OURS, CELL = "<gymhost>", "<cell "
LEAST_DEPTH = 1000

read, write, dup2, getpid, exit_now = os.read, os.write, os.dup2, os.getpid, os._exit
set_handler, set_timer, interrupt = _signal.signal, _signal.setitimer, _signal.default_int_handler
set_trace, set_profile, get_depth, set_depth = (
    sys.settrace,
    sys.setprofile,
    sys.getrecursionlimit,
    sys.setrecursionlimit,
)
name_of = vars(type)["__name__"].__get__
quote, base64 = json.encoder.encode_basestring_ascii, binascii.b2a_base64
Expr, Expression, Traceback = ast.Expr, ast.Expression, traceback.TracebackException
Text, Raw, Bytes = io.TextIOWrapper, io.FileIO, io.BytesIO
modules, lines = sys.modules, linecache.cache
SIGINT, ITIMER_REAL, ONLY_TREE = _signal.SIGINT, _signal.ITIMER_REAL, ast.PyCF_ONLY_AST
NOTHING = ast.Expression(ast.Constant(None, lineno=1, col_offset=0))
COROUTINE = 0x80  # Of code that awaits.
FUTURES: int = sum({getattr(futures, name).compiler_flag for name in futures.all_feature_names})


def ignore(*_: object) -> None:
    """Takes an interrupt that came too late."""


class _Session:
    def __init__(self) -> None:
        self.pid = getpid()
        # Above the descriptors that programs commonly use, and not inherited by those that the code starts.
        nothing = os.open("/dev/null", os.O_RDONLY)
        self.requests, self.output, self.errors, self.nothing = [
            fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10) for descriptor in (0, 1, 2, nothing)
        ]
        os.close(nothing)
        self.received = b""
        self.payload, self.sent = b"", 0
        self.cells = 0
        self.flags: int = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self.loop: asyncio.AbstractEventLoop | None = None
        self.images: list[bytes] = []
        self.truncated = False
        self.main = types.ModuleType("__main__")
        vars(self.main)["__builtins__"] = builtins
        self.replaced = modules["__main__"]  # It would be emptied if nobody held it.
        modules["__main__"] = self.main
        sys.meta_path.insert(0, self)
        sys.argv[:] = [""]
        # For the code alone: this neither needs nor imports it.
        os.environ.setdefault("MPLBACKEND", "Agg")
        sys.stdout = sys.stderr = None
        self.restore()
        self.renew()

    def serve(self) -> None:
        set_handler(SIGINT, ignore)
        while True:
            while b"\n" not in self.received:
                self.receive()
            line, _, self.received = self.received.partition(b"\n")
            nonce, kind, *numbers = line.split()
            if kind == b"run":
                self.payload, self.sent = self.run(self.take(int(numbers[0])), int(numbers[1])), 0
            elif kind == b"hello":
                self.payload, self.sent = b"%d" % self.pid, 0
            self.answer(nonce)

    def take(self, length: int) -> str:
        while len(self.received) < length:
            self.receive()
        code, self.received = self.received[:length], self.received[length:]
        return code.decode("utf-8", "surrogatepass")

    def receive(self) -> None:
        more = read(self.requests, 2**20)
        if not more:
            exit_now(0)
        self.received += more

    def answer(self, nonce: bytes) -> None:
        piece = self.payload[self.sent : self.sent + PIECE]
        self.sent += len(piece)
        mark = b"+" if self.sent < len(self.payload) else b"."
        write(self.output, b"\x1e%s 0 %d\n%s%s" % (nonce, len(piece) + 1, mark, piece))
        write(self.errors, b"\x1e%s\n" % nonce)

    # Code

    def run(self, code: str, limit: int) -> bytes:
        value = error = exception = None
        self.images, self.truncated = [], False
        try:
            set_handler(SIGINT, interrupt)
            try:
                result = self.evaluate(code)
                if result is not None:
                    value = self.cut(repr(result), limit)
                result = None
            except BaseException as raised:  # noqa: BLE001 - also SystemExit, and what a time limit raises
                exception = name_of(type(raised))
                error = self.cut(self.describe(raised), limit)
            if exception != "KeyboardInterrupt":
                self.take_figures()
            self.renew()
            set_handler(SIGINT, ignore)
        except BaseException as raised:  # noqa: BLE001 - an interrupt at the very end, or what can't be described
            set_handler(SIGINT, ignore)
            exception = exception or name_of(type(raised))
            error = error or exception + "\n"
            sys.stdout = sys.stderr = None  # Perhaps one of them is what took so long.
            self.renew()
        if getpid() != self.pid:
            exit_now(0 if exception is None else 1)  # A fork that the code left to run on.
        set_trace(None)
        set_profile(None)
        set_timer(ITIMER_REAL, 0)
        if get_depth() < LEAST_DEPTH:
            set_depth(LEAST_DEPTH)
        self.restore()
        try:
            return self.encode(value, error, exception)
        except MemoryError:
            self.images, self.truncated = [], True
            return self.encode(value, error, exception)

    def evaluate(self, code: str) -> object:
        self.cells += 1
        name = f"{CELL}{self.cells}>"
        lines[name] = (len(code), None, [line + "\n" for line in code.split("\n")], name)
        tree = compile(code, name, "exec", self.flags | ONLY_TREE, True)
        last: Any = tree.body.pop() if tree.body and isinstance(tree.body[-1], Expr) else None
        body = compile(tree, name, "exec", self.flags, True)
        self.flags |= body.co_flags & FUTURES
        end = compile(Expression(last.value) if last else NOTHING, name, "eval", self.flags, True)
        if (body.co_flags | end.co_flags) & COROUTINE:
            return self.wait(self.evaluate_awaiting(body, end))
        eval(body, vars(self.main))
        return eval(end, vars(self.main))

    async def evaluate_awaiting(self, *codes: types.CodeType) -> object:
        result: Any = None
        for code in codes:
            result = eval(code, vars(self.main))
            if code.co_flags & COROUTINE:
                result = await result
        return result

    def wait(self, coroutine: Coroutine[Any, Any, object]) -> object:
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        task = self.loop.create_task(coroutine)
        try:
            return self.loop.run_until_complete(task)
        except KeyboardInterrupt:
            try:
                if not task.done():
                    task.cancel()
                    self.loop.run_until_complete(asyncio.wait([task]))
            except KeyboardInterrupt:
                pass
            raise

    def describe(self, raised: BaseException) -> str:
        trace = raised.__traceback__
        while trace is not None and not trace.tb_frame.f_code.co_filename.startswith(CELL):
            trace = trace.tb_next
        told = Traceback(type(raised), raised, trace)
        told.stack[:] = [frame for frame in told.stack if frame.filename != OURS]
        return "".join(told.format())

    def cut(self, text: str, limit: int) -> str:
        left_out = len(text) - limit
        if left_out <= 0:
            return text
        self.truncated = True
        head = limit // 2
        return f"{text[:head]}\n[... {left_out} characters left out ...]\n{text[head + left_out :]}"

    def encode(self, value: str | None, error: str | None, exception: str | None) -> bytes:
        texts = {"value": value, "error": error, "exception": exception}
        parts = [f'"{key}":{"null" if text is None else quote(text)}' for key, text in texts.items()]
        parts.append(f'"truncated":{"true" if self.truncated else "false"}')
        images = [f'"{base64(data, newline=False).decode()}"' for data in self.images]
        parts.append(f'"images":[{",".join(images)}]')
        self.images = []
        return f"{{{','.join(parts)}}}".encode()

    # Streams

    def restore(self) -> None:
        dup2(self.nothing, 0)
        dup2(self.output, 1)
        dup2(self.errors, 2)

    def renew(self) -> None:
        for name, descriptor in (("stdout", 1), ("stderr", 2)):
            try:
                stream = getattr(sys, name)
                stream.flush()
                broken = stream.closed
            except Exception:  # noqa: BLE001 - whatever it was replaced by
                broken = True
            if broken:
                raw = Raw(descriptor, "w", closefd=False)
                # Written at once, so that it comes in order with what other programs write.
                stream = Text(raw, encoding="utf-8", errors="backslashreplace", newline="\n", write_through=True)
                setattr(sys, name, stream)
                setattr(sys, f"__{name}__", stream)

    # Figures of matplotlib

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Sees to it that `show` gives the figures to the session, once the code imports pyplot: nothing else does."""
        if name != "matplotlib.pyplot":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def show(*_: object, **__: object) -> None:
                """Shows all figures: they are results now, and closed."""
                self.take_figures()

            def load_and_change(module: Any) -> None:
                load(module)
                module.show = show

            spec.loader.exec_module = load_and_change
        return spec

    def take_figures(self) -> None:
        pyplot: Any = modules.get("matplotlib.pyplot")
        if not hasattr(pyplot, "get_fignums"):
            return
        for number in pyplot.get_fignums():
            figure = pyplot.figure(number)
            file = Bytes()
            try:
                if len(self.images) < MOST_IMAGES:
                    figure.savefig(file, format="png", bbox_inches="tight")
            except Exception as raised:  # noqa: BLE001 - whatever it is, others can still be drawn
                sys.stderr.write(self.describe(raised))
            finally:
                pyplot.close(figure)
            data = file.getvalue()
            if len(self.images) == MOST_IMAGES or sum(map(len, self.images)) + len(data) > IMAGE_BYTES:
                self.truncated = True
            elif data:
                self.images.append(data)


if __name__ == "gymhost_driver":
    # From here on modules may come from the working folder; none of those above was to.
    sys.path.insert(0, "")
    _Session().serve()
