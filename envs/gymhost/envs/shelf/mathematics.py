"""Math: problems with exact answers, and a calculator."""

from collections.abc import Sequence

from gymhost.envs.rubrics import rubric
from gymhost.envs.shelf.calculator import FUNCTIONS, CalculatorError, calculate
from gymhost.envs.shelf.math_answers import MEANT, AnswerRefused, Form, as_latex, equal, load
from gymhost.envs.shelf.math_problems import KINDS, problem
from gymhost.envs.tasks import Task, Tasks
from gymhost.envs.toolenv import ToolEnv
from gymhost.envs.tools import ToolError, tool

_TRAINING_TASKS = 100_000
_TEST_TASKS = 1_000
_LARGEST_DECIMAL = 10**15


class Math(ToolEnv):
    """Solve a mathematical problem: a word problem, an equation, one about roots or polynomials.

    The reward is 1 for an answer that math-verify finds equal to the right one. The first answer counts, but one that
    has not the form that is asked for, such as an expression that is not worked out, is refused and may be given anew.
    """

    system = "You solve mathematical problems. Use the calculator rather than to reckon in your head."
    public_fields = ("kind", "question")
    max_turns = 20
    max_calls = 40
    expert = "gymhost.envs.shelf.math_expert:solving"
    cheats = (
        "gymhost.envs.shelf.math_expert:everything_at_once",
        "gymhost.envs.shelf.math_expert:nothing",
        "gymhost.envs.shelf.math_expert:question_repeated",
        "gymhost.envs.shelf.math_expert:claimed_victory",
        "gymhost.envs.shelf.math_expert:tower_of_powers",
    )

    def __init__(
        self, *, kinds: Sequence[str] = tuple(KINDS), task: int | None = None, split: str | None = None
    ) -> None:
        """Makes the environment.

        Args:
            kinds: The kinds of problems, of `math_problems.KINDS`.
            task: The task to play unless a reset says otherwise.
            split: The split that it is in.

        Raises:
            ModuleNotFoundError: math-verify is not installed.
            ValueError: There is no such kind of problems.
        """
        unknown = [kind for kind in kinds if kind not in KINDS]
        if unknown or not kinds:
            raise ValueError(f"kinds are some of {', '.join(KINDS)}, not {', '.join(unknown) or 'none'}")
        self.kinds = tuple(kinds)
        super().__init__(task=task, split=split)
        load()

    def tasks(self) -> dict[str, Tasks]:
        """Returns the splits: no question is in both."""

        def of(held_out: bool, size: int) -> Tasks:
            return Tasks.generate(lambda number: self._task(number, held_out), size)

        return {"train": of(False, _TRAINING_TASKS), "test": of(True, _TEST_TASKS)}

    def setup(self, task: Task) -> None:
        """Forgets what was answered."""
        self._right: str = task["answer"]
        self._form: Form = task["form"]
        self._answer: str | None = None

    def prompt(self, task: Task) -> str:
        """Asks the question."""
        return f"{task['question']}\n\nCall answer with {MEANT[self._form]} and nothing else: the first answer counts."

    @tool(
        description=f"Works out an arithmetic expression exactly: numbers, + - * / // % ** and {', '.join(FUNCTIONS)}."
    )
    def calculator(self, expression: str) -> str:
        """Works out an arithmetic expression.

        Args:
            expression: Such as (3 + 4)**2 / 5.
        """
        try:
            value = calculate(expression)
        except CalculatorError as error:
            raise ToolError(str(error)) from None
        if value.denominator == 1 or abs(value) > _LARGEST_DECIMAL:
            return str(value)
        return f"{value} (about {float(value):.12g})"

    @tool
    def answer(self, answer: str) -> str:
        """Gives the answer, which ends the episode.

        Args:
            answer: The answer, plain or as LaTeX, and nothing else.
        """
        try:
            self._answer = as_latex(answer, self._form)
        except AnswerRefused as refused:
            raise ToolError(str(refused)) from None
        self.finish()
        return "Thank you."

    @rubric
    def correct(self) -> float:
        """1 where the answer equals the right one."""
        return float(self._answer is not None and equal(self._right, self._answer))

    def _task(self, number: int, held_out: bool) -> Task:
        made = problem(number, self.kinds, held_out=held_out)
        return {"kind": made.kind, "question": made.question, "answer": made.answer, "form": made.form}
