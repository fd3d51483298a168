"""The page of schedules."""

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static

from penstock.cli.live.style import Colours, plain, word
from penstock.cli.output import Column, when
from penstock.cli.top import actions
from penstock.cli.top.actions import Action
from penstock.cli.top.listing import Listing, Row
from penstock.cli.top.view import view_of
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
    """The schedules, with their last and next runs."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "run", "Run now"),
        Binding("p", "pause", "Pause/resume"),
    ]

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._found: Sequence[Schedule] | None = None

    def compose(self) -> ComposeResult:
        """Return the table, and a text for when it is empty."""
        yield Listing(_COLUMNS, id="schedule-list")
        yield Static(
            "There are no schedules; workers store those of their tasks when they start.",
            classes="empty",
        )

    async def read(self) -> None:
        """Read the schedules."""
        self._found = await view_of(self).reader.app.schedules.list()

    def draw(self) -> None:
        """Show them."""
        view = view_of(self)
        found = self._found or ()
        now, palette = view.now(), view.palette
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
            view_of(self).open_job(schedule.last_job)
        elif schedule is not None:
            view_of(self).say(f"Schedule {schedule.name} has not run yet.")

    def action_run(self) -> None:
        """Enqueue the job of a schedule now."""
        if (schedule := self._current()) is not None:
            self._propose(actions.run_schedule(view_of(self).reader.app, schedule))

    def action_pause(self) -> None:
        """Pause a schedule, or resume one that is paused."""
        if (schedule := self._current()) is not None:
            self._propose(actions.pause_schedule(view_of(self).reader.app, schedule))

    def _propose(self, action: Action) -> None:
        async def prepared() -> Action:
            return action

        view_of(self).propose(prepared)


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
