"""Columns and cells of queues and jobs, as live views show them."""

from datetime import datetime

from rich.text import Text

from penstock.cli.live.figures import Figures
from penstock.cli.live.style import Colours, count, duration, plain, rate, share, word
from penstock.cli.output import Column, latest, state_word, when
from penstock.cli.stats import sparkline
from penstock.core.job import Job, headline
from penstock.core.lifecycle import State

QUEUE_COLUMNS = (
    Column("queue", bends=True),
    Column("", bends=False),
    Column("waiting", right=True),
    Column("oldest", right=True),
    Column("running", right=True),
    Column("in", right=True),
    Column("out", right=True),
    Column("empty in", right=True),
    Column("failed", right=True),
    Column("busy"),
    Column("done per minute"),
)
JOB_COLUMNS = (
    Column("id", right=True),
    Column("state"),
    Column("task", bends=True),
    Column("tries", right=True),
    Column("when"),
    Column("queue", bends=True),
    Column("key", bends=True),
    Column("tags", bends=True),
    Column("error", bends=True),
)


def queue_cells(one: Figures, palette: Colours) -> list[Text]:
    """Return the cells of a queue."""
    flag = "paused" if one.paused else "full" if one.full else ""
    return [
        plain(one.queue, "bold"),
        word(flag, palette) if flag else Text(),
        count(one.pending, palette["pending"]),
        plain(duration(one.oldest_ready)),
        plain(f"{one.running:,}/{one.slots:,}" if one.slots else f"{one.running:,}"),
        plain(rate(one.rate_in)),
        plain(rate(one.rate_out)),
        plain(duration(one.time_to_empty, "never") if one.pending else ""),
        count(one.failed, palette["failed"]),
        plain(share(one.utilisation), palette["running"]),
        plain(sparkline(one.done_per_minute), palette["done"]),
    ]


def job_cells(job: Job, now: datetime, palette: Colours, *, gone: bool = False) -> list[Text]:
    """Return the cells of a job; one that is `gone` no longer matches, or was removed."""
    quiet = palette["quiet"]
    return [
        plain(str(job.id), quiet),
        plain("gone", quiet) if gone else word(state_word(job), palette),
        plain(job.task, quiet if gone else "bold"),
        plain(f"{job.attempt}/{job.retry.attempts}"),
        plain(when(latest(job), now)),
        plain(job.queue),
        plain(job.key or ""),
        plain(", ".join(job.tags)),
        plain(headline(job.error), palette["failed"] if job.state is State.FAILED else quiet),
    ]
