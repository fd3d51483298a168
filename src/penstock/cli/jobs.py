"""Commands on jobs: `jobs`, `explain`, `cancel`, `retry`."""

import json
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from msgspec.structs import replace

from penstock.admin import Bulk
from penstock.cli.admin import Choice, change_all, choosing, doubt_choice
from penstock.cli.exits import Exit, report, warn
from penstock.cli.output import (
    Column,
    concealed,
    decoded,
    emit,
    is_narrow,
    plain,
    show_table,
    show_text,
    shown,
    span,
    when,
    wrapped,
)
from penstock.cli.store import JOB_ID, App, on_store, reached, suggest
from penstock.cli.watch import watch
from penstock.core.errors import PenstockError, TransitionRefused
from penstock.core.job import DEFAULT_QUEUE, Job, JobId, JobQuery, LogEntry, headline
from penstock.core.lifecycle import State, Waiting
from penstock.core.note import LINES_KEPT, Line, Progress
from penstock.engine import Penstock, run_sync
from penstock.explaining import Explanation

# Entries of one job's log that are shown: a job that is snoozed for ever has many.
_LOG_LIMIT = 1_000
_LINES_SHOWN = 10
# Of arguments, results and checkpoints, which may be a million characters.
_TEXT_SHOWN = 20_000

_COLUMNS = (
    Column("id", right=True),
    Column("task", bends=True),
    Column("state"),
    Column("tries", right=True),
    Column("when"),
    Column("queue", bends=True),
    Column("key", bends=True),
    Column("error", bends=True),
)
_LOG_COLUMNS = (
    Column("when"),
    Column("event"),
    Column("state"),
    Column("took", right=True),
    Column("by", bends=True),
    Column("reason", bends=True),
    Column("error", bends=True),
)

_LINE_COLUMNS = (
    Column("when"),
    Column("level"),
    Column("try", right=True),
    Column("text", bends=True),
)


@click.command("jobs")
@click.argument("job_id", metavar="[ID]", type=JOB_ID, required=False)
@choosing(confirms=False)
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="At most this many jobs.",
)
@click.option("--after", type=JOB_ID, metavar="ID", help="Go on after this job of the last page.")
@click.option(
    "--lines",
    type=click.IntRange(0, LINES_KEPT),
    default=_LINES_SHOWN,
    show_default=True,
    help="With an ID: the newest lines that the job has logged, at most this many.",
)
@click.option("--watch", "live", is_flag=True, help="Show queues and jobs live, until Ctrl-C.")
@on_store
def list_jobs(
    *,
    live: bool,
    job_id: int | None,
    choice: Choice,
    limit: int,
    after: int | None,
    lines: int,
    store: str,
    as_json: bool,
) -> None:
    """List jobs, newest first; with an ID, show that job in full."""
    if job_id is not None:
        if choice.any or live or after is not None:
            raise click.UsageError(
                "filters and --watch are for many jobs: leave them out, or the ID",
                click.get_current_context(),
            )
        show_job(job_id, lines, store, as_json=as_json)
        return
    query = replace(
        choice.query,
        after=None if after is None else JobId(after),
        limit=limit + 1,  # one more tells whether there is another page
    )
    with reached(store) as app:
        if live:
            watch(app, query)
        found = [job for job in run_sync(app.find(query)) if app.secrets.lets_find(job, query)]
        doubt = None if found else doubt_choice(app, choice)
    if doubt is not None:
        warn(doubt, as_json=as_json)
    page, more = found[:limit], len(found) > limit
    if as_json:
        emit({"jobs": page, "after": page[-1].id if more else None})
        return
    _print_jobs(page, datetime.now(UTC))
    if more:
        click.echo(f"There are more: add --after {page[-1].id}")


def _print_jobs(jobs: Sequence[Job], now: datetime) -> None:
    if not jobs:
        click.echo("There are no such jobs.")
        return
    plain_queue = all(job.queue == DEFAULT_QUEUE for job in jobs)
    stands = _standing_in_a_word if is_narrow() else standing
    show_table(_COLUMNS, [_row(job, stands(job), now, plain_queue=plain_queue) for job in jobs])


def _row(job: Job, state: str, now: datetime, *, plain_queue: bool) -> list[str]:
    return [
        str(job.id),
        job.task,
        state,
        f"{job.attempt}/{job.retry.attempts}",
        when(_latest(job), now),
        "" if plain_queue else job.queue,
        job.key or "",
        headline(job.error),
    ]


