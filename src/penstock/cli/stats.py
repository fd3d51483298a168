"""The command `stats`: throughput of the queues, waiting times and running times."""

import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from heapq import nlargest
from typing import Any

import click
import msgspec

from penstock.cli.connection import complete_queues, connected, offered
from penstock.cli.options import on_store, parse_age
from penstock.cli.output import Column, emit, number, show_table, span
from penstock.cli.queues import require_queue
from penstock.core.lifecycle import Event
from penstock.core.statistics import KEPT, MINUTE, Interval, Spread
from penstock.engine.penstock import run_sync

_RATES = (Event.ENQUEUED, Event.DONE, Event.FAILED)
_PARTS = (0.5, 0.95)
_COLUMNS = (
    Column("queue", bends=True),
    *(Column(f"{event}/s", right=True) for event in _RATES),
    *(Column(title, right=True) for title in ("wait p50", "p95", "run p50", "p95")),
)
_BARS = "▁▂▃▄▅▆▇█"
_LONGEST_LINE = 120
_SHOWN = 100
# Columns around a sparkline in a narrow terminal: the queue, the highest number, gaps.
_MARGIN = 30


class Flow(msgspec.Struct, frozen=True):
    """What happened in one queue in the requested period."""

    queue: str
    counts: dict[Event, int]
    wait: Spread
    run: Spread
    done: list[int]
    """Per minute, the newest last."""


@click.command("stats")
@click.option("--queue", help="Only this queue.", shell_complete=complete_queues)
@click.option(
    "--since",
    metavar="TIME",
    callback=parse_age,
    default="1h",
    show_default=True,
    help="The period, at most 8d: 90s, 30m, 12h.",
)
@on_store
def show_stats(*, queue: str | None, since: timedelta, store: str, as_json: bool) -> None:
    """Show throughput, waiting times and running times by queue.

    Rates are averages over the whole period. Every failed run counts, even if the job is retried.
    Of all jobs, 95% took at most the time in the column p95, to the precision that is kept.
    """
    if since > KEPT:
        raise click.BadParameter(f"statistics are kept for {span(KEPT)}.", param_hint="'--since'")
    until = datetime.now(UTC)
    begin = (until - max(since, MINUTE)).replace(second=0, microsecond=0)
    with connected(store) as app:
        if queue is not None:
            require_queue(app, queue)
        run_sync(offered(app.statistics.roll_up()))  # a server does it by itself
        found = run_sync(app.statistics.intervals(begin, until, queue))
    minutes = -((begin - until) // MINUTE)
    by_queue: dict[str, list[Interval]] = {}
    for one in found:
        by_queue.setdefault(one.queue, []).append(one)
    flows = [_flow(name, own, begin, minutes) for name, own in sorted(by_queue.items())]
    if as_json:
        emit(
            {
                "since": begin,
                "until": until,
                "queues": [_plain(one, until - begin) for one in flows],
            }
        )
    elif flows:
        _print(_busiest(flows), until - begin)
        if len(flows) > _SHOWN:
            click.echo(
                f"The {_SHOWN} busiest of {len(flows):,} queues; for one queue: --queue NAME"
            )
    else:
        click.echo(f"Nothing happened in the last {span(since)}.")


def _flow(queue: str, found: Sequence[Interval], begin: datetime, minutes: int) -> Flow:
    counts: Counter[Event] = Counter()
    done = [0] * minutes
    for one in found:
        counts.update(one.counts)
        done[(one.at - begin) // MINUTE] += one.counts.get(Event.DONE, 0)
    return Flow(
        queue=queue,
        counts={event: counts[event] for event in Event if counts[event]},
        wait=sum((one.wait for one in found), Spread()),
        run=sum((one.run for one in found), Spread()),
        done=done,
    )


def _busiest(flows: Sequence[Flow]) -> list[Flow]:
    """Return the busiest queues, by name."""
    most = nlargest(_SHOWN, flows, key=lambda flow: sum(flow.counts.values()))
    return sorted(most, key=lambda flow: flow.queue)


def _plain(flow: Flow, time: timedelta) -> dict[str, Any]:
    return {
        "queue": flow.queue,
        "counts": flow.counts,
        "per_second": {event: _rate(flow, event, time) for event in _RATES},
        "wait": _times(flow.wait),
        "run": _times(flow.run),
        "done_per_minute": flow.done,
    }


def _times(spread: Spread) -> dict[str, Any]:
    p50, p95 = map(spread.quantile, _PARTS)
    return {"count": spread.count, "total": spread.total, "p50": p50, "p95": p95}


def _rate(flow: Flow, event: Event, time: timedelta) -> float:
    return flow.counts.get(event, 0) / time.total_seconds()


def _print(flows: Sequence[Flow], time: timedelta) -> None:
    rows = [
        [
            flow.queue,
            *(_per_second(_rate(flow, event, time)) for event in _RATES),
            *(_time(spread.quantile(p)) for spread in (flow.wait, flow.run) for p in _PARTS),
        ]
        for flow in flows
    ]
    show_table(_COLUMNS, rows)
    click.echo()
    width = shutil.get_terminal_size().columns - _MARGIN if sys.stdout.isatty() else _LONGEST_LINE
    newest = max(1, min(width, _LONGEST_LINE, len(flows[0].done)))
    title = f"done per minute, the last {newest} min"
    columns = (Column("queue", bends=True), Column("most", right=True), Column(title))
    lines = [(flow.queue, flow.done[-newest:]) for flow in flows]
    show_table(columns, [[name, number(max(done)), sparkline(done)] for name, done in lines])


def sparkline(numbers: Sequence[int]) -> str:
    """Return a bar for each number, scaled to the highest; a dot for zero."""
    most = max(numbers, default=0)
    return "".join(_BARS[(n * len(_BARS) - 1) // most] if n else "·" for n in numbers)


def _per_second(rate: float) -> str:
    if not rate:
        return number(0)
    if rate < 0.01:  # noqa: PLR2004 - the smallest that two places show
        return "<0.01"
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.2f}"  # noqa: PLR2004 - more places are noise


def _time(duration: timedelta | None) -> str:
    if duration is None:
        return number(0)
    return "<1 ms" if duration < timedelta(milliseconds=1) else span(duration)


COMMANDS: Sequence[click.Command] = (show_stats,)
