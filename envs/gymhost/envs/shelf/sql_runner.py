"""Runs one query on a database. It runs in a sandbox, and is no part of gymhost.

Its standard input is a JSON object with the SQL that makes the `database`, the `query`, and how many rows are wanted at
most. It prints a JSON object: `columns` and `rows`, or `error`.
"""

import json
import sqlite3
import sys
from typing import Any

asked: Any = json.load(sys.stdin)
with sqlite3.connect(":memory:") as connection:
    connection.executescript(asked["database"])
    connection.execute("PRAGMA query_only = ON")
    try:
        cursor = connection.execute(asked["query"])
        columns = [column[0] for column in cursor.description or ()]
        answer: Any = {"columns": columns, "rows": cursor.fetchmany(asked["limit"])}
        text = json.dumps(answer, default=repr)
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        text = json.dumps({"error": str(error)})
print(text)