def standing(job: Job) -> str:
    """A job's state and, when pending, what it waits for."""
    if job.cancel_requested:
        return f"{job.state} (asked to stop)"
    return f"{job.state} ({job.waiting})" if job.waiting else str(job.state)


def _standing_in_a_word(job: Job) -> str:
    return "stopping" if job.cancel_requested else str(job.waiting or job.state)


def _latest(job: Job) -> datetime:
    """The instant that says most about a job in its state."""
    if job.state is State.PENDING:
        return job.run_at if job.waiting is Waiting.SCHEDULED else job.enqueued_at
    return job.finished_at or job.started_at or job.enqueued_at


def show_job(job_id: int, most: int, store: str, *, as_json: bool) -> None:
    """Print all that is known about one job, with so many of its lines."""
    with reached(store) as app:
        job = run_sync(app.get(job_id))
        explanation = run_sync(app.explain(job_id))
        progress = run_sync(app.progress(job_id))
        saved = run_sync(app.checkpoint(job_id)) if isinstance(app, Penstock) else None
        checkpoint = concealed(saved)
        lines = run_sync(app.lines(job_id, limit=LINES_KEPT))
        log = run_sync(app.log(job_id, limit=_LOG_LIMIT))
    shown_lines = lines[len(lines) - min(most, len(lines)) :]
    if as_json:
        said = {"progress": progress, "checkpoint": checkpoint, "lines": shown_lines}
        emit({**plain(job), "explanation": explanation, **said, "log": log})
        return
    now = datetime.now(UTC)
    _print_fields(job, explanation, progress, now)
    for title, value in (("Arguments", decoded(job.payload)), ("Checkpoint", checkpoint)):
        if value is not None:
            _print_json(title, value)
    if job.result_json is not None:
        _print_json("Result", decoded(job.result_json))
    if job.error:
        show_text("Error", job.error)
    _print_lines(shown_lines, now)
    if len(shown_lines) < len(lines):
        more = suggest(f"jobs {job_id} --lines {LINES_KEPT}")
        click.echo(f"It keeps {len(lines):,} lines; to see all: {more}")
    _print_log(log, now)


def _print_json(title: str, value: object) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if len(text) > _TEXT_SHOWN:
        text = f"{text[:_TEXT_SHOWN]}\n… {len(text):,} characters in all; --json has them"
    show_text(title, text)


def _print_lines(lines: Sequence[Line], now: datetime) -> None:
    if not lines:
        return
    click.echo(click.style("\nLines", bold=True))
    rows = [[when(one.at, now), one.level, str(one.attempt), one.text] for one in lines]
    show_table(_LINE_COLUMNS, rows)


def _print_fields(
    job: Job, explanation: Explanation, progress: Progress | None, now: datetime
) -> None:
    click.echo(click.style(wrapped(shown(f"Job {job.id}: {job.task}, {standing(job)}")), bold=True))
    click.echo(wrapped(shown(f"{explanation.text[:1].upper()}{explanation.text[1:]}.")) + "\n")
    for name, value in [*_fields(job, now), ("progress", _far(progress))]:
        if value:
            click.echo(wrapped(f"  {name:<9} {shown(value)}", hang=12))


def _fields(job: Job, now: datetime) -> list[tuple[str, str]]:
    lease = f"token {job.token}, {span(job.lease_time)} long"
    return [
        ("queue", f"{job.queue}, priority {job.priority}"),
        ("key", job.key or ""),
        ("dedupe", f"{job.dedupe} (among {job.scope})" if job.dedupe else ""),
        ("tags", ", ".join(job.tags)),
        ("batch", job.correlation or ""),
        ("parent", f"job {job.parent}" if job.parent else ""),
        ("tenant", job.tenant or ""),
        ("throttle", job.throttle or ""),
        ("attempt", f"{job.attempt} of {job.retry.attempts}"),
        ("timeout", span(job.timeout) if job.timeout else ""),
        ("enqueued", _at(job.enqueued_at, now)),
        ("due", _at(job.run_at, now)),
        ("started", _at(job.started_at, now)),
        ("finished", _at(job.finished_at, now)),
        ("worker", job.worker or ""),
        ("lease", lease if job.state is State.RUNNING else ""),
    ]


def _far(progress: Progress | None) -> str:
    """How far a job is, in words: `3 of 4 (75%), img-3.png`."""
    if progress is None:
        return ""
    far = f"{progress.done:,g}"
    if progress.total is not None:
        far += f" of {progress.total:,g}"
    if progress.fraction is not None:
        far += f" ({progress.fraction:.0%})"
    return f"{far}, {progress.note}" if progress.note else far


