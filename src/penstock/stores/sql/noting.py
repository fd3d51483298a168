"""Writes and reads what running jobs say about themselves."""

from collections.abc import Sequence

import msgspec

from penstock.core.job import Job, JobId
from penstock.core.lifecycle import State
from penstock.core.note import LINES_KEPT, Line, Note, Notes, Progress
from penstock.core.times import from_micros, to_micros
from penstock.stores.sql.rows import encoded
from penstock.stores.sql.transaction import Reading, Transaction

_json_number = msgspec.json.Decoder(int | float)


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
        held = set(tx.execute("held", (encoded(list(ids)),)).fetchall())
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
            tx.execute("write_checkpoint", (job_id, note.state))
            self.resumable.add(job_id)
        if note.lines:
            lines = [
                (job_id, to_micros(line.at), line.level, line.text, line.attempt)
                for line in note.lines
            ]
            tx.executemany("add_line", lines)
            tx.execute("drop_lines", (job_id, LINES_KEPT))
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
            tx.execute("clear_checkpoints", (encoded(done),))
        self.resumable.difference_update([job.id for job in moved])

    def checkpoint(self, reading: Reading, job_id: JobId) -> str | None:
        """See `Store.checkpoint`."""
        row = reading.execute("checkpoint", (job_id,)).fetchone()
        if row is None:
            return None
        body, is_running = row
        if is_running:
            self.resumable.add(job_id)
        return str(body)


def forget(tx: Transaction, ids: str) -> None:
    """Let these jobs start anew: without progress, without a checkpoint."""
    tx.execute("clear_progress", (ids,))
    tx.execute("clear_checkpoints", (ids,))


def progress(reading: Reading, ids: Sequence[JobId]) -> dict[JobId, Progress]:
    """See `Store.progress`."""
    found = reading.execute("progress", (encoded(ids),)).fetchall()
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


def lines(reading: Reading, *wanted: int) -> list[Line]:
    """See `Store.lines`."""
    return [
        Line(line_id, from_micros(at), level, text, attempt)
        for line_id, at, level, text, attempt in reading.execute("lines", wanted).fetchall()
    ]


def notes(reading: Reading, ids: Sequence[JobId]) -> dict[JobId, Notes]:
    """See `Store.notes`."""
    wanted = (encoded(ids),)
    said = progress(reading, ids)
    bodies = dict(reading.execute("checkpoints", wanted).fetchall())
    logged: dict[JobId, list[Line]] = {}
    for job_id, line_id, at, level, text, attempt in reading.execute("lines_of_jobs", wanted):
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
        tx.execute("write_checkpoint", (job_id, kept.checkpoint))
    lines = [
        (job_id, line.id, to_micros(line.at), line.level, line.text, line.attempt)
        for line in kept.lines
    ]
    tx.executemany("restore_line", lines)


def _write_progress(tx: Transaction, job_id: JobId, said: Progress) -> None:
    times = to_micros(said.at), to_micros(said.started_at)
    numbers = (encoded(said.done), None if said.total is None else encoded(said.total))
    tx.execute("write_progress", (job_id, *numbers, said.note, *times, encoded(said.start)))


def _number(stored: float | str) -> float:
    """A number, which a database without a type for all kinds of them keeps as JSON."""
    return _json_number.decode(stored) if isinstance(stored, str) else stored
