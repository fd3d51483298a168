"""Writes and reads what running jobs say about themselves."""

import sqlite3
from collections.abc import Callable, Sequence

from penstock.core.job import Job, JobId
from penstock.core.lifecycle import State
from penstock.core.note import LINES_KEPT, Line, Note, Notes, Progress
from penstock.core.times import from_micros, to_micros
from penstock.stores.sqlite.rows import encoded
from penstock.stores.sqlite.transaction import SQL, Transaction


class Noting:
    """The notes in a file, and which of the jobs that run here have a checkpoint.

    The latter is a hint that spares every other settle a statement. Where it fails, a checkpoint
    of a job that is done stays until retention removes the job, and is not shown.
    """

    def __init__(self) -> None:
        self.resumable: set[int] = set()

    def write(self, tx: Transaction, calls: Sequence[Sequence[Note]]) -> list[list[bool]]:
        """See `Store.note`."""
        ids = {note.lease.job_id for call in calls for note in call}
        held = set(tx.execute(SQL["held"], (encoded(list(ids)),)).fetchall())
        answers = [[(n.lease.job_id, n.lease.token) in held for n in call] for call in calls]
        for call, answer in zip(calls, answers, strict=True):
            for note, is_held in zip(call, answer, strict=True):
                if is_held:
                    self._write_one(tx, note)
        return answers

    def _write_one(self, tx: Transaction, note: Note) -> None:
        job_id = note.lease.job_id
        if note.progress is not None:
            _write_progress(tx, job_id, note.progress)
        if note.state is not None:
            tx.execute(SQL["write_checkpoint"], (job_id, note.state))
            self.resumable.add(job_id)
        if note.lines:
            lines = [
                (job_id, to_micros(line.at), line.level, line.text, line.attempt)
                for line in note.lines
            ]
            tx.executemany(SQL["add_line"], lines)
            tx.execute(SQL["drop_lines"], (job_id, LINES_KEPT))
        tx.written = True

    def settle(self, tx: Transaction, answers: Sequence[list[Job | None] | Exception]) -> None:
        """Remove the checkpoints of jobs that are done."""
        moved = [
            job
            for answer in answers
            if not isinstance(answer, Exception)
            for job in answer
            if job is not None and job.id in self.resumable and job.state is not State.RUNNING
        ]
        done = [job.id for job in moved if job.state is State.DONE]
        if done:
            tx.execute(SQL["clear_checkpoints"], (encoded(done),))
        self.resumable.difference_update([job.id for job in moved])

    def checkpoint(self, connection: sqlite3.Connection, job_id: JobId) -> str | None:
        """See `Store.checkpoint`."""
        row = connection.execute(SQL["checkpoint"], (job_id,)).fetchone()
        if row is None:
            return None
        body, is_running = row
        if is_running:
            self.resumable.add(job_id)
        return str(body)


def forget(tx: Transaction, ids: str) -> None:
    """Let these jobs start anew: without progress, without a checkpoint."""
    tx.execute(SQL["clear_progress"], (ids,))
    tx.execute(SQL["clear_checkpoints"], (ids,))


def progress(execute: Callable[..., sqlite3.Cursor], ids: Sequence[JobId]) -> dict[JobId, Progress]:
    """See `Store.progress`."""
    found = execute(SQL["progress"], (encoded(ids),)).fetchall()
    return {
        job_id: Progress(done, total, note, from_micros(at), from_micros(started_at), start)
        for job_id, done, total, note, at, started_at, start in found
    }


def lines(execute: Callable[..., sqlite3.Cursor], *wanted: int) -> list[Line]:
    """See `Store.lines`."""
    return [
        Line(line_id, from_micros(at), level, text, attempt)
        for line_id, at, level, text, attempt in execute(SQL["lines"], wanted).fetchall()
    ]


def notes(execute: Callable[..., sqlite3.Cursor], ids: Sequence[JobId]) -> dict[JobId, Notes]:
    """See `Store.notes`."""
    wanted = (encoded(ids),)
    said = progress(execute, ids)
    bodies = dict(execute(SQL["checkpoints"], wanted).fetchall())
    logged: dict[JobId, list[Line]] = {}
    for job_id, line_id, at, level, text, attempt in execute(SQL["lines_of_jobs"], wanted):
        line = Line(line_id, from_micros(at), level, text, attempt)
        logged.setdefault(job_id, []).append(line)
    return {
        job_id: Notes(
            progress=said.get(job_id),
            checkpoint=bodies.get(job_id),
            lines=tuple(logged.get(job_id, ())),
        )
        for job_id in said.keys() | bodies.keys() | logged.keys()
    }


def restore(tx: Transaction, job_id: JobId, kept: Notes) -> None:
    """Write what a job has said elsewhere."""
    if kept.progress is not None:
        _write_progress(tx, job_id, kept.progress)
    if kept.checkpoint is not None:
        tx.execute(SQL["write_checkpoint"], (job_id, kept.checkpoint))
    lines = [
        (job_id, line.id, to_micros(line.at), line.level, line.text, line.attempt)
        for line in kept.lines
    ]
    tx.executemany(SQL["restore_line"], lines)


def _write_progress(tx: Transaction, job_id: JobId, said: Progress) -> None:
    times = to_micros(said.at), to_micros(said.started_at)
    values = (job_id, said.done, said.total, said.note, *times, said.start)
    tx.execute(SQL["write_progress"], values)
