"""The view: pages of queues, jobs, workers and schedules, and a screen for a job."""

from typing import ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen
from textual.widgets import ContentSwitcher, Footer, Input

from penstock.cli.top.desk import Desk, View
from penstock.cli.top.dialogs import Help
from penstock.cli.top.filters import FilterRefused
from penstock.cli.top.job import JobScreen
from penstock.cli.top.jobs import JobsPane
from penstock.cli.top.listing import Listing
from penstock.cli.top.looks import DARK, LIGHT
from penstock.cli.top.queues import QueuesPane
from penstock.cli.top.schedules import SchedulesPane
from penstock.cli.top.titles import Titles
from penstock.cli.top.workers import WorkersPane

KEYS = (
    (
        "Everywhere",
        (
            ("1 2 3 4", "queues, jobs, workers, schedules"),
            ("j k, arrows", "down, up"),
            ("g G", "first, last"),
            ("/", "filter jobs, or go to a job by its number"),
            ("Enter", "open: the jobs of a queue or worker, a job, the last of a schedule"),
            ("Esc", "back"),
            ("t", "light or dark"),
            ("? q", "this page, the end"),
        ),
    ),
    ("Queues", (("p", "pause or resume"), ("d", "drain: wait until what is there has finished"))),
    (
        "Jobs",
        (
            ("r c x p", "retry, cancel, delete, priority: of one job"),
            ("R C X P", "the same for all jobs that fit the filter, counted first"),
            ("s", "the next state"),
            ("o", "newest or oldest first"),
            ("n b", "next page, page before"),
        ),
    ),
    ("Schedules", (("r", "run now"), ("p", "pause or resume"))),
    (
        "A job",
        (("w", "go to what blocks it"), ("r c x p", "retry, cancel, delete, priority")),
    ),
    (
        "Filters",
        (
            ("state: queue: task:", "pending, running, done, failed, cancelled, superseded; names"),
            ("tag: key: tenant:", "any such tag, this key, this tenant"),
            ("batch: parent: worker:", "of a batch, children of a job, what a worker runs"),
            ("since: older:", "ended or enqueued since, before: 90s, 30m, 12h, 7d ago"),
            ("other words", "a text in task, key, tags, tenant, arguments, error"),
        ),
    ),
)


class Top(Desk):
    """A store or a server on a terminal."""

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
        """The pages, between the titles and the keys."""
        yield Titles()
        with ContentSwitcher(initial="queues"):
            yield QueuesPane(id="queues")
            yield JobsPane(id="jobs")
            yield WorkersPane(id="workers")
            yield SchedulesPane(id="schedules")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to look."""
        self.query_one("#queue-list").focus()
        self.draw_all()
        self.follow()
        self.set_interval(1, self.draw_all)  # times go by, also while nothing happens

    async def on_unmount(self) -> None:
        """Let go of the connections."""
        await self.feed.close()

    def on_resize(self) -> None:
        """Make room, or use it."""
        for listing in self._main.query(Listing):
            listing.forget_widths()
        self.call_after_refresh(self.draw_all)

    # Showing

    @property
    def _main(self) -> Screen[object]:
        return self.screen_stack[0]

    @property
    def page(self) -> str:
        """The page in front, or behind what is in front."""
        return self._main.query_one(ContentSwitcher).current or "queues"

    def _front(self) -> Screen[object] | None:
        """The screen in front, behind questions; None while it comes, or all goes."""
        stack = self.screen_stack if self.is_running else []
        front = next((one for one in reversed(stack) if not isinstance(one, ModalScreen)), None)
        ready = front is not None and front.is_mounted and front.query("#trouble")
        return front if ready else None

    def view(self) -> View | None:
        """The page or the screen that is looked at."""
        front = self._front()
        if front is None or isinstance(front, JobScreen):
            return front
        return cast("View", front.query_one(f"#{self.page}"))

    def draw_all(self) -> None:
        """Show everything as of now."""
        front, view = self._front(), self.view()
        if front is not None and view is not None:
            front.query_one(Titles).show("" if isinstance(front, JobScreen) else self.page)
            view.draw()

    def open_page(self, name: str) -> None:
        """Bring a page to the front."""
        while isinstance(self.screen, JobScreen):
            self.pop_screen()
        self._main.query_one(ContentSwitcher).current = name
        self._main.query_one(f"#{name}").query_one(Listing).focus()
        self.draw_all()
        self.look_soon()

    def open_jobs(self, text: str) -> None:
        """List the jobs that a filter chooses."""
        self.open_page("jobs")
        try:
            self._main.query_one(JobsPane).choose(text)
        except FilterRefused as error:
            self.say(str(error), bad=True)

    def open_job(self, job_id: int) -> None:
        """Show a job in front of all."""
        self.push_screen(JobScreen(job_id), lambda _: self.look_soon())
        self.look_soon()

    # Keys

    def action_page(self, name: str) -> None:
        """Go to a page."""
        self.open_page(name)

    def action_filter(self) -> None:
        """Type a filter."""
        self.open_page("jobs")
        self._main.query_one("#filter", Input).focus()

    def action_leave(self) -> None:
        """Out of the filter; from the other pages to the queues."""
        if isinstance(self.focused, Input):
            self._main.query_one("#job-list").focus()
        elif self.page != "queues":
            self.open_page("queues")

    def action_theme(self) -> None:
        """Light or dark."""
        self.theme = LIGHT.name if self.theme == DARK.name else DARK.name
        self.draw_all()

    def action_help(self) -> None:
        """Show every key."""
        self.push_screen(Help(KEYS))
