"""The application `top`: pages of queues, jobs, workers and schedules, and a screen per job."""

from typing import ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen
from textual.widgets import ContentSwitcher, Footer, Input

from penstock.cli.top.dialogs import Help
from penstock.cli.top.filters import FilterRefused
from penstock.cli.top.header import Header
from penstock.cli.top.job import JobScreen
from penstock.cli.top.jobs import JobsPane
from penstock.cli.top.listing import Listing
from penstock.cli.top.queues import QueuesPane
from penstock.cli.top.schedules import SchedulesPane
from penstock.cli.top.theme import DARK, LIGHT
from penstock.cli.top.view import Pane, View
from penstock.cli.top.workers import WorkersPane

KEYS = (
    (
        "Everywhere",
        (
            ("1 2 3 4", "queues, jobs, workers, schedules"),
            ("j k, arrows", "down, up"),
            ("g G", "first, last"),
            ("/", "filter jobs, or open a job by its number"),
            ("Enter", "open the jobs of a queue or worker, a job, the last job of a schedule"),
            ("Esc", "back"),
            ("t", "switch between light and dark"),
            ("? q", "this help, quit"),
        ),
    ),
    (
        "Queues",
        (("p", "pause or resume"), ("d", "drain: wait until the jobs of now have finished")),
    ),
    (
        "Jobs",
        (
            ("r c x p", "retry, cancel, delete, change the priority of one job"),
            ("R C X P", "the same for all jobs that match the filter, counted first"),
            ("s", "the next state"),
            ("o", "newest or oldest first"),
            ("n b", "next page, previous page"),
        ),
    ),
    ("Schedules", (("r", "run now"), ("p", "pause or resume"))),
    (
        "A job",
        (("w", "go to the job that blocks it"), ("r c x p", "retry, cancel, delete, priority")),
    ),
    (
        "Filters",
        (
            ("state: queue: task:", "pending, running, done, failed, cancelled, superseded; names"),
            ("tag: key: tenant:", "any of these tags, this key, this tenant"),
            (
                "batch: parent: worker:",
                "jobs of a batch, children of a job, jobs that a worker runs",
            ),
            ("since: older:", "ended or enqueued after or before this: 90s, 30m, 12h, 7d ago"),
            ("other words", "text in the task, key, tags, tenant, arguments or error"),
        ),
    ),
)


class Top(View):
    """The view of a store or a server on a terminal."""

    CSS_PATH = "top.tcss"
    TITLE = "penstock top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "page('queues')", "Queues", show=False),
        Binding("2", "page('jobs')", "Jobs", show=False),
        Binding("3", "page('workers')", "Workers", show=False),
        Binding("4", "page('schedules')", "Schedules", show=False),
        Binding("slash", "filter", "Filter"),
        Binding("escape", "leave", "Back", show=False),
        Binding("t", "theme", "Light/dark"),
        Binding("question_mark", "help", "Help"),
        Binding("q", "quit", "Quit"),
    ]

    def compose(self) -> ComposeResult:
        """Return the pages, between the header and the keys."""
        yield Header()
        with ContentSwitcher(initial="queues"):
            yield QueuesPane(id="queues")
            yield JobsPane(id="jobs")
            yield WorkersPane(id="workers")
            yield SchedulesPane(id="schedules")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Start to follow."""
        self.query_one("#queue-list").focus()
        self.draw_all()
        self.follow()
        self.set_interval(1, self.draw_all)  # relative times change while nothing happens

    def on_resize(self) -> None:
        """Fit the columns to the new width."""
        for listing in self._main.query(Listing):
            listing.forget_widths()
        self.call_after_refresh(self.draw_all)

    # Showing

    @property
    def _main(self) -> Screen[object]:
        return self.screen_stack[0]

    @property
    def page(self) -> str:
        """The current page, which a screen may cover."""
        return self._main.query_one(ContentSwitcher).current or "queues"

    def _front(self) -> Screen[object] | None:
        """Return the screen behind any dialog; None while it opens or the view closes."""
        stack = self.screen_stack if self.is_running else []
        front = next((one for one in reversed(stack) if not isinstance(one, ModalScreen)), None)
        ready = front is not None and front.is_mounted and front.query("#trouble")
        return front if ready else None

    def pane(self) -> Pane | None:
        """Return the page or screen in front; None while it opens or closes."""
        front = self._front()
        if front is None or isinstance(front, JobScreen):
            return front
        return cast("Pane", front.query_one(f"#{self.page}"))

    def draw_all(self) -> None:
        """Draw everything as of now."""
        front, pane = self._front(), self.pane()
        if front is not None and pane is not None:
            front.query_one(Header).show("" if isinstance(front, JobScreen) else self.page)
            pane.draw()

    def open_page(self, name: str) -> None:
        """Show a page."""
        while isinstance(self.screen, JobScreen):
            self.pop_screen()
        self._main.query_one(ContentSwitcher).current = name
        self._main.query_one(f"#{name}").query_one(Listing).focus()
        self.draw_all()
        self.follower.read_soon()

    def open_jobs(self, text: str) -> None:
        """List the jobs that a filter selects."""
        self.open_page("jobs")
        try:
            self._main.query_one(JobsPane).select(text)
        except FilterRefused as error:
            self.say(str(error), bad=True)

    def open_job(self, job_id: int) -> None:
        """Show a job in a screen of its own."""
        self.push_screen(JobScreen(job_id), lambda _: self.follower.read_soon())
        self.follower.read_soon()

    # Keys

    def action_page(self, name: str) -> None:
        """Go to a page."""
        self.open_page(name)

    def action_filter(self) -> None:
        """Edit the filter."""
        self.open_page("jobs")
        self._main.query_one("#filter", Input).focus()

    def action_leave(self) -> None:
        """Leave the filter, or go back to the queues."""
        if isinstance(self.focused, Input):
            self._main.query_one("#job-list").focus()
        elif self.page != "queues":
            self.open_page("queues")

    def action_theme(self) -> None:
        """Switch between light and dark."""
        self.theme = LIGHT.name if self.theme == DARK.name else DARK.name
        self.draw_all()

    def action_help(self) -> None:
        """Show every key."""
        self.push_screen(Help(KEYS))
