"""Commands on jobs: `jobs`, `explain`, `cancel`, `retry`, `delete` and `prioritise`."""

import json
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from msgspec.structs import replace

from penstock.cli.archive import ARCHIVE
from penstock.cli.connection import connected, offered, suggest
from penstock.cli.errors import Exit, report, warn
from penstock.cli.options import JOB_ID, on_store
from penstock.cli.output import (
    Column,
    decoded,
    emit,
    is_narrow,
    latest,
    plain,
    show_table,
    show_text,
    shown,
    span,
    state_text,
    state_word,
    when,
    without_secrets,
    wrapped,
)
from penstock.cli.selection import Selected, change_all, doubt_selection, selecting
from penstock.core.errors import PenstockError, TransitionRefused
from penstock.core.explanation import Explanation
from penstock.core.job import DEFAULT_QUEUE, Job, JobId, LogEntry, headline
from penstock.core.lifecycle import State
from penstock.core.progress import LINES_KEPT, Line, Progress
from penstock.core.query import JobQuery
from penstock.engine.bulk import Bulk
from penstock.engine.penstock import run_sync
from penstock.engine.protocol import App
from penstock.engine.validation import MAX_PRIORITY

# Log entries of one job to show: a job that keeps snoozing has many.
_LOG_LIMIT = 1_000
_LINES_SHOWN = 10
# Characters of arguments, results and checkpoints to show, of up to a million.
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
@selecting(confirms=False)
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="The largest number of jobs to list.",
)
@click.option(
    "--after", type=JOB_ID, metavar="ID", help="Continue after this job, the last one of a page."
)
@click.option(
    "--lines",
    type=click.IntRange(0, LINES_KEPT),
    default=_LINES_SHOWN,
    show_default=True,
    help="With an ID: the largest number of lines to show that the job has logged.",
)
@click.option("--watch", "live", is_flag=True, help="Show queues and jobs live, until Ctrl-C.")
@on_store
def list_jobs(
    *,
    live: bool,
    job_id: int | None,
    selected: Selected,
    limit: int,
    after: int | None,
    lines: int,
    store: str,
    as_json: bool,
) -> None:
    """List jobs, newest first, or show one job in full.

    With an ID, shows that job: its options, arguments, result, progress and log.
    """
    if job_id is not None:
        if selected.any or live or after is not None:
            raise click.UsageError(
                "an ID cannot be combined with filters or --watch",
                click.get_current_context(),
            )
        show_job(job_id, lines, store, as_json=as_json)
        return
    query = replace(
        selected.query,
        after=None if after is None else JobId(after),
        limit=limit + 1,  # one more shows whether there is another page
    )
    if live:
        from penstock.cli.live import watch

        watch.run(store, query)
        return
    with connected(store) as app:
        found = [job for job in run_sync(app.find(query)) if app.secrets.lets_find(job, query)]
        doubt = None if found else doubt_selection(app, selected)
    if doubt is not None:
        warn(doubt, as_json=as_json)
    page, more = found[:limit], len(found) > limit
    if as_json:
        emit({"jobs": page, "after": page[-1].id if more else None})
        return
    _print_jobs(page, datetime.now(UTC))
    if more:
        click.echo(f"There are more jobs: add --after {page[-1].id}")


def _print_jobs(jobs: Sequence[Job], now: datetime) -> None:
    if not jobs:
        click.echo("No jobs match.")
        return
    plain_queue = all(job.queue == DEFAULT_QUEUE for job in jobs)
    state_of = state_word if is_narrow() else state_text
    show_table(_COLUMNS, [_row(job, state_of(job), now, plain_queue=plain_queue) for job in jobs])


def _row(job: Job, state: str, now: datetime, *, plain_queue: bool) -> list[str]:
    return [
        str(job.id),
        job.task,
        state,
        f"{job.attempt}/{job.retry.attempts}",
        when(latest(job), now),
        "" if plain_queue else job.queue,
        job.key or "",
        headline(job.error),
    ]


def show_job(job_id: int, most: int, store: str, *, as_json: bool) -> None:
    """Print one job in full, with at most this many of its lines."""
    with connected(store) as app:
        job = run_sync(app.get(job_id))
        explanation = run_sync(app.explain(job_id))
        progress = run_sync(app.progress(job_id))
        saved = run_sync(offered(app.checkpoint(job_id)))
        checkpoint = without_secrets(saved)
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
        click.echo(f"The job has {len(lines):,} lines; to see all of them: {more}")
    _print_log(log, now)


def _print_json(title: str, value: object) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if len(text) > _TEXT_SHOWN:
        text = f"{text[:_TEXT_SHOWN]}\n… {len(text):,} characters in all; --json prints them"
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
    click.echo(
        click.style(wrapped(shown(f"Job {job.id}: {job.task}, {state_text(job)}")), bold=True)
    )
    click.echo(wrapped(shown(f"{explanation.text[:1].upper()}{explanation.text[1:]}.")) + "\n")
    for name, value in [*_fields(job, now), ("progress", _progress_text(progress))]:
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


