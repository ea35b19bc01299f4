"""A table of `gymhost top` on the screen: what it shows changes, where it is stays."""

from rich.text import Text
from textual.coordinate import Coordinate
from textual.events import Resize
from textual.message import Message
from textual.widgets import DataTable

from gymhost.cli.top_views import Cell, Column, Row, View, arranged
from gymhost.cli.top_watch import Look

__all__ = ["ViewTable"]


class ViewTable(DataTable[Text]):
    """A view. Rows keep their cursor when they move, columns their widths.

    Args:
        view: What is shown.
    """

    class Changed(Message):
        """Other rows are shown, or in another order."""

    def __init__(self, view: View) -> None:
        super().__init__(id=f"table-{view.name}", cursor_type="row", zebra_stripes=True)
        self.view = view
        self._sort = view.sort
        self._filter = ""
        self._look: Look | None = None
        self._places: list[int] = []
        self._rows: list[Row] = []

    @property
    def selected(self) -> Row | None:
        """The row that the cursor is on."""
        return self._rows[self.cursor_row] if 0 <= self.cursor_row < len(self._rows) else None

    @property
    def shown(self) -> int:
        """How many rows are shown."""
        return len(self._rows)

    def update_look(self, look: Look, filter: str) -> None:
        """Shows what there is now, of that what has a text in it."""
        self._look, self._filter = look, filter
        self._fill()

    def sort_next(self) -> None:
        """Sorts by the next column that is shown."""
        if self._places:
            at = self._places.index(self._sort[0]) if self._sort[0] in self._places else -1
            self._sort_by(self._places[(at + 1) % len(self._places)])

    def sort_reversed(self) -> None:
        """Sorts the other way round."""
        self._sort_by(self._sort[0])

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """Sorts by the column whose head was clicked; again the other way round."""
        event.stop()
        if event.column_index < len(self._places):
            self._sort_by(self._places[event.column_index])

    def on_resize(self, event: Resize) -> None:
        """Shows as many columns as there is room for."""
        self._draw_columns()
        self._fill()

    def _sort_by(self, place: int) -> None:
        at, descending = self._sort
        # Of numbers the large ones come first, of texts those with A.
        self._sort = (place, not descending if place == at else self.view.columns[place].right)
        self._draw_columns()
        self._fill()

    def _draw_columns(self) -> None:
        kept = self.cursor_row
        self.clear(columns=True)
        room = self.size.width - self.scrollbar_size_vertical
        padding = 2 * self.cell_padding
        self._places = self.view.shown(room, padding)
        shown = [self.view.columns[place] for place in self._places]
        spare = max(0, room - sum(column.width + padding for column in shown))
        for place, column in zip(self._places, shown, strict=True):
            width = column.width + (spare if column.grows else 0)
            self.add_column(self._title(place, column), width=width, key=str(place))
        for row in self._rows:
            self.add_row(*(_text(row.cells[place], self.view.columns[place]) for place in self._places))
        self.move_cursor(row=kept, animate=False)

    def _title(self, place: int, column: Column) -> Text:
        by, descending = self._sort
        arrow = ("▼" if descending else "▲") if place == by else ""
        # The arrow stands in the padding's way as little as it can: to the left of what is set to the right.
        title = f"{arrow}{column.title}" if column.right else f"{column.title}{arrow}"
        return Text(title, justify="right" if column.right else "left", style="bold" if arrow else "", no_wrap=True)

    def _fill(self) -> None:
        if self._look is None or not self._places:
            return
        held = self.selected
        before, self._rows = self._rows, arranged(self.view.rows(self._look), self._sort, self._filter)
        for number, row in enumerate(self._rows):
            if number >= self.row_count:
                self.add_row(*(_text(row.cells[place], self.view.columns[place]) for place in self._places))
                continue
            for column, place in enumerate(self._places):
                if number >= len(before) or before[number].cells[place] != row.cells[place]:
                    cell = _text(row.cells[place], self.view.columns[place])
                    self.update_cell_at(Coordinate(number, column), cell)
        for key in list(self.rows)[len(self._rows) :]:
            self.remove_row(key)
        if held is not None:
            at = next((number for number, row in enumerate(self._rows) if row.key == held.key), None)
            if at is not None and at != self.cursor_row:
                self.move_cursor(row=at, animate=False)
        self.post_message(self.Changed())


def _text(cell: Cell, column: Column) -> Text:
    justify = "right" if column.right else "left"
    return Text(cell.text, style=cell.style, justify=justify, no_wrap=True, overflow="ellipsis", end="")
