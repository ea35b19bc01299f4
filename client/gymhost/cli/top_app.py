"""`gymhost top` on the screen."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Footer, Input, Static, TabbedContent, TabPane

from gymhost.cli.top_head import head
from gymhost.cli.top_screens import Follow, Question, Reading
from gymhost.cli.top_table import ViewTable
from gymhost.cli.top_views import VIEWS, View
from gymhost.cli.top_watch import Look, Watch
from gymhost.cli.words import clean
from gymhost.wire import errors

__all__ = ["Top"]

# Fits into 80 columns; what is prose is wrapped by the screen.
HELP = """\
1 to 6, Tab   what is shown
Enter         more of a row: a session is followed turn by turn, a failure
              has its traceback, an environment its sessions
/             shows rows that have a text in them; Escape shows all again
s, S          sort by the next column; the other way round. So does a click
e             ends the session that the cursor is on: you are asked first
D             the server takes no new sessions, or new ones again: likewise
t             dark or light
q             quits

Rates are those between the last two looks. p50 and p99 of an environment are \
of all since the server was started; those above the tables, like the bars, \
of the last seconds.

Any token may see figures. Of sessions and failures one sees one's own, with \
the role admin everybody's."""

# What is for the tables alone.
TABLES = ("filter", "sort", "reverse", "end", "drain", "explain", "all", "next", "view")


class Top(App[None]):
    """The screen.

    Args:
        watch: What is looked at.
        look: The first look.
        interval: Seconds between looks.
    """

    CSS = """
    #head { height: auto; padding: 0 1; }
    TabbedContent { height: 1fr; }
    TabPane { padding: 0; }
    Tabs { height: 2; }
    ViewTable { height: 1fr; }
    #line { height: 1; padding: 0 1; }
    #line > Input { width: 1fr; border: none; height: 1; padding: 0; background: $background; }
    #said { width: auto; max-width: 75%; height: 1; }
    .title { height: 1; padding: 0 1; background: $panel; }
    RichLog, VerticalScroll { padding: 0 1; background: $background; }
    Question { align: center middle; }
    #box { width: 64; max-width: 90%; height: auto; padding: 1 2; border: round $warning; background: $surface; }
    #answers { margin-top: 1; }
    """
    ENABLE_COMMAND_PALETTE = False
    TITLE = "gymhost top"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "Quit", priority=False),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("s", "sort", "Sort"),
        Binding("S", "reverse", "Reverse", show=False),
        Binding("e", "end", "End session"),
        Binding("D", "drain", "Drain", key_display="D"),
        Binding("t", "paint", "Dark/light", show=False),
        Binding("question_mark", "explain", "Help", key_display="?"),
        Binding("escape", "all", show=False),
        Binding("tab", "next", show=False, priority=True),
        *(Binding(str(number), f"view({number - 1})", show=False) for number in range(1, len(VIEWS) + 1)),
    ]

    def __init__(self, watch: Watch, look: Look, interval: float) -> None:
        super().__init__()
        self._watch = watch
        self._look = look
        self._interval = interval
        self._gone = ""
        self._gone_since = ""
        self._now = asyncio.Event()
        kinds = {True: watch.has_rollouts, False: watch.has_server}
        self._views: list[View] = [view for view in VIEWS if kinds[view.of_rollouts]]

    def compose(self) -> ComposeResult:
        """Lays it out."""
        yield Static(id="head")
        with TabbedContent():
            for view in self._views:
                with TabPane(view.name, id=view.name):
                    yield ViewTable(view)
        with Horizontal(id="line"):
            yield Input(placeholder="/ filters", compact=True)
            yield Static(id="said")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begins to look."""
        self.screen.set_focus(self._table)
        self._draw()
        self.run_worker(self._look_on())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The keys of the tables are not those of what is shown over them."""
        above = len(self.screen_stack) > 1
        return not above or action not in TABLES or (action == "end" and isinstance(self.screen, Follow))

    # -- looks ---------------------------------------------------------------------------------------------------------

    async def _look_on(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._interval):
                    await self._now.wait()
            except TimeoutError:
                pass
            self._now.clear()
            try:
                self._look = await self._watch.look()
                self._gone = self._gone_since = ""
            except errors.Error as error:
                self._gone_since = self._gone_since or time.strftime("%H:%M:%S")
                self._gone = f"gone since {self._gone_since}, trying again: {error.message}"
            self._draw()

    def _draw(self) -> None:
        self._draw_head()
        for table in self.query(ViewTable):
            table.update_look(self._look, self._filter)

    def _draw_head(self) -> None:
        self.query_one("#head", Static).update(head(self._look, self._gone, self.size.width - 2))

    def on_resize(self) -> None:
        """Draws what depends on the width."""
        self._draw_head()

    # -- what is shown -------------------------------------------------------------------------------------------------

    @property
    def _table(self) -> ViewTable:
        return self.query_one(f"#table-{self.query_one(TabbedContent).active or self._views[0].name}", ViewTable)

    @property
    def _filter(self) -> str:
        return self.query_one(Input).value

    def action_view(self, number: int) -> None:
        """Shows another table."""
        if number < len(self._views):
            self.query_one(TabbedContent).active = self._views[number].name

    def action_next(self) -> None:
        """Shows the next table."""
        names = [view.name for view in self._views]
        self.action_view((names.index(self.query_one(TabbedContent).active) + 1) % len(names))

    def on_tabbed_content_tab_activated(self) -> None:
        """The keys are for the table that is shown."""
        if not self.query_one(Input).has_focus:
            self.screen.set_focus(self._table)
        self._say()

    def on_view_table_changed(self) -> None:
        """Says how many rows there are."""
        self._say()

    def _say(self) -> None:
        table = self._table
        why = self._look.missing.get("rollouts" if table.view.of_rollouts else table.view.name)
        if why:
            said = Text(clean(why), "red")
        elif not table.shown:
            said = Text(f"Nothing has {self._filter!r} in it." if self._filter else table.view.nothing, "dim")
        else:
            live = self._look.live
            beyond = table.view.name == "sessions" and live.total > len(live.sessions)
            of = f" of {live.total:,}, those whose state has lasted longest" if beyond else ""
            name = table.view.name if table.shown != 1 else table.view.name.removesuffix("s")
            said = Text(f"{table.shown:,} {name}{of}", "dim")
        self.query_one("#said", Static).update(said)

    def action_sort(self) -> None:
        """Sorts by the next column."""
        self._table.sort_next()

    def action_reverse(self) -> None:
        """Sorts the other way round."""
        self._table.sort_reversed()

    def action_filter(self) -> None:
        """Has a filter be written: at once, for what is typed next is a part of it."""
        self.screen.set_focus(self.query_one(Input))

    def action_all(self) -> None:
        """Shows all rows again."""
        self.query_one(Input).value = ""
        self.screen.set_focus(self._table)

    def on_input_changed(self) -> None:
        """Filters as one writes."""
        self._draw()

    def on_input_submitted(self) -> None:
        """Gives the keys back to the table."""
        self.screen.set_focus(self._table)

    def action_paint(self) -> None:
        """Changes between dark and light."""
        self.theme = "textual-light" if self.theme == "textual-dark" else "textual-dark"

    def action_explain(self) -> None:
        """Says what keys there are."""
        self.push_screen(Reading("gymhost top", HELP))

    def on_data_table_row_selected(self) -> None:
        """Tells more of a row."""
        table = self._table
        row = table.selected
        if row is None:
            return
        if table.view.name == "sessions":
            self.push_screen(Follow(self._watch.operations, row.key))
        elif table.view.name == "environments":
            self.query_one(Input).value = row.key
            self.query_one(TabbedContent).active = "sessions"
        else:
            self.push_screen(Reading(table.view.name, row.details))

    # -- what may be done ----------------------------------------------------------------------------------------------

    def action_end(self) -> None:
        """Ends a session, if that is meant."""
        followed = self.screen.session if isinstance(self.screen, Follow) else None
        row = self._table.selected if followed is None and self._table.view.name == "sessions" else None
        name = followed or (row.key if row else "")
        if not name:
            self.notify("Go to a session: 2, then the arrows.", severity="warning")
        elif self._look.role == "read-only":
            self.notify("Your role is read-only: to end a session takes the role user or admin.", severity="warning")
        else:
            self._ask(f"End the session {name}? Its client is told.", self._end(name))

    def action_drain(self) -> None:
        """Has the server take no new sessions, or new ones again, if that is meant."""
        overview = self._look.overview
        if overview is None:
            self.notify("There is no environment server here that could be drained.", severity="warning")
        elif overview.role != "admin":
            self.notify(f"Your role is {overview.role}: to drain takes the role admin.", severity="warning")
        else:
            resume = overview.draining
            question = "Take new sessions again?" if resume else "Take no new sessions? Those that there are go on."
            self._ask(f"{self._look.address}: {question}", self._drain(resume))

    def _ask(self, question: str, work: Coroutine[Any, Any, str]) -> None:
        async def do() -> None:
            try:
                self.notify(await work)
            except errors.Error as error:
                self.notify(clean(error.message), severity="error")
            self._now.set()

        def answered(meant: bool | None) -> None:
            if meant:
                self.run_worker(do())
            else:
                work.close()

        self.push_screen(Question(question), answered)

    async def _end(self, name: str) -> str:
        await self._watch.operations.end(name)
        return f"{name} has been ended."

    async def _drain(self, resume: bool) -> str:
        sessions = await self._watch.operations.drain(resume)
        return "It takes new sessions again." if resume else f"It takes no new sessions; it has {sessions:,}."
