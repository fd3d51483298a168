"""Dialogs: questions before a change, and the help."""

from collections.abc import Sequence
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from penstock.cli.output import shown
from penstock.engine.validation import MAX_PRIORITY


class Confirm(ModalScreen[bool]):
    """A question whose answer is yes or no; the focus is on no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q", "answer(False)", "No"),
        Binding("left,right,h,l", "other", "Other", show=False),
    ]

    def __init__(self, question: str, detail: str = "") -> None:
        super().__init__()
        self._question = shown(question)
        self._detail = shown(detail)

    def compose(self) -> ComposeResult:
        """Return the question and two buttons."""
        with Vertical(classes="dialog"):
            yield Static(Text(self._question), classes="question")
            if self._detail:
                yield Static(Text(self._detail), classes="detail")
            with Horizontal(classes="buttons"):
                yield Button("No (n)", id="no")
                yield Button("Yes (y)", id="yes", variant="error")

    def on_mount(self) -> None:
        """Focus on no: pressing Enter without reading changes nothing."""
        self.query_one("#no").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answer by a button."""
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:
        """Answer by a key."""
        self.dismiss(answer)

    def action_other(self) -> None:
        """Go to the other button."""
        self.focus_next()


class AskPriority(ModalScreen[int | None]):
    """A question for a priority."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Leave")]

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = shown(what)

    def compose(self) -> ComposeResult:
        """Return the question and a field."""
        with Vertical(classes="dialog"):
            yield Static(Text(f"New priority for {self._what}?"), classes="question")
            yield Static(f"From 0 to {MAX_PRIORITY}; higher runs first.", classes="detail")
            yield Input(type="integer", max_length=2)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Accept the number, if it is valid."""
        if event.value.isdecimal() and int(event.value) <= MAX_PRIORITY:
            self.dismiss(int(event.value))
        else:
            self.query_one(".detail", Static).update(f"Enter a number from 0 to {MAX_PRIORITY}.")

    def action_leave(self) -> None:
        """Cancel."""
        self.dismiss(None)


class Help(ModalScreen[None]):
    """All keys, in groups."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter", "leave", "Back"),
        Binding("j,down", "scroll(1)", "Down", show=False),
        Binding("k,up", "scroll(-1)", "Up", show=False),
    ]

    def __init__(self, groups: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> None:
        super().__init__()
        self._groups = groups

    def compose(self) -> ComposeResult:
        """Return a table of keys."""
        table = Table.grid(padding=(0, 2))
        for title, keys in self._groups:
            table.add_row(Text(title, style="bold"), "")
            for key, meaning in keys:
                table.add_row(Text(f"  {key}"), Text(meaning))
            table.add_row("", "")
        with VerticalScroll(classes="dialog help"):
            yield Static(table)

    def action_leave(self) -> None:
        """Go back."""
        self.dismiss()

    def action_scroll(self, lines: int) -> None:
        """Scroll by a line."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)
