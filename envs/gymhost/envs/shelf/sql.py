"""Questions about a SQLite database, answered by a query."""

import json
import sqlite3
from importlib import resources
from typing import Any

from gymhost.envs.rubrics import rubric
from gymhost.envs.sandbox import Limits, Sandbox, SandboxSpec, create
from gymhost.envs.shelf.sql_questions import LIBRARY, SHOP, make_database, make_question
from gymhost.envs.tasks import Task, Tasks
from gymhost.envs.toolenv import ToolEnv
from gymhost.envs.tools import ToolError, tool
from gymhost.wire.errors import SandboxLost

__all__ = ["Sql"]

_SPEC = SandboxSpec(limits=Limits(memory=128 * 2**20, processes=16, disk=8 * 2**20))
_RUNNER = resources.files("gymhost.envs.shelf").joinpath("sql_runner.py").read_text(encoding="utf-8")
# Seconds for a query, how many rows are shown of it, and how many are compared.
_QUERY, _SHOWN, _COMPARED = 10.0, 30, 1000
_OUTPUT = 2**20


class Sql(ToolEnv):
    """Answer a question about a SQLite database by a query.

    Queries run in a sandbox. What is handed in is run on the database that was explored and on two more of the same
    kind that were not, so that only a query for the answer gives the answer: then the reward is 1.
    """

    system = "You answer questions about a SQLite database: explore it with the tool query, then hand in with submit."
    public_fields = ("seed",)
    max_turns = 12
    expert = "gymhost.envs.shelf.sql_expert:query"
    cheats = tuple(
        f"gymhost.envs.shelf.sql_expert:{name}" for name in ("nothing", "schema", "everything", "result_as_constant")
    )
    _sandbox: Sandbox | None = None

    @classmethod
    def tasks(cls) -> dict[str, Tasks]:
        """Returns the splits: questions and databases of other seeds."""
        return {
            "train": Tasks.generate(lambda index: {"seed": f"train {index}"}, 100_000),
            "test": Tasks.generate(lambda index: {"seed": f"test {index}"}, 500),
        }

    def setup(self, task: Task) -> None:
        """Makes the question and the databases."""
        seed = task["seed"]
        self._question, self._values = make_question(seed)
        kind = self._question.database
        self._databases = [make_database(kind, f"{seed} {number}") for number in range(3)]
        self._submitted: str | None = None

    async def teardown(self) -> None:
        """Removes the sandbox."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.destroy()

    def prompt(self, task: Task) -> str:
        """Asks the question."""
        schema = (SHOP if self._question.database == "shop" else LIBRARY).strip()
        return f"The database has these tables:\n\n{schema}\n\n{self._question.ask(self._values)}"

    @tool
    async def query(self, sql: str) -> str:
        """Runs a query that reads, and shows its first rows.

        Args:
            sql: The query.
        """
        if self._sandbox is None:
            self._sandbox = await create(_SPEC)
        answer = await _run(self._sandbox, self._databases[0], sql, _SHOWN + 1)
        if "error" in answer:
            raise ToolError(answer["error"])
        rows = [" | ".join(map(str, row)) for row in answer["rows"][:_SHOWN]]
        more = ["(There are more rows.)"] if len(answer["rows"]) > _SHOWN else []
        head = " | ".join(answer["columns"])
        return "\n".join([head, "-" * min(len(head), 80), *rows, *more])

    @tool
    def submit(self, sql: str) -> str:
        """Hands in the query whose rows are the answer, in order; ends the episode.

        Args:
            sql: The query.
        """
        self._submitted = sql
        self.finish()
        return "Handed in."

    @rubric
    async def right(self) -> float:
        """1 where the query gives the right rows on all databases."""
        if self._submitted is None:
            return 0.0
        wanted = self._question.answer(self._values)
        for attempt in range(2):
            sandbox = await create(_SPEC)
            try:
                for database in self._databases:
                    answer = await _run(sandbox, database, self._submitted, _COMPARED)
                    if answer.get("rows") != _reference(database, wanted):
                        return 0.0
                return 1.0
            except SandboxLost:
                if attempt:
                    return 0.0  # that it happens again is the query's own doing
            finally:
                await sandbox.destroy()
        raise AssertionError("unreachable")


async def _run(sandbox: Sandbox, database: str, query: str, limit: int) -> dict[str, Any]:
    """Runs a query in a sandbox; returns `columns` and `rows`, or `error`."""
    asked = json.dumps({"database": database, "query": query, "limit": limit})
    command = ["python3", "-I", "-S", "-c", _RUNNER]
    result = await sandbox.run(command, stdin=asked, timeout=_QUERY, output_limit=_OUTPUT)
    if result.limit is not None:
        return {"error": f"the query was stopped by its limit of {result.limit}"}
    if not result.ok or result.truncated:
        return {"error": "the query failed, or its rows are too many"}
    return json.loads(result.stdout)


def _reference(database: str, query: str) -> list[list[Any]]:
    # Both are this package's own.
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(database)
        return [list(row) for row in connection.execute(query)]
    finally:
        connection.close()
