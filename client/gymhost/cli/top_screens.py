"""What `gymhost top` shows over its tables: questions, texts, a session turn by turn."""

from contextlib import aclosing
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, RichLog, Static

from gymhost.cli.top_values import turn
from gymhost.cli.top_views import RED, YELLOW
from gymhost.cli.words import clean, clock
from gymhost.client.operations import Operations
from gymhost.v1 import operations_pb2 as pb
from gymhost.wire import errors

__all__ = ["Follow", "Question", "Reading"]

# Lines of a session that are kept.
LINES = 5000


class Question(ModalScreen[bool]):
    """Asks whether something is meant.

    Args:
        question: What is asked.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        ("y", "dismiss(True)", "Yes"),
        ("n,escape,q", "dismiss(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Lays it out."""
        with Vertical(id="box"):
            yield Static(Text(clean(self._question)))
            yield Static(Text.assemble(("y", "bold"), " yes    ", ("n", "bold"), " no"), id="answers")


class Reading(Screen[None]):
    """A text to read.

    Args:
        title: What it is.
        said: The text.
    """

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,enter", "dismiss", "Back")]

    def __init__(self, title: str, said: str) -> None:
        super().__init__()
        self._title = title
        self._said = said

    def compose(self) -> ComposeResult:
        """Lays it out."""
        yield Static(Text(clean(self._title), "bold"), classes="title")
        with VerticalScroll():
            yield Static(Text(clean(self._said)))
        yield Footer(show_command_palette=False)


class Follow(Screen[None]):
    """A session, turn by turn.

    Args:
        operations: The server.
        name: What the session is called.
        may_end: Whether the one who looks may end it, if it is his.
    """

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q", "dismiss", "Back"), ("e", "app.end", "End it")]

    def __init__(self, operations: Operations, name: str) -> None:
        super().__init__()
        self.session = name
        self._operations = operations
        self._missed = 0
        self._turns = 0

    def compose(self) -> ComposeResult:
        """Lays it out."""
        yield Static(Text(f"session {clean(self.session)}", "bold"), classes="title", id="followed")
        yield RichLog(wrap=True, max_lines=LINES, min_width=0)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begins to follow."""
        self.query_one(RichLog).focus()
        self.run_worker(self._follow())

    async def _follow(self) -> None:
        try:
            async with aclosing(self._operations.follow(self.session)) as following:
                async for response in following:
                    self._show(response)
        except errors.Error as error:
            self._say(Text(clean(error.message), RED))

    def _show(self, response: pb.FollowSessionResponse) -> None:
        if response.HasField("session"):
            session = response.session
            facts = [session.environment_id, session.label and f"label {session.label}", session.identity]
            facts += [f"{session.commands:,} commands before", f"{clock(session.age_seconds)} old"]
            title = Text.assemble((f"session {self.session}  ", "bold"), clean("  ".join(filter(None, facts))))
            self.query_one("#followed", Static).update(title)
            self._say(Text(f"now {session.state} {session.command}; turns are shown as they end", "dim"))
        if response.missed:
            self._say(Text(f"{response.missed:,} turns came too fast to be shown", YELLOW))
        for each in response.turns:
            for line in turn(each):
                self._say(line)
        if response.ended:
            self._say(Text(f"the session has ended: {clean(response.ended)}", YELLOW))

    def _say(self, line: Text) -> None:
        self.query_one(RichLog).write(line)