def _at(instant: datetime | None, now: datetime) -> str:
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC, {when(instant, now)}" if instant else ""


def _print_log(log: Sequence[LogEntry], now: datetime) -> None:
    click.echo(click.style("\nLog", bold=True))
    show_table(
        _LOG_COLUMNS,
        [
            [
                when(entry.at, now),
                entry.event,
                entry.state,
                "" if entry.duration is None else span(entry.duration),
                entry.actor,
                entry.reason or "",
                headline(entry.error),
            ]
            for entry in log
        ],
    )
    if len(log) == _LOG_LIMIT:
        click.echo(f"Only the first {_LOG_LIMIT} entries of its log are shown.")


@click.command("explain")
@click.argument("job_id", metavar="ID", type=JOB_ID)
@on_store
def explain_job(*, job_id: int, store: str, as_json: bool) -> None:
    """Say why a job is not running, or what became of it."""
    with reached(store) as app:
        explanation = run_sync(app.explain(job_id))
    if as_json:
        emit(explanation)
    else:
        click.echo(wrapped(shown(f"Job {job_id}: {explanation.text}")))


@click.command("cancel")
@click.argument("job_ids", metavar="[ID]...", type=JOB_ID, nargs=-1)
@click.option("--reason", help="Why, for the log.")
@choosing(confirms=True)
@on_store
def cancel_jobs(
    *, job_ids: tuple[int, ...], reason: str | None, choice: Choice, store: str, as_json: bool
) -> None:
    """End pending jobs; ask running ones to stop.

    Those with these IDs, or all that fit the filters.
    """
    if not _named(job_ids, choice):

        def run(app: App, query: JobQuery, **how: Any) -> Coroutine[Any, Any, Bulk]:
            return app.cancel_all(query, reason=reason, **how)

        change_all(run, "cancel", choice, store, as_json=as_json)
        return
    _steer(job_ids, lambda app, job_id: app.cancel(job_id, reason), store, as_json=as_json)


@click.command("retry")
@click.argument("job_ids", metavar="[ID]...", type=JOB_ID, nargs=-1)
@click.option("--reason", help="Why, for the log.")
@choosing(confirms=True)
@on_store
def retry_jobs(
    *, job_ids: tuple[int, ...], reason: str | None, choice: Choice, store: str, as_json: bool
) -> None:
    """Run failed, cancelled or waiting jobs now.

    They have all their attempts again. Those with these IDs, or all failed ones that fit the
    filters; cancelled and waiting ones if --state names them.
    """
    if not _named(job_ids, choice):

        def run(app: App, query: JobQuery, **how: Any) -> Coroutine[Any, Any, Bulk]:
            return app.retry_all(query, reason=reason, **how)

        change_all(run, "retry", choice, store, as_json=as_json)
        return
    _steer(job_ids, lambda app, job_id: app.retry(job_id, reason), store, as_json=as_json)


def _named(job_ids: Sequence[int], choice: Choice) -> bool:
    """Whether jobs are named by their ids; not by filters as well."""
    if job_ids and (choice.any or choice.dry_run):
        raise click.UsageError(
            "filters and --dry-run choose among jobs: leave them out, or the IDs",
            click.get_current_context(),
        )
    return bool(job_ids)


def _steer(
    job_ids: Sequence[int],
    move: Callable[[App, int], Coroutine[Any, Any, Job]],
    store: str,
    *,
    as_json: bool,
) -> None:
    """Move each job; one that is refused does not keep the others from moving."""
    moved: list[Job] = []
    errors: list[PenstockError] = []
    with reached(store) as app:
        for job_id in dict.fromkeys(job_ids):
            try:
                moved.append(run_sync(move(app, job_id)))
            except PenstockError as error:
                refused = isinstance(error, TransitionRefused)
                error.add_note(suggest(f"explain {job_id}" if refused else "jobs"))
                errors.append(error)
    if as_json:
        emit({"jobs": moved})
    else:
        for job in moved:
            click.echo(f"Job {job.id} is {standing(job)}.")
    for refusal in errors:
        report(refusal, as_json=as_json)
    if errors:
        click.get_current_context().exit(max(map(Exit.of, errors)))


COMMANDS: Sequence[click.Command] = (list_jobs, explain_job, cancel_jobs, retry_jobs)