def _progress_text(progress: Progress | None) -> str:
    """Format the progress of a job: `3 of 4 (75%), img-3.png`."""
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
        click.echo(f"Only the first {_LOG_LIMIT:,} log entries are shown.")


@click.command("explain")
@click.argument("job_id", metavar="ID", type=JOB_ID)
@on_store
def explain_job(*, job_id: int, store: str, as_json: bool) -> None:
    """Explain why a job is not running, or how it ended."""
    with connected(store) as app:
        explanation = run_sync(app.explain(job_id))
    if as_json:
        emit(explanation)
    else:
        click.echo(wrapped(shown(f"Job {job_id}: {explanation.text}")))


@click.command("cancel")
@click.argument("job_ids", metavar="[ID]...", type=JOB_ID, nargs=-1)
@click.option("--reason", help="The reason, for the log.")
@selecting(confirms=True)
@on_store
def cancel_jobs(
    *, job_ids: tuple[int, ...], reason: str | None, selected: Selected, store: str, as_json: bool
) -> None:
    """Cancel pending jobs, and ask running ones to stop.

    Name the jobs by their IDs, or select them with filters.
    """
    if not _by_id(job_ids, selected):

        def run(app: App, query: JobQuery, **how: Any) -> Coroutine[Any, Any, Bulk]:
            return app.bulk(query).cancel(reason=reason, **how)

        change_all(run, "cancel", selected, store, as_json=as_json)
        return
    _change_each(job_ids, lambda app, job_id: app.cancel(job_id, reason), store, as_json=as_json)


@click.command("retry")
@click.argument("job_ids", metavar="[ID]...", type=JOB_ID, nargs=-1)
@click.option("--reason", help="The reason, for the log.")
@selecting(confirms=True)
@on_store
def retry_jobs(
    *, job_ids: tuple[int, ...], reason: str | None, selected: Selected, store: str, as_json: bool
) -> None:
    """Run failed, cancelled or waiting jobs now.

    They get all their attempts again. Name the jobs by their IDs, or select them with filters,
    which select failed jobs unless --state names other states.
    """
    if not _by_id(job_ids, selected):

        def run(app: App, query: JobQuery, **how: Any) -> Coroutine[Any, Any, Bulk]:
            return app.bulk(query).retry(reason=reason, **how)

        change_all(run, "retry", selected, store, as_json=as_json)
        return
    _change_each(job_ids, lambda app, job_id: app.retry(job_id, reason), store, as_json=as_json)


def _by_id(job_ids: Sequence[int], selected: Selected) -> bool:
    """Whether jobs are named by their IDs. Raises `click.UsageError` for filters as well."""
    if job_ids and (selected.any or selected.dry_run):
        raise click.UsageError(
            "IDs cannot be combined with filters or --dry-run",
            click.get_current_context(),
        )
    return bool(job_ids)


def _change_each(
    job_ids: Sequence[int],
    change: Callable[[App, int], Coroutine[Any, Any, Job]],
    store: str,
    *,
    as_json: bool,
) -> None:
    """Change each job; one that is refused does not affect the others."""
    changed: list[Job] = []
    errors: list[PenstockError] = []
    with connected(store) as app:
        for job_id in dict.fromkeys(job_ids):
            try:
                changed.append(run_sync(change(app, job_id)))
            except PenstockError as error:
                refused = isinstance(error, TransitionRefused)
                error.add_note(suggest(f"explain {job_id}" if refused else "jobs"))
                errors.append(error)
    if as_json:
        emit({"jobs": changed})
    else:
        for job in changed:
            click.echo(f"Job {job.id} is {state_text(job)}.")
    for refusal in errors:
        report(refusal, as_json=as_json)
    if errors:
        click.get_current_context().exit(max(map(Exit.of, errors)))


@click.command("delete")
@ARCHIVE
@selecting(confirms=True)
@on_store
def delete_jobs(*, archive: str | None, selected: Selected, store: str, as_json: bool) -> None:
    """Delete finished jobs with their logs.

    Unfinished jobs are never deleted: cancel them first.
    """

    def run(app: App, query: JobQuery, **how: Any) -> Coroutine[Any, Any, Bulk]:
        return app.bulk(query).delete(archive=archive, **how)

    change_all(run, "delete", selected, store, as_json=as_json)


@click.command("prioritise")
@click.argument("priority", type=click.IntRange(0, MAX_PRIORITY))
@click.option("--reason", help="The reason, for the log.")
@selecting(confirms=True)
@on_store
def prioritise_jobs(
    *, priority: int, reason: str | None, selected: Selected, store: str, as_json: bool
) -> None:
    """Set the priority of pending jobs to PRIORITY.

    From 0 to 10; higher runs first.
    """

    def run(app: App, query: JobQuery, **how: Any) -> Coroutine[Any, Any, Bulk]:
        return app.bulk(query).reprioritise(priority, reason=reason, **how)

    change_all(run, "prioritise", selected, store, as_json=as_json)


COMMANDS: Sequence[click.Command] = (
    list_jobs,
    explain_job,
    cancel_jobs,
    retry_jobs,
    delete_jobs,
    prioritise_jobs,
)
