"""Scripted policies for `Sql`: one that knows the queries, and some that hope to be paid for less."""

from collections.abc import Sequence

from gymhost.envs.shelf.scripted import call, said
from gymhost.envs.shelf.sql_questions import solve
from gymhost.wire.chat_spaces import ChatMessage

__all__ = ["everything", "nothing", "query", "result_as_constant", "schema"]


def query(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Looks at the answer once, and hands the query in."""
    answer = solve(said(messages, "user")[0]) or "SELECT 1"
    return call("submit" if said(messages, "tool") else "query", sql=answer)


def nothing(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Hands in a query without a row."""
    return call("submit", sql="SELECT 1 WHERE 0")


def schema(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Hands in the schema."""
    return call("submit", sql="SELECT sql FROM sqlite_master")


def everything(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Hands in all names there are."""
    table = "products" if "CREATE TABLE products" in said(messages, "user")[0] else "authors"
    return call("submit", sql=f"SELECT name FROM {table} ORDER BY name")


def result_as_constant(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Finds the right rows, and hands in these rows in place of a query for them."""
    tried = said(messages, "tool")
    if not tried:
        return call("query", sql=solve(said(messages, "user")[0]) or "SELECT 1")
    rows = [line.split(" | ") for line in tried[0].splitlines()[2:] if not line.startswith("(")]
    values = ", ".join(f"({', '.join(_literal(value) for value in row)})" for row in rows)
    return call("submit", sql=f"SELECT * FROM (VALUES {values})" if rows else "SELECT 1 WHERE 0")


def _literal(value: str) -> str:
    return value if value.lstrip("-").isdigit() else f"'{value}'"
