"""The page of schedules."""

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static

from penstock.cli.output import Column, when
from penstock.cli.top import actions
from penstock.cli.top.actions import Action
from penstock.cli.top.desk import desk_of
from penstock.cli.top.listing import Listing, Row
from penstock.cli.top.looks import Colours, plain, word
from penstock.core.schedule import Schedule

_COLUMNS = (
    Column("schedule", bends=True),
    Column(""),
    Column("when", bends=True),
    Column("last run"),
    Column("next run"),
    Column("job", right=True),
    Column("task", bends=True),
    Column("queue", bends=True),
)


class SchedulesPane(Vertical):
    """Periodic tasks: their rhythm, their last run and their next."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "run", "Run now"),
        Binding("p", "pause", "Pause/resume"),
    ]

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._found: Sequence[Schedule] | None = None

    def compose(self) -> ComposeResult:
        """A table, and a word where there is nothing in it."""
        yield Listing(_COLUMNS, id="schedule-list")
        yield Static(
            "No schedule is there; workers store those of their tasks when they start.",
            classes="empty",
        )

    async def look(self) -> None:
        """Read the schedules."""
        self._found = await desk_of(self).feed.app.schedules()

    def draw(self) -> None:
        """Show them."""
        desk = desk_of(self)
        found = self._found or ()
        now, palette = desk.now(), desk.palette
        self.query_one(Listing).show([_row(one, now, palette) for one in found])
        self.query_one(".empty").display = self._found is not None and not found

    def _current(self) -> Schedule | None:
        key = self.query_one(Listing).current
        return next((one for one in self._found or () if one.name == key), None)

    def on_data_table_row_selected(self, event: Listing.RowSelected) -> None:
        """Show the job of the last run."""
        event.stop()
        schedule = self._current()
        if schedule is not None and schedule.last_job is not None:
            desk_of(self).open_job(schedule.last_job)
        elif schedule is not None:
            desk_of(self).say(f"Schedule {schedule.name} has not run yet.")

    def action_run(self) -> None:
        """Enqueue its job at once."""
        if (schedule := self._current()) is not None:
            self._propose(actions.running(desk_of(self).feed.app, schedule))

    def action_pause(self) -> None:
        """Pause a schedule, or resume one that is paused."""
        if (schedule := self._current()) is not None:
            self._propose(actions.rhythm(desk_of(self).feed.app, schedule))

    def _propose(self, action: Action) -> None:
        async def prepared() -> Action:
            return action

        desk_of(self).propose(prepared)


def _row(one: Schedule, now: datetime, palette: Colours) -> Row:
    return Row(
        one.name,
        [
            plain(one.name, "bold"),
            word("paused", palette) if one.paused else Text(),
            plain(one.spec),
            plain(when(one.last, now) if one.last else "never"),
            plain("" if one.paused else when(one.next, now)),
            plain("" if one.last_job is None else str(one.last_job)),
            plain(one.task),
            plain(one.job.queue),
        ],
    )
