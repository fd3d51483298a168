"""`jobs --watch`: what the queues do, live, like `top`."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Literal

import click

from penstock.cli.output import STYLES, console, number, shown, span, when
from penstock.cli.store import App
from penstock.core.job import Job, JobQuery, QueueQuery, QueueStatus, Stages, fits, headline
from penstock.core.lifecycle import State, Waiting
from penstock.core.note import Progress
from penstock.core.redaction import redacted
from penstock.engine import Penstock, run_sync

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

# However much happens, a person reads only so fast; the store is asked no more often.
_PAUSE = 0.5
_LOOK_AGAIN = 2.0
_WIDTH = 20
_RUNNING_SHOWN, _ENDED_SHOWN, _WAITING_SHOWN = 15, 10, 5
_QUEUES_SHOWN = 20
# How many entries of the log are read for what ended last, and how many of their jobs looked at.
_LOG_READ, _LOOKED_AT = 1_000, 100


def watch(app: App, query: JobQuery) -> None:
    """Show the queues, what runs and what came last, until Ctrl-C."""
    from rich.live import Live

    target = console()
    if not target.is_terminal:
        raise click.UsageError("--watch draws on a terminal; use `log --follow` in a pipe")
    seen, ended = 0, Ended()
    with Live(console=target, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_picture(app, query, ended), refresh=True)
            time.sleep(_PAUSE)
            if isinstance(app, Penstock):
                seen = run_sync(app.store.wait(seen, _LOOK_AGAIN))


class Ended:
    """How many jobs end in a second, from the totals of two looks."""

    def __init__(self) -> None:
        self._last: tuple[float, int] | None = None

    def rate(self, counts: Stages) -> float | None:
        """The rate since the last look; retention makes totals fall, which counts as none."""
        now = time.monotonic(), sum(n for (state, _), n in counts.items() if state.final)
        last, self._last = self._last, now
        if last is None or now[0] <= last[0]:
            return None
        return max(0.0, (now[1] - last[1]) / (now[0] - last[0]))


def _picture(app: App, query: JobQuery, ended: Ended) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    overall = run_sync(app.overall())
    queues = run_sync(app.queue_statuses(QueueQuery(limit=_QUEUES_SHOWN)))
    rate = ended.rate(overall.counts)
    running = run_sync(app.find(_narrowed(query, frozenset({State.RUNNING}), _RUNNING_SHOWN)))
    newest = run_sync(app.find(_narrowed(query, query.states, _ENDED_SHOWN)))
    over = _ended_lately(app, query, newest)
    waiting = [job for job in newest if job.state is State.PENDING][:_WAITING_SHOWN]
    left = overall.queues - len(queues)
    now = datetime.now(UTC)
    speed = "" if rate is None else f"   {rate:,.0f} ended a second"
    return Group(
        Text(
            f"penstock {redacted(app.url)}   {now:%H:%M:%S} UTC{speed}   Ctrl-C ends",
            style="bold",
        ),
        Text(),
        _queues(queues),
        *((Text(f"{left:,} more queues", style="dim"),) if left > 0 else ()),
        Text("\nRunning", style="bold"),
        _running(app, running, now),
        Text("\nEnded last", style="bold"),
        _listed(over, now) if over else Text("nothing has ended", style="dim"),
        *((Text("\nWaiting, the newest", style="bold"), _listed(waiting, now)) if waiting else ()),
    )


def _ended_lately(app: App, query: JobQuery, newest: Sequence[Job]) -> list[Job]:
    """The jobs that ended last, as far back as the log is read; by ids, that would take a walk.

    A server is asked for the newest jobs that have ended.
    """
    found = {job.id: job for job in newest}
    if isinstance(app, Penstock):
        last = run_sync(app.newest_log())
        entries = run_sync(app.log(after=max(0, last - _LOG_READ), limit=_LOG_READ))
        ids = dict.fromkeys(entry.job_id for entry in reversed(entries) if entry.state.final)
        found |= {job.id: job for job in run_sync(app.store.get([*islice(ids, _LOOKED_AT)]))}
    else:
        final = frozenset(state for state in query.states or State if state.final)
        more = run_sync(app.find(_narrowed(query, final, _ENDED_SHOWN))) if final else []
        found |= {job.id: job for job in more}
    ended = [job for job in found.values() if job.state.final and fits(job, query)]
    ended.sort(key=lambda job: (job.finished_at or job.enqueued_at, job.id), reverse=True)
    return ended[:_ENDED_SHOWN]


def _narrowed(query: JobQuery, states: frozenset[State] | None, limit: int) -> JobQuery:
    import msgspec

    return msgspec.structs.replace(query, states=states, limit=limit, after=None)


def _table(*titles: str, right: tuple[str, ...] = ()) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in titles:
        side: Literal["left", "right"] = "right" if title in right else "left"
        table.add_column(title, justify=side, no_wrap=True, overflow="ellipsis")
    return table


def _styled(text: str) -> "Text":
    """A state in its colour."""
    from rich.text import Text

    return Text(text, style=STYLES.get(text.split(" ", maxsplit=1)[0], ""))


def _queues(queues: list[QueueStatus]) -> "Table":
    titles = ("ready", "scheduled", "blocked", "running", "done", "failed")
    table = _table("queue", *titles, "", right=titles)
    places = (
        Waiting.READY, Waiting.SCHEDULED, Waiting.BLOCKED, State.RUNNING, State.DONE, State.FAILED,
    )  # fmt: skip
    for one in queues:
        totals = one.totals
        numbers = [number(totals[place]) for place in places]
        paused = _styled("paused" if one.queue.paused else "")
        table.add_row(shown(one.queue.name), *numbers, paused)
    return table


def _running(app: App, jobs: list[Job], now: datetime) -> "RenderableType":
    from rich.text import Text

    if not jobs:
        return Text("nothing runs", style="dim")
    progress = _progress(app, jobs)
    titles = ("id", "task", "for", "progress", "rate", "left", "note", "worker")
    table = _table(*titles, right=("id", "for", "rate", "left"))
    for job in jobs:
        said = progress.get(job.id)
        table.add_row(
            str(job.id),
            shown(job.task),
            "" if job.started_at is None else span(now - job.started_at),
            Text("" if said is None else bar(said.fraction), style=STYLES["running"]),
            "" if said is None or not said.rate else f"{said.rate:,.3g}/s",
            "" if said is None or said.left is None else span(said.left),
            "" if said is None else shown(said.note or ""),
            shown(job.worker or ""),
        )
    return table


def _progress(app: App, jobs: list[Job]) -> dict[int, Progress]:
    if isinstance(app, Penstock):
        return run_sync(app.progress([job.id for job in jobs]))
    said = {job.id: run_sync(app.progress(job.id)) for job in jobs}
    return {job_id: progress for job_id, progress in said.items() if progress is not None}


def bar(fraction: float | None) -> str:
    """A share as a bar of fixed width; nothing where it is unknown."""
    if fraction is None:
        return ""
    full = round(min(max(fraction, 0.0), 1.0) * _WIDTH)
    return f"{'━' * full}{'╌' * (_WIDTH - full)} {fraction:4.0%}"


def _listed(jobs: list[Job], now: datetime) -> "Table":
    from penstock.cli.jobs import standing

    table = _table("id", "task", "state", "when", "error", right=("id",))
    for job in jobs:
        latest = job.finished_at or job.started_at or job.enqueued_at
        table.add_row(
            str(job.id),
            shown(job.task),
            _styled(standing(job)),
            when(latest, now),
            shown(headline(job.error)),
        )
    return table
