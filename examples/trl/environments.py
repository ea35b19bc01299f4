"""Environments of TRL's own examples, for `gymhost serve`: those that the shelf does not have as these examples do.

    cd examples/trl
    gymhost serve environments --address 127.0.0.1:50051

Each script of this folder says which example of TRL it follows. Facts are TRL's: which tools there are, and what is
rewarded. The words and the code are gymhost's.
"""

import re
import sqlite3
import time

from gymhost.envs import Task, Tasks, ToolEnv, ToolError, register, rubric, tool
from gymhost.envs.shelf.textarena import TextArena


class Increment(ToolEnv):
    """A counter is to be brought to a number between 1 and 6."""

    tasks = {"train": [{"target": target} for target in range(1, 7)]}
    max_turns = 10

    def setup(self, task: Task) -> None:
        self.counter = 0
        self.target: int = task["target"]

    def prompt(self, task: Task) -> str:
        return f"The counter is at 0. Bring it to {task['target']}."

    @tool
    def increment(self, step: int) -> int:
        """Adds to the counter.

        Args:
            step: What is added; it may be negative.
        """
        self.counter += step
        return self.counter

    @rubric
    def reached(self) -> float:
        """1 where the counter is at its target in the end."""
        return float(self.counter == self.target)


class Echo(ToolEnv):
    """Says what it is told. What that should be is the dataset's to say."""

    max_turns = 10

    def setup(self, task: Task) -> None:
        self.said = ""

    def prompt(self, task: Task) -> str:
        return "Use the tool echo."

    @tool
    def echo(self, message: str) -> str:
        """Says a message back.

        Args:
            message: What is to be said.
        """
        self.said = message
        return message

    @rubric(high=10.0)
    def length(self) -> float:
        """A tenth for each character of the last message, up to 100 of them."""
        return 0.1 * min(100, len(self.said))


class Catch(ToolEnv):
    """A ball falls down a grid of 10 rows and 5 columns, and a paddle in the last row is to be below it."""

    rows, columns = 10, 5
    tasks = {"train": Tasks.generate(lambda index: {"column": index % 5})}

    def setup(self, task: Task) -> None:
        self.row = 0
        self.ball: int = task["column"]
        self.paddle = self.columns // 2

    def prompt(self, task: Task) -> str:
        return (
            f"You play Catch on a grid of {self.rows} rows and {self.columns} columns. A ball falls a row with each"
            f" call of a tool. Your paddle is in row {self.rows}: be in the ball's column when it comes there.\n\n"
            + self._view()
        )

    @tool
    def move(self, direction: str) -> str:
        """Moves the paddle by a column while the ball falls.

        Args:
            direction: Either left or right.
        """
        if direction not in ("left", "right"):
            raise ToolError(f"a direction is left or right, not {direction!r}")
        self.paddle = min(self.columns - 1, max(0, self.paddle + (1 if direction == "right" else -1)))
        return self._fall()

    @tool
    def stay(self) -> str:
        """Lets the ball fall, and the paddle where it is."""
        return self._fall()

    @rubric
    def caught(self) -> float:
        """1 for a ball that was caught; nothing for one that is still falling."""
        return float(self.row == self.rows - 1 and self.ball == self.paddle)

    def _fall(self) -> str:
        self.row += 1
        if self.row == self.rows - 1:
            self.finish()
        return self._view()

    def _view(self) -> str:
        distance = self.ball - self.paddle
        side = "right" if distance > 0 else "left"
        where = f"{abs(distance)} to the {side} of" if distance else "above"
        return f"The ball is in row {self.row + 1}, column {self.ball + 1}: {where} the paddle."


