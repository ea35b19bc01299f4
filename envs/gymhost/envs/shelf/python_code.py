"""Writing functions and programs in Python."""

import ast
import json
from importlib import resources
from typing import Any, cast

from gymhost.envs.rubrics import rubric
from gymhost.envs.sandbox import CommandResult, Limits, PythonSession, Sandbox, SandboxSpec, create
from gymhost.envs.shelf.python_code_problems import Problem, problem
from gymhost.envs.tasks import Task, Tasks
from gymhost.envs.toolenv import ToolEnv
from gymhost.envs.tools import tool
from gymhost.wire.errors import SandboxLost

__all__ = ["PythonCode"]

_SPEC = SandboxSpec(limits=Limits(memory=256 * 2**20, processes=64, disk=32 * 2**20))
_JUDGE = resources.files("gymhost.envs.shelf").joinpath("python_code_judge.py").read_text(encoding="utf-8")
# Seconds for a try, and for all tests of a solution; and how much of what the tests return is read.
_TRY, _TESTS = 10.0, 30.0
_ANSWERS = 4 * 2**20


class PythonCode(ToolEnv):
    """Write a function, or a program that reads standard input, that passes tests which nobody sees.

    The solution is tested in a sandbox of its own, which is told the inputs alone: what it answers is compared here.
    The reward is 1 where all tests pass.
    """

    system = "You write Python. Try your code with the tool run, and hand it in with the tool submit."
    public_fields = ("seed",)
    max_turns = 12
    expert = "gymhost.envs.shelf.python_code_expert:reference"
    cheats = tuple(
        f"gymhost.envs.shelf.python_code_expert:{name}"
        for name in ("empty", "constant", "examples_alone", "forged", "takes_over")
    )
    _sandbox: Sandbox | None = None
    _python: PythonSession | None = None

    @classmethod
    def tasks(cls) -> dict[str, Tasks]:
        """Returns the splits: problems of other seeds."""
        return {
            "train": Tasks.generate(lambda index: {"seed": f"train {index}"}, 100_000),
            "test": Tasks.generate(lambda index: {"seed": f"test {index}"}, 500),
        }

    def setup(self, task: Task) -> None:
        """Makes the problem."""
        self._problem: Problem = problem(task["seed"])
        self._submitted: str | None = None
        self._passed: int | None = None

    async def teardown(self) -> None:
        """Removes the sandbox."""
        sandbox, self._sandbox, self._python = self._sandbox, None, None
        if sandbox is not None:
            await sandbox.destroy()

    def prompt(self, task: Task) -> str:
        """Tells the problem."""
        return self._problem.text

    @tool(output_limit=8000)
    async def run(self, code: str) -> str:
        """Runs Python in a session whose variables last, and shows what it prints and the value of the last line.

        Args:
            code: The code.
        """
        # Made when it is first needed: who hands in at once needs none.
        if self._sandbox is None:
            self._sandbox = await create(_SPEC)
        if self._python is None:
            self._python = await self._sandbox.python()
        result = await self._python.run(code, timeout=_TRY, output_limit=8000)
        ended = result.limit and f"[ended by its limit of {result.limit}]"
        shown = [part for part in (result.stdout, result.stderr, result.error, result.value, ended) if part]
        return "\n".join(part.rstrip("\n") for part in shown) or "[no output]"

    @tool
    def submit(self, code: str) -> str:
        """Hands in the solution, which ends the episode.

        Args:
            code: All of the code.
        """
        self._submitted = code
        self.finish()
        return "Handed in."

    @rubric
    async def right(self) -> float:
        """1 where all tests pass."""
        return float(await self._tests_passed() == len(self._problem.inputs))

    @rubric(weight=0.0)
    async def share(self) -> float:
        """The share of tests that pass."""
        return await self._tests_passed() / len(self._problem.inputs)

    async def _tests_passed(self) -> int:
        if self._submitted is None:
            return 0
        if self._passed is None:
            kind = self._problem.kind
            asked = {
                "source": self._submitted,
                "function": "" if kind.program else kind.name,
                "inputs": self._problem.inputs,
            }
            answers = await _answers(asked)
            pairs = zip(self._problem.outputs, answers, strict=False)
            self._passed = sum(_equal(wanted, answer, program=kind.program) for wanted, answer in pairs)
        return self._passed


async def _answers(asked: dict[str, Any]) -> list[object]:
    """Returns what a solution answers, tested in a sandbox that nothing else was in."""
    try:
        result = await _test(asked)
    except SandboxLost:
        try:
            result = await _test(asked)
        except SandboxLost:
            return []  # that it happens again is the solution's own doing, which must not make its reward invalid
    last = result.stdout_bytes.rpartition(b"\n")[2]
    try:
        answers: object = json.loads(last)
    except ValueError:
        return []
    return cast("list[object]", answers) if isinstance(answers, list) else []


async def _test(asked: dict[str, Any]) -> CommandResult:
    sandbox = await create(_SPEC)
    try:
        command = ["python3", "-I", "-S", "-c", _JUDGE]
        return await sandbox.run(command, stdin=json.dumps(asked), timeout=_TESTS, output_limit=_ANSWERS)
    finally:
        await sandbox.destroy()


def _equal(wanted: object, answer: object, *, program: bool) -> bool:
    """Whether an answer is the right one; it is data here, and no code of the solution's."""
    if not isinstance(answer, str) or len(answer) > 2 * len(repr(wanted)) + 100:
        return False
    if program:
        return answer == str(wanted).rstrip()
    try:
        value: object = ast.literal_eval(answer)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    return type(value) is type(wanted) and value == wanted
