"""Reports of running jobs: progress, checkpoints and lines.

`resumable` of a reader or transaction holds the jobs running here that have a checkpoint. It is a
hint that saves every other settle a statement. Where it is wrong, the checkpoint of a done job
stays until retention removes the job, and is not shown.
"""

from collections.abc import Sequence

import msgspec

from penstock.core.job import Job, JobId
from penstock.core.lifecycle import State
from penstock.core.progress import LINES_KEPT, Line, Progress, Report, Reported
from penstock.core.times import from_micros, to_micros
from penstock.stores.sql.database import Reader, Transaction
from penstock.stores.sql.rows import encoded

_json_number = msgspec.json.Decoder(int | float)


def write(tx: Transaction, calls: Sequence[Sequence[Report]]) -> list[list[bool]]:
    """See `Store.report`."""
    ids = {report.lease.job_id for call in calls for report in call}
    running = set(tx.execute("running_tokens", (encoded(list(ids)),)).fetchall())
    answers = [[(r.lease.job_id, r.lease.token) in running for r in call] for call in calls]
    for call, answer in zip(calls, answers, strict=True):
        for report, is_running in zip(call, answer, strict=True):
            if is_running:
                _write_one(tx, report)
    return answers


def _write_one(tx: Transaction, report: Report) -> None:
    job_id = report.lease.job_id
    if report.progress is not None:
        _write_progress(tx, job_id, report.progress)
    if report.state is not None:
        tx.execute("write_checkpoint", (job_id, report.state))
        tx.resumable.add(job_id)
    if report.lines:
        lines = [
            (job_id, to_micros(line.at), line.level, line.text, line.attempt)
            for line in report.lines
        ]
        tx.executemany("add_line", lines)
        tx.execute("drop_lines", (job_id, LINES_KEPT))
    tx.written = True


def drop_checkpoints(tx: Transaction, answers: Sequence[Sequence[Job | None] | Exception]) -> None:
    """Remove the checkpoints of those of the settled jobs that are done."""
    moved = [
        job
        for answer in answers
        if not isinstance(answer, Exception)
        for job in answer
        if job is not None and job.id in tx.resumable and job.state is not State.RUNNING
    ]
    done = [job.id for job in moved if job.state is State.DONE]
    if done:
        tx.execute("clear_checkpoints", (encoded(done),))
    tx.resumable.difference_update([job.id for job in moved])


def clear(tx: Transaction, ids: str) -> None:
    """Remove the progress and checkpoints of jobs that start over."""
    tx.execute("clear_progress", (ids,))
    tx.execute("clear_checkpoints", (ids,))


def checkpoint(reader: Reader, job_id: JobId) -> str | None:
    """See `Store.checkpoint`."""
    row = reader.execute("checkpoint", (job_id,)).fetchone()
    if row is None:
        return None
    body, is_running = row
    if is_running:
        reader.resumable.add(job_id)
    return str(body)


def progress(reader: Reader, ids: Sequence[JobId]) -> dict[JobId, Progress]:
    """See `Store.progress`."""
    found = reader.execute("progress", (encoded(ids),)).fetchall()
    return {
        job_id: Progress(
            _number(done),
            None if total is None else _number(total),
            note,
            from_micros(at),
            from_micros(started_at),
            _number(start),
        )
        for job_id, done, total, note, at, started_at, start in found
    }


def lines(reader: Reader, *wanted: int) -> list[Line]:
    """See `Store.lines`."""
    return [
        Line(line_id, from_micros(at), level, text, attempt)
        for line_id, at, level, text, attempt in reader.execute("lines", wanted).fetchall()
    ]


def reported(reader: Reader, ids: Sequence[JobId]) -> dict[JobId, Reported]:
    """See `Store.reported`."""
    wanted = (encoded(ids),)
    found = progress(reader, ids)
    bodies = dict(reader.execute("checkpoints", wanted).fetchall())
    logged: dict[JobId, list[Line]] = {}
    for job_id, line_id, at, level, text, attempt in reader.execute("lines_of_jobs", wanted):
        line = Line(line_id, from_micros(at), level, text, attempt)
        logged.setdefault(job_id, []).append(line)
    return {
        job_id: Reported(
            progress=found.get(job_id),
            checkpoint=bodies.get(job_id),
            lines=tuple(logged.get(job_id, ())),
        )
        for job_id in found.keys() | bodies.keys() | logged.keys()
    }


def restore(tx: Transaction, job_id: JobId, kept: Reported) -> None:
    """Write the reports of a job of another store."""
    if kept.progress is not None:
        _write_progress(tx, job_id, kept.progress)
    if kept.checkpoint is not None:
        tx.execute("write_checkpoint", (job_id, kept.checkpoint))
    lines = [
        (job_id, line.id, to_micros(line.at), line.level, line.text, line.attempt)
        for line in kept.lines
    ]
    tx.executemany("restore_line", lines)


def _write_progress(tx: Transaction, job_id: JobId, progress: Progress) -> None:
    times = to_micros(progress.at), to_micros(progress.started_at)
    numbers = (encoded(progress.done), None if progress.total is None else encoded(progress.total))
    tx.execute("write_progress", (job_id, *numbers, progress.note, *times, encoded(progress.start)))


def _number(stored: float | str) -> float:
    """Return a number, which a database without a type for any number keeps as JSON."""
    return _json_number.decode(stored) if isinstance(stored, str) else stored