class Sudoku(TextArena):
    """TextArena's Sudoku with a tool of three numbers, and with rewards for what leads to a solution."""

    def __init__(self, *, game: str = "Sudoku-v0-easy", task: int | None = None, split: str | None = None) -> None:
        super().__init__(game=game, task=task, split=split)

    def setup(self, task: Task) -> None:
        super().setup(task)
        self.moves: list[tuple[int, int, int]] = []
        self.valid = 0
        self.empty = self.first_empty = 0

    def prompt(self, task: Task) -> str:
        text = self._news()
        self.empty = self.first_empty = _empty_cells(text) or 0
        return f"{text}\n\nFill a cell with the tool place."

    def act(self, action: str) -> str:  # no tool of this environment: `place` makes the moves
        return super().act(action)

    @tool
    def place(self, row: int, col: int, number: int) -> str:
        """Writes a number into a cell.

        Args:
            row: The row, from 1 to 9.
            col: The column, from 1 to 9.
            number: The number, from 1 to 9.
        """
        self.moves.append((row, col, number))
        text = self.act(f"[{row} {col} {number}]")
        if "invalid move" not in text.lower():
            self.valid += 1
            left = _empty_cells(text)
            self.empty = self.empty - 1 if left is None else left
        return text

    @rubric
    def valid_moves(self) -> float:
        """The share of moves that kept to the rules."""
        return self.valid / len(self.moves) if self.moves else 0.0

    @rubric
    def progress(self) -> float:
        """The share of the empty cells that were filled."""
        return (self.first_empty - self.empty) / self.first_empty if self.first_empty else 0.0

    @rubric(low=-1.0, high=0.0)
    def repeated(self) -> float:
        """Less the share of moves that had been made before."""
        return (len(set(self.moves)) - len(self.moves)) / len(self.moves) if self.moves else 0.0


def _empty_cells(text: str) -> int | None:
    """How many cells of a board are empty; None where a text shows none."""
    rows = re.findall(r"^R\d(.*)$", text, re.MULTILINE)
    return sum(row.count(".") for row in rows) if len(rows) == 9 else None


_SECONDS = 5.0
_ROWS = 50
_INTERACTIONS = [
    ("JNKK", "MAPK8", "taxid:9606", "physical"),
    ("JNKK", "MAP3K1", "taxid:9606", "physical"),
    ("MAPK8", "JUN", "taxid:9606", "physical"),
    ("TP53", "MDM2", "taxid:9606", "physical"),
    ("TP53", "EP300", "taxid:9606", "physical"),
    ("CDC28", "CLN2", "taxid:559292", "genetic"),
    ("CDC28", "SIC1", "taxid:559292", "physical"),
    ("BRCA1", "BARD1", "taxid:9606", "physical"),
]


class Interactions(ToolEnv):
    """A small database of which genes interact, to be read with SQL. What is asked is the dataset's to say."""

    max_turns = 10

    def setup(self, task: Task) -> None:
        self.queries: list[str] = []
        self.failed = 0
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute("CREATE TABLE interactions (gene_a TEXT, gene_b TEXT, organism TEXT, kind TEXT)")
        self._database.executemany("INSERT INTO interactions VALUES (?, ?, ?, ?)", _INTERACTIONS)
        self._database.execute("PRAGMA query_only = 1")

    def prompt(self, task: Task) -> str:
        return "Look into the table interactions (gene_a, gene_b, organism, kind) first. Humans are taxid:9606."

    @tool
    def query_biogrid(self, sql_command: str) -> str:
        """Reads the database of interactions.

        Args:
            sql_command: A query in the SQL of SQLite.
        """
        self.queries.append(sql_command.lower())
        end = time.monotonic() + _SECONDS
        self._database.set_progress_handler(lambda: int(time.monotonic() > end), 10_000)
        try:
            return repr(self._database.execute(sql_command).fetchmany(_ROWS))
        except (sqlite3.Error, sqlite3.Warning) as error:
            self.failed += 1
            raise ToolError(str(error)) from None

    def teardown(self) -> None:
        self._database.close()

    @rubric
    def to_the_point(self) -> float:
        """1 for between one and three queries that all work and say what they look for."""
        fine = 1 <= len(self.queries) <= 3 and not self.failed
        return float(fine and all(" where " in query and "limit 1" not in query for query in self.queries))


register("examples/Increment-v0", Increment, mode="inline", description="Bring a counter to a number.")
register("examples/Echo-v0", Echo, mode="inline", description="Say what is to be said.")
register("examples/Catch-v0", Catch, mode="inline", description="Be below a falling ball.")
register("examples/Sudoku-v0", Sudoku, description="Fill a Sudoku, a cell at a time.")
register("examples/Interactions-v0", Interactions, description="Read a database of genes that interact.")
