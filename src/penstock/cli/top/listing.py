"""A table whose cursor stays on its row, whatever changes."""

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from penstock.cli.output import Column, fitted

# Spaces around cells, and a scroll bar.
_MARGIN = 4


class Row(NamedTuple):
    """A row: its key and its cells."""

    key: str
    cells: Sequence[Text]


class Listing(DataTable[Text]):
    """A table with as many columns as fit; j and k move the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", "Down", show=False),
        Binding("k", "cursor_up", "Up", show=False),
        Binding("g", "scroll_top", "Top", show=False),
        Binding("G", "scroll_bottom", "End", show=False),
    ]

    def __init__(self, columns: Sequence[Column], *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id, cursor_type="row", cursor_foreground_priority="renderable")
        self._titles = columns
        self._natural = [len(column.title) for column in columns]
        self._fitted: list[int] = []
        self._shown: list[Row] = []

    @property
    def current(self) -> str | None:
        """The key of the row under the cursor."""
        inside = 0 <= self.cursor_row < len(self._shown)
        return self._shown[self.cursor_row].key if inside else None

    @property
    def at_top(self) -> bool:
        """Whether the cursor is on the first row and nothing is scrolled."""
        return self.cursor_row <= 0 and self.scroll_offset.y == 0

    def forget_widths(self) -> None:
        """Allow columns to become narrower; otherwise they only grow, so that nothing jumps."""
        self._natural = [len(column.title) for column in self._titles]

    def show(self, rows: Sequence[Row]) -> None:
        """Show these rows; only cells that have changed are updated."""
        for n in range(len(self._titles)):
            self._natural[n] = max(self._natural[n], *(row.cells[n].cell_len for row in rows), 0)
        widths = fitted(self._titles, self._natural, self.container_size.width - _MARGIN)
        same = [row.key for row in rows] == [row.key for row in self._shown]
        if widths != self._fitted or not same:
            self._rebuild(rows, widths)
        else:
            self._update(rows)
        self._shown = list(rows)

    def _rebuild(self, rows: Sequence[Row], widths: Sequence[int]) -> None:
        # The cursor passes the first row on its way back: nobody has moved it there.
        with self.prevent(DataTable.RowHighlighted):
            self._replace(rows, widths)

    def _replace(self, rows: Sequence[Row], widths: Sequence[int]) -> None:
        current, place, top = self.current, self.cursor_row, self.scroll_offset.y
        self.clear(columns=True)
        for column, width in zip(self._titles, widths, strict=False):
            side: Literal["left", "right"] = "right" if column.right else "left"
            self.add_column(Text(column.title, justify=side), width=width, key=column.title)
        for row in rows:
            self.add_row(*self._cells(row, widths), key=row.key)
        self._fitted = list(widths)
        keys = [row.key for row in rows]
        place = keys.index(current) if current in keys else min(place, len(rows) - 1)
        if place > 0:
            self.move_cursor(row=place, animate=False, scroll=False)
            self.call_after_refresh(self.scroll_to, y=top, animate=False, force=True)

    def _update(self, rows: Sequence[Row]) -> None:
        for row, before in zip(rows, self._shown, strict=True):
            for n, column in enumerate(self._titles[: len(self._fitted)]):
                if row.cells[n] != before.cells[n] or row.cells[n].style != before.cells[n].style:
                    cell = self._cell(row.cells[n], n, self._fitted[n])
                    self.update_cell(row.key, column.title, cell)

    def _cells(self, row: Row, widths: Sequence[int]) -> list[Text]:
        return [self._cell(row.cells[n], n, width) for n, width in enumerate(widths)]

    def _cell(self, text: Text, n: int, width: int) -> Text:
        cell = text.copy()
        cell.truncate(width, overflow="ellipsis")
        cell.justify = "right" if self._titles[n].right else "left"
        return cell
