"""What a server says of itself: lines of text for people, or of JSON for machines, both with what each line is about.

Whoever logs says that with `extra`: the names in `ABOUT`. What environments print has a `speaker` besides, which lines
of text begin with.
"""

import logging
import sys
from typing import Any

from pythonjsonlogger.json import JsonFormatter

__all__ = ["ABOUT", "configure"]

# What a line may be about: a session by what operators call it, a rollout by its id.
ABOUT = ("session", "environment", "rollout", "worker", "identity", "job")

# Libraries with a line for each request.
_CHATTY = ("asyncio", "grpc", "httpcore", "httpx", "uvicorn", "uvicorn.access", "uvicorn.error")


def configure(level: str, form: str) -> None:
    """Has this process log to stderr.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        form: `text` or `json`.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_json() if form == "json" else _Text())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))


class _Text(logging.Formatter):
    """Lines for people: what a line is about comes last, as far as its words don't say it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        speaker = getattr(record, "speaker", None)
        if speaker is not None:
            return f"{record.asctime} {record.levelname} [{speaker}] {record.message}"
        about = [
            f"{name} {value}"
            for name in ABOUT
            if (value := getattr(record, name, None)) not in (None, "") and not _said(name, str(value), record.message)
        ]
        return super().formatMessage(record) + (f" ({', '.join(about)})" if about else "")


def _said(name: str, value: str, message: str) -> bool:
    # A number is said only with what it is the number of.
    return (f"{name} {value}" if value.isdigit() else value) in message


def _json() -> logging.Formatter:
    return _Json(
        ["levelname", "message", "name"],
        rename_fields={"levelname": "level", "name": "logger"},
        timestamp="time",
    )


class _Json(JsonFormatter):
    """An object a line, with the time first."""

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        log_data.pop("speaker", None)
        known = {name: log_data.pop(name) for name in ("time", "level", "logger", "message") if name in log_data}
        return {**known, **{name: value for name, value in log_data.items() if value not in (None, "")}}
