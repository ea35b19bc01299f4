"""Runs a solution of a programming problem and tells what it returned. It runs in a sandbox, and is no part of gymhost.

Its standard input is a JSON object with the solution's `source`, the `function` to call (none for a program) and the
`inputs`. It prints a JSON list: for each input the answer's text, or null. It knows no right answer.
"""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from typing import Any

ASKED: Any = json.load(sys.stdin)
SECONDS = 2


def call(names: Any, given: Any) -> str:
    """Returns the text of a function's answer."""
    return repr(names[ASKED["function"]](*given))


def run(given: str) -> str:
    """Returns what a program prints that ends well."""
    command = [sys.executable, "-I", "-S", "-c", ASKED["source"]]
    done = subprocess.run(command, input=given.encode(), stdout=subprocess.PIPE, timeout=SECONDS, check=True)
    return done.stdout.decode().rstrip()


def late(*_: Any) -> None:
    """Ends an answer that takes too long."""
    raise TimeoutError


signal.signal(signal.SIGALRM, late)
answers: Any = []
names: Any = {"__name__": "solution"}
try:
    code = compile(ASKED["source"], "solution.py", "exec")
    if ASKED["function"]:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, names)
except BaseException:  # noqa: BLE001 - whatever it raises, it has no answers
    answers = [None] * len(ASKED["inputs"])
else:
    for given in ASKED["inputs"]:
        signal.alarm(2 * SECONDS)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                answers.append(call(names, given) if ASKED["function"] else run(given))
        except BaseException:  # noqa: BLE001 - it has no answer to this
            answers.append(None)
        signal.alarm(0)
os.write(1, b"\n" + json.dumps(answers).encode())
