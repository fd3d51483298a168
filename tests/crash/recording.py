"""What clients requested and were answered: each writes its own file, one line per event.

A line is written by one call, without fsync: it survives the death of its process, which is all
that these tests bring about. The last line of a killed client may be torn.
"""

import fcntl
import itertools
import os
import secrets
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import msgspec

from penstock.core.errors import PenstockError
from penstock.core.job import Job, Lease, NewJob, Scope
from penstock.core.lifecycle import Outcome
from penstock.core.queue import Queue
from penstock.core.store import Clock
from penstock.engine.leases import Leases
from penstock.engine.penstock import Penstock
from penstock.engine.queues import Queues
from penstock.runtime import system_clock


class Note(msgspec.Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """One event: `at` is CLOCK_MONOTONIC, which the processes of a machine share."""

    client: str
    at: int
    wall: int


class AskedJob(msgspec.Struct, frozen=True, gc=False):
    mark: str
    queue: str
    key: str | None
    dedupe: str | None
    scope: Scope | None = None


class Asked(Note, frozen=True, gc=False):
    """An enqueue begins: all of these jobs, or none."""

    call: int
    jobs: list[AskedJob]
    repeats: bool = False
    """Whether the request may arrive more than once, under a dedupe key of its own."""


class Told(Note, frozen=True, gc=False):
    """An enqueue was acknowledged: for each job its id, and whether it is another's."""

    call: int
    jobs: list[tuple[int, bool]]


class Refused(Note, frozen=True, gc=False):
    """An enqueue was answered with an error: nothing was changed."""

    call: int
    error: str


class Claimed(Note, frozen=True, gc=False):
    """These jobs were given, as (id, token)."""

    runs: list[tuple[int, int]]


class Started(Note, frozen=True, gc=False):
    """A handler begins."""

    job: int
    token: int
    attempt: int


class Effect(Note, frozen=True, gc=False):
    """A handler acted on something that refuses tokens lower than the highest it saw."""

    job: int
    token: int
    applied: bool


class Ended(Note, frozen=True, gc=False):
    """A handler ended, successfully or not."""

    job: int
    token: int
    well: bool


class Settled(Note, frozen=True, gc=False):
    """The answer to a settle: as (id, token, whether it was taken)."""

    runs: list[tuple[int, int, bool]]


class Steering(Note, frozen=True, gc=False):
    """A pause or a resume begins."""

    call: int
    queue: str
    paused: bool


class Steered(Note, frozen=True, gc=False):
    """A pause or a resume was acknowledged."""

    call: int


class Trouble(Note, frozen=True, gc=False):
    """An error that no client should ever meet."""

    error: str


Event = (
    Asked
    | Told
    | Refused
    | Claimed
    | Started
    | Effect
    | Ended
    | Settled
    | Steering
    | Steered
    | Trouble
)

_decoder = msgspec.json.Decoder(Event)


class Recorder:
    """Appends the events of one client to a file of its own."""

    def __init__(self, folder: Path, role: str) -> None:
        self.client = f"{role}-{os.getpid()}-{secrets.token_hex(3)}"
        self.calls = itertools.count()
        (folder / "history").mkdir(exist_ok=True)
        path = folder / "history" / f"{self.client}.jsonl"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, kind: type[Note], **facts: Any) -> None:
        event = kind(client=self.client, at=time.monotonic_ns(), wall=time.time_ns(), **facts)
        os.write(self._fd, msgspec.json.encode(event) + b"\n")

    def close(self) -> None:
        os.close(self._fd)


def read_history(folder: Path) -> list[Event]:
    """What all clients of a folder wrote, by time."""
    events: list[Event] = []
    for path in (folder / "history").glob("*.jsonl"):  # none before the first client has begun
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):  # else its client was killed while it wrote
                events.append(_decoder.decode(line))  # noqa: PERF401 - reads better so
    return sorted(events, key=lambda event: event.at)


def history_size(folder: Path) -> int:
    """How much the clients of a folder have written; it grows as long as they work."""
    return sum(path.stat().st_size for path in (folder / "history").glob("*.jsonl"))


def store_url(folder: Path) -> str:
    """Where the clients of a folder keep their jobs: as its file `url` says, or in `jobs.db`."""
    said = folder / "url"
    return said.read_text() if said.exists() else f"sqlite:///{folder}/jobs.db"


def is_postgres(folder: Path) -> bool:
    return store_url(folder).startswith("postgresql")


def is_journal(folder: Path) -> bool:
    return store_url(folder).startswith("journal")


DOUBT = "may or may not be stored"
"""In the error of a call whose outcome is unknown."""


class Notes(Protocol):
    """What keeps the events of one client."""

    client: str
    calls: "itertools.count[int]"

    def note(self, kind: type[Note], **facts: Any) -> None: ...


