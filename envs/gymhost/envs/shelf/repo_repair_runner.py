"""Runs the checks of a repair and tells what came out. It runs in a sandbox, and is no part of gymhost.

Its standard input is a JSON object with the name of the `package`, its `modules` and the `checks`, code that sets
`result`. It prints a JSON list: for each check what it set, as text, or what was raised. It knows no right answer.
"""

import contextlib
import importlib
import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

ASKED: Any = json.load(sys.stdin)
SECONDS = 3


def late(*_: Any) -> None:
    """Ends a check that takes too long."""
    raise TimeoutError


signal.signal(signal.SIGALRM, late)
# After the standard library, which no file of the repository stands in for; and what was compiled before is not used.
sys.path.append(str(Path.cwd()))
sys.pycache_prefix = "/nowhere"
answers: Any = []
for check in ASKED["checks"]:
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            names = {name: importlib.import_module(f"{ASKED['package']}.{name}") for name in ASKED["modules"]}
            exec(check, names)
            answers.append(repr(names["result"]))
    except BaseException as error:  # noqa: BLE001 - it is the answer
        answers.append(f"raised {type(error).__name__}")
    signal.alarm(0)
os.write(1, b"\n" + json.dumps(answers).encode())
