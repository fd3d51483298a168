"""Commands on queues: `status`, `pause`, `resume`, `limit`, `drain`, `remove`, `limit-queues`."""

import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import msgspec

from penstock.cli.connection import (
    connected,
    did_you_mean,
    doubt_queue,
    offered,
    queue_exists,
    some_queues,
    suggest,
)
from penstock.cli.errors import Exit, QueueNotFound, warn
from penstock.cli.options import on_store, parse_age, parse_seconds
from penstock.cli.output import Column, emit, jobs_of, number, show_table, shown, span
from penstock.core.lifecycle import State, Waiting
from penstock.core.limits import MOST_QUEUES, Limit
from penstock.core.migration_lock import describe
from penstock.core.queue import Ages, Queue, QueueQuery, QueueStatus
from penstock.engine.penstock import run_sync
from penstock.engine.protocol import App
from penstock.engine.queues import Drained

queue_argument = click.argument("queue")
_MAX_LIMIT = 10**12
_SHOWN = 100
_NUMBERS = ("max_pending", "concurrency")
_PENDING = State.PENDING
_RARE = (Waiting.SCHEDULED, Waiting.BLOCKED, State.CANCELLED, State.SUPERSEDED)


def _parse_limit(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> int | msgspec.UnsetType | None:
    if value is None or value == "none":
        return msgspec.UNSET if value is None else None
    if not value.isdecimal() or int(value) > _MAX_LIMIT:
        raise click.BadParameter(f"{value!r} is neither an integer nor 'none'.", ctx, param)
    return int(value)


def _parse_rate(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, timedelta] | msgspec.UnsetType | None:
    if value is None or value == "none":
        return msgspec.UNSET if value is None else None
    n, slash, seconds = value.partition("/")
    if not slash or not n.isdecimal() or int(n) > _MAX_LIMIT:
        raise click.BadParameter(
            f"{value!r} is neither a rate such as 100/1 nor 'none'.", ctx, param
        )
    return int(n), parse_seconds(ctx, param, seconds)


def _parse_ages(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> Ages | msgspec.UnsetType | None:
    if value is None or value == "none":
        return msgspec.UNSET if value is None else None
    ages = tuple(parse_seconds(ctx, param, one) for one in value.split(","))
    return ages if len(ages) > 1 else ages[0]


@click.command("status")
@click.option("--name", metavar="TEXT", help="Only queues whose name contains this text.")
@click.option("--after", metavar="QUEUE", help="Only queues after this one, by name.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    help=f"The largest number of queues.  [default: {_SHOWN} in a table, all in JSON]",
)
@on_store
def show_status(
    *, name: str | None, after: str | None, limit: int | None, store: str, as_json: bool
) -> None:
    """Show the queues with their jobs by state.

    Also shows limits, and the number of workers.

    Pending jobs are counted by what they wait for: ready for a worker, scheduled for later, or
    blocked by an earlier job with their key.
    """
    if limit is None and not as_json:
        limit = _SHOWN
    one_more = None if limit is None else limit + 1
    query = QueueQuery(contains=name, after=after, limit=one_more)
    with connected(store) as app:
        found = run_sync(app.queues.statuses(query))
        more = limit is not None and len(found) > limit
        total = run_sync(app.queues.summary()).queues if more else len(found)
        limits = run_sync(offered(app.limits.list()))
        workers = run_sync(app.workers.list())
        migration = run_sync(offered(app.archive.migration()))
    silent = sum(worker.is_silent(datetime.now(UTC)) for worker in workers)
    alive = len(workers) - silent
    summaries = [_summary(status) for status in found[:limit]]
    if as_json:
        counted = {"alive": alive, "silent": silent}
        lock = None if migration is None else {"passage": migration.phase, "place": migration.place}
        emit(
            {
                "store": store,
                "queues": summaries,
                "limits": limits,
                "workers": counted,
                "seal": lock,
            }
        )
        return
    if summaries:
        _print_status(summaries)
    elif name is None and after is None:
        click.echo("There are no queues yet.")
    else:
        click.echo("No queue has such a name.")
    if more:
        click.echo(_more_text(summaries[-1]["name"], len(summaries), total, name))
    for held in limits or ():
        click.echo(shown(_limit_text(held)))
    click.echo(_workers_text(alive, silent))
    if migration is not None:
        text = describe(migration)
        click.echo(shown(f"{text[0].upper()}{text[1:]}."))


def _workers_text(alive: int, silent: int) -> str:
    text = f"{alive:,} workers are alive" if alive > 1 else f"{alive or 'No'} worker is alive"
    if not silent:
        return f"{text}."
    return f"{text}, {silent} silent; to list them: {suggest('workers')}"


def _limit_text(limit: Limit) -> str:
    if limit.kind == "queues":
        return _queues_text(limit.concurrency)
    what = f"throttle {limit.name}…" if limit.kind == "throttle" else f"task {limit.name}"
    if limit.concurrency == 1:
        return f"Jobs of {what} run one at a time."
    return f"At most {limit.concurrency:,} jobs of {what} run at a time."


def _queues_text(limit: int | None) -> str:
    return f"The store accepts at most {limit:,} queue{'' if limit == 1 else 's'}."


def _more_text(last: str, shown_here: int, total: int, name: str | None) -> str:
    narrowed = f" --name {shlex.quote(name)}" if name else ""
    on = suggest(f"status{narrowed} --after {shlex.quote(last)}")
    search = "" if name else " To search by name: --name TEXT."
    return shown(f"{shown_here:,} of {total:,} queues; to see the next ones: {on}.{search}")


def _summary(status: QueueStatus) -> dict[str, Any]:
    """Return a queue with its jobs by state, and its pending ones by what they wait for."""
    queue = status.queue
    return {
        "name": queue.name,
        "paused": queue.paused,
        "paused_until": queue.paused_until,
        "max_pending": queue.max_pending,
        "concurrency": queue.concurrency,
        "rate": queue.rate,
        "promote_after": queue.promote_after,
        "states": {state.value: n for state, n in status.states.items()},
        "waiting": {waiting.value: n for waiting, n in status.waiting.items()},
    }


def _print_status(summaries: Sequence[Mapping[str, Any]]) -> None:
    counted = [{**summary["states"], **summary["waiting"]} for summary in summaries]
    # Rare states have a column only if there are such jobs.
    titles = [
        title
        for title in (_PENDING, *Waiting, *(state for state in State if state is not _PENDING))
        if title not in _RARE or any(counts[title] for counts in counted)
    ]
    columns = [Column("queue", bends=True), Column(""), Column("limit", right=True)]
    columns += [Column(title, right=True) for title in ("at once", "rate", "promoted after")]
    columns += [Column(title.value, right=True) for title in titles]
    rows = [
        [
            summary["name"],
            _pause(summary),
            *_limits(summary),
            *(number(counts[title]) for title in titles),
        ]
        for summary, counts in zip(summaries, counted, strict=True)
    ]
    show_table(columns, rows)


def _pause(summary: Mapping[str, Any]) -> str:
    until = summary["paused_until"]
    if until is None:
        return "paused" if summary["paused"] else ""
    return f"paused for {span(max(until - datetime.now(UTC), timedelta(0)))}"


def _limits(summary: Mapping[str, Any]) -> list[str]:
    rate, after = summary["rate"], summary["promote_after"]
    return [
        *("" if summary[name] is None else f"{summary[name]:,}" for name in _NUMBERS),
        "" if rate is None else f"{rate[0]:,} in {span(rate[1])}",
        "" if after is None else _ages_text(after),
    ]


@click.command("pause")
@queue_argument
@click.option(
    "--for",
    "duration",
    metavar="TIME",
    callback=parse_age,
    help="Resume automatically after this time: 90s, 30m, 12h.",
)
@on_store
def pause_queue(*, queue: str, duration: timedelta | None, store: str, as_json: bool) -> None:
    """Pause a queue: start no more of its jobs, in any process.

    Running jobs continue. A queue can be paused before its first job. Pausing again sets a new
    end.
    """
    with connected(store) as app:
        unknown = doubt_queue(app, queue)
        paused = run_sync(app.queues.pause(queue, duration=duration))
    until = "" if duration is None or paused.paused_until is None else f" for {span(duration)}"
    _print_queue(
        paused,
        f"is paused{until}; to resume it: {suggest(f'resume {shlex.quote(queue)}')}",
        as_json=as_json,
        warning=unknown,
    )


@click.command("resume")
@queue_argument
@on_store
def resume_queue(*, queue: str, store: str, as_json: bool) -> None:
    """Resume a paused queue."""
    with connected(store) as app:
        require_queue(app, queue)
        resumed = run_sync(app.queues.resume(queue))
    _print_queue(resumed, "is resumed.", as_json=as_json)


@click.command("limit")
@queue_argument
@click.argument("max_pending", metavar="[N|none]", callback=_parse_limit, required=False)
@click.option(
    "--concurrency",
    metavar="N|none",
    callback=_parse_limit,
    help="Run at most this many jobs at a time, in all processes.",
)
@click.option(
    "--rate",
    metavar="N/SECONDS|none",
    callback=_parse_rate,
    help="Start at most N jobs within any SECONDS: 100/1.",
)
@click.option(
    "--promote-after",
    metavar="SECONDS|none",
    callback=_parse_ages,
    help="Raise the priority of a waiting job every SECONDS, or once at each age: 300,900.",
)
@on_store
def limit_queue(*, queue: str, store: str, as_json: bool, **limits: Any) -> None:
    """Set limits of a queue: pending jobs, concurrency, rate.

    While the queue has N pending jobs, enqueuing raises `QueueFull`. The word none removes a
    limit; limits that are not named stay.
    """
    if all(value is msgspec.UNSET for value in limits.values()):
        raise click.UsageError("no limit is given: add the number of pending jobs, or an option")
    with connected(store) as app:
        unknown = doubt_queue(app, queue)
        limited = run_sync(app.limits.queue(queue, **limits))
    _print_queue(limited, _limits_text(limited), as_json=as_json, warning=unknown)


def _ages_text(ages: Ages) -> str:
    return " and ".join(map(span, ages)) if isinstance(ages, tuple) else span(ages)


def _limits_text(queue: Queue) -> str:
    parts = []
    if queue.max_pending is not None:
        parts.append(f"accepts at most {jobs_of(queue.max_pending).replace(' ', ' pending ')}")
    if queue.concurrency is not None:
        parts.append(f"runs at most {jobs_of(queue.concurrency)} at a time")
    if queue.rate is not None:
        parts.append(f"starts at most {jobs_of(queue.rate[0])} in {span(queue.rate[1])}")
    if queue.promote_after is not None:
        parts.append(f"promotes jobs after {_ages_text(queue.promote_after)}")
    return f"{', '.join(parts)}." if parts else "has no limits."


def _print_queue(queue: Queue, text: str, *, as_json: bool, warning: str | None = None) -> None:
    if as_json:
        emit(queue)
    else:
        click.echo(shown(f"Queue {queue.name} {text}"))
    if warning is not None:
        warn(warning, as_json=as_json)


@click.command("remove")
@queue_argument
@on_store
def remove_queue(*, queue: str, store: str, as_json: bool) -> None:
    """Remove a queue with its limits and its pause.

    A queue disappears with its last job, immediately if it has none. A queue with unfinished jobs
    is not removed.
    """
    with connected(store) as app:
        require_queue(app, queue)
        run_sync(app.queues.remove(queue))
        stays = queue_exists(app, queue)
    if as_json:
        emit({"name": queue, "removed": not stays})
    elif stays:
        click.echo(
            shown(f"Queue {queue} has no settings any more, and disappears with its last job.")
        )
    else:
        click.echo(shown(f"Queue {queue} is removed."))


@click.command("limit-queues")
@click.argument("most", metavar="N|none", callback=_parse_limit)
@on_store
def limit_queues(*, most: int | None, store: str, as_json: bool) -> None:
    """Limit the number of queues.

    'none' restores the default of 100,000. A job for a queue beyond the limit is refused; existing
    queues stay.
    """
    with connected(store) as app:
        run_sync(app.limits.queues(most))
        limit = MOST_QUEUES if most is None else most
    if as_json:
        emit({"queues": limit})
    else:
        click.echo(_queues_text(limit))


@click.command("drain")
@click.argument("queue", required=False)
@click.option(
    "--timeout",
    metavar="SECONDS",
    default="60",
    show_default=True,
    callback=parse_seconds,
    help="The longest time to wait.",
)
@on_store
def drain_queue(*, queue: str | None, timeout: timedelta, store: str, as_json: bool) -> None:
    """Wait until the jobs that are unfinished now have finished.

    In all queues unless one is named; jobs that are enqueued later do not count. Ends early when
    all remaining jobs are in paused queues.
    """
    with connected(store) as app:
        if queue is not None:
            require_queue(app, queue)
        drained = run_sync(app.queues.drain(queue, timeout=timeout))
    if as_json:
        emit(drained)
    else:
        click.echo(_drain_text(drained))
    if drained.status != "drained":
        click.get_current_context().exit(Exit.NOT_DRAINED)


def _drain_text(drained: Drained) -> str:
    if drained.status == "drained":
        return f"Drained after {span(drained.elapsed)}."
    left = f"{jobs_of(drained.remaining)} left after {span(drained.elapsed)}"
    if drained.status == "paused":
        return f"Not drained: {left}, in paused queues; to list them: {suggest('status')}"
    return f"Not drained: {left}; is a worker running? To list the jobs: {suggest('jobs')}"


def require_queue(app: App, name: str) -> None:
    """Raise `QueueNotFound` for a queue that has neither jobs nor settings."""
    if not queue_exists(app, name):
        error = QueueNotFound(f"there is no queue {name!r}{did_you_mean(name, some_queues(app))}")
        error.add_note(suggest("status"))
        raise error


COMMANDS: Sequence[click.Command] = (
    show_status,
    pause_queue,
    resume_queue,
    limit_queue,
    drain_queue,
    remove_queue,
    limit_queues,
)