class RecordedPenstock(Penstock):
    """A Penstock that notes what it is asked for and what it answers.

    The payload of every job has a `mark`, unique for each asking: it tells which of the jobs that
    were asked for are in the store, also when no answer came.
    """

    def __init__(self, url: str, recorder: Notes, **options: Any) -> None:
        super().__init__(url, actor=recorder.client, **options)
        self.recorder = recorder
        self.leases = RecordedLeases(self, recorder)
        self.queues = RecordedQueues(self, recorder)

    async def _add(self, jobs: Sequence[NewJob], connection: Any) -> list[Job]:
        call = self.note_asked(jobs)
        try:
            stored = await super()._add(jobs, connection)
        except PenstockError as error:
            if DOUBT not in str(error):
                self.recorder.note(Refused, call=call, error=f"{type(error).__name__}: {error}")
            raise
        if connection is None:  # else it holds when the caller has committed
            self.note_told(call, stored)
        return stored

    def note_asked(self, jobs: Sequence[NewJob]) -> int:
        call = next(self.recorder.calls)
        self.recorder.note(Asked, call=call, jobs=[asked_job(job) for job in jobs])
        return call

    def note_told(self, call: int, stored: Sequence[Job]) -> None:
        self.recorder.note(Told, call=call, jobs=[(job.id, job.duplicate) for job in stored])


def asked_job(job: NewJob) -> AskedJob:
    return AskedJob(mark_of(job.payload), job.queue, job.key, job.dedupe, job.scope)


class Recorded(RecordedPenstock):
    """A recorded Penstock on the store of a folder, which writes to a file of its own."""

    recorder: Recorder

    def __init__(self, folder: Path, recorder: Recorder, clock: Clock = system_clock) -> None:
        super().__init__(store_url(folder), recorder, clock=clock)


class RecordedLeases(Leases):
    """The leases of a `RecordedPenstock`."""

    def __init__(self, app: Penstock, recorder: Notes) -> None:
        super().__init__(app.connection, app.limits)
        self.recorder = recorder

    async def claim(self, **wanted: Any) -> list[Job]:
        jobs = await super().claim(**wanted)
        if jobs:
            self.recorder.note(Claimed, runs=[(job.id, job.token) for job in jobs])
        return jobs

    async def settle_held(
        self, results: Sequence[tuple[Job | Lease, Outcome]], *, refuse: bool = True
    ) -> list[Job | None]:
        answers = await super().settle_held(results, refuse=refuse)
        leases = [job.lease if isinstance(job, Job) else job for job, _ in results]
        self.recorder.note(
            Settled,
            runs=[
                (lease.job_id, lease.token, answer is not None)
                for lease, answer in zip(leases, answers, strict=True)
            ],
        )
        return answers


class RecordedQueues(Queues):
    """The queues of a `RecordedPenstock`."""

    def __init__(self, app: Penstock, recorder: Notes) -> None:
        super().__init__(app.connection)
        self.recorder = recorder

    async def pause(self, queue: str, *, duration: timedelta | None = None) -> Queue:
        with self._steering(queue, paused=True):
            return await super().pause(queue, duration=duration)

    async def resume(self, queue: str) -> Queue:
        with self._steering(queue, paused=False):
            return await super().resume(queue)

    @contextmanager
    def _steering(self, queue: str, *, paused: bool) -> Iterator[None]:
        call = next(self.recorder.calls)
        self.recorder.note(Steering, call=call, queue=queue, paused=paused)
        yield
        self.recorder.note(Steered, call=call)


def mark_of(payload: str) -> str:
    """The mark of a job; an event has it in its own payload."""
    arguments = msgspec.json.decode(payload)
    return str(arguments["mark"] if "mark" in arguments else arguments["payload"]["mark"])


class Fence:
    """Something outside the queue that handlers act on, once per token, never behind a newer one.

    It keeps the highest token per job in a file that all processes share.
    """

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder / "fence", os.O_RDWR | os.O_CREAT, 0o644)
        self._lock = threading.Lock()

    def act(self, job: Job, recorder: Recorder) -> None:
        with self._lock:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                highest = os.pread(self._fd, 8, 8 * job.id)
                applied = not highest or struct.unpack("q", highest)[0] <= job.token
                if applied:
                    os.pwrite(self._fd, struct.pack("q", job.token), 8 * job.id)
                recorder.note(Effect, job=job.id, token=job.token, applied=applied)
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._fd)


class Fencing(Protocol):
    """Something that handlers act on, and that refuses tokens lower than the highest it saw."""

    def act(self, job: Job, recorder: Any) -> None: ...


@contextmanager
def recorded_run(job: Job, recorder: Notes, fence: Fencing) -> Iterator[None]:
    """The run of a handler: its begin, its effect and its end are noted."""
    recorder.note(Started, job=job.id, token=job.token, attempt=job.attempt)
    well = False
    try:
        yield
        fence.act(job, recorder)
        well = True
    finally:
        recorder.note(Ended, job=job.id, token=job.token, well=well)
