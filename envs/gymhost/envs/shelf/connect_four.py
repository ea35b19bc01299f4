"""Connect Four against a scripted opponent."""

from random import Random

from gymhost.envs.rubrics import rubric
from gymhost.envs.shelf.connect_four_board import COLUMNS, ROWS, Board
from gymhost.envs.tasks import Task, Tasks
from gymhost.envs.toolenv import ToolEnv, Turn
from gymhost.envs.tools import ToolError, tool

# The games to test on come after those to train on; in all of them there is a way to win that the expert finds.
_TRAINING_TASKS = 500_000
_TEST_TASKS = 100
_FAULTS = 3
_PROMPT = f"""\
Play Connect Four. The board has {COLUMNS} columns, numbered from 1, and {ROWS} rows. Players take turns to drop a \
disc into a column, where it falls to the lowest free place. Who first has four discs in a row, a column or a \
diagonal, wins.
Your discs are X, your opponent's are O. Move with the tool drop. The third turn or call without a legal move loses.
{{opening}}

{{board}}"""


class ConnectFour(ToolEnv):
    """Connect Four against an opponent that looks a move ahead and otherwise plays at random.

    The opponent wins where it can with its next disc, prevents that you win with yours, and else drops one anywhere.
    The reward is 1 for a win, 0.5 for a draw and 0 for a loss.
    """

    public_fields = ("game", "first")
    max_turns = COLUMNS * ROWS
    expert = "gymhost.envs.shelf.connect_four_expert:search"
    cheats = (
        "gymhost.envs.shelf.connect_four_expert:one_column",
        "gymhost.envs.shelf.connect_four_expert:beside_the_board",
        "gymhost.envs.shelf.connect_four_expert:claimed_victory",
    )

    @classmethod
    def tasks(cls) -> dict[str, Tasks]:
        """Returns the splits: opponents of different seeds; every other game begins with the opponent's move."""
        return {
            "train": Tasks.generate(_task, _TRAINING_TASKS),
            "test": Tasks.generate(lambda index: _task(_TRAINING_TASKS + index), _TEST_TASKS),
        }

    def setup(self, task: Task) -> None:
        """Sets up the board, with the opponent's disc where that begins."""
        self._game: int = task["game"]
        self._board = Board()
        self._faults = 0
        self._result: float | None = None
        if task["first"] == "opponent":
            self._reply()

    def prompt(self, task: Task) -> str:
        """Tells the rules, and how the board looks."""
        opening = "You begin." if task["first"] == "you" else "Your opponent has begun."
        return _PROMPT.format(opening=opening, board=self._board)

    @tool
    def drop(self, column: int) -> str:
        """Drops one of your discs; your opponent answers at once.

        Args:
            column: The column, from 1 on the left to 7.
        """
        if column - 1 not in self._board.free():
            self._fault()
            problem = "is full" if 1 <= column <= COLUMNS else "does not exist"
            raise ToolError(f"column {column} {problem}.{self._fault_ends()}")
        self._board.drop(column - 1, "X")
        if self._board.wins("X"):
            return self._over(1.0, "You win.")
        if not self._board.free():
            return self._over(0.5, "The board is full: a draw.")
        reply = self._reply()
        played = f"Your opponent dropped into column {reply + 1}."
        if self._board.wins("O"):
            return self._over(0.0, f"{played} Your opponent wins.")
        if not self._board.free():
            return self._over(0.5, f"{played} The board is full: a draw.")
        return f"{played}\n\n{self._board}"

    def after_turn(self, turn: Turn) -> str | None:
        """Counts a turn without a valid call as one without a legal move."""
        if turn.valid:
            return None
        self._fault()
        return self._fault_ends().strip() or None

    @rubric
    def result(self) -> float:
        """1 for a win, 0.5 for a draw, 0 for a loss or an unfinished game."""
        return self._result or 0.0

    def _reply(self) -> int:
        # Drawn from the task and the number of discs, so that the same moves are answered in the same way.
        column = opponent(self._board, Random(f"connect four {self._game} {self._board.discs}"))
        self._board.drop(column, "O")
        return column

    def _over(self, result: float, text: str) -> str:
        self._result = result
        self.finish(won=result == 1.0)
        return f"{text}\n\n{self._board}"

    def _fault(self) -> None:
        self._faults += 1
        if self._faults == _FAULTS:
            self._result = 0.0
            self.finish(won=False)

    def _fault_ends(self) -> str:
        return f" You lose: {_FAULTS} turns had no legal move." if self._faults >= _FAULTS else ""


def opponent(board: Board, random: Random) -> int:
    """Returns where the opponent drops its disc: where that wins, else where it prevents a loss, else anywhere."""
    free = board.free()
    for player in ("O", "X"):
        for column in free:
            if board.would_win(column, player):
                return column
    return random.choice(free)


def _task(number: int) -> Task:
    return {"game": number, "first": "you" if number % 2 == 0 else "opponent"}
