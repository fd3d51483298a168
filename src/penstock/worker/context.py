"""What a running handler can ask about its own run, and say about it."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Generator, Sequence
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, NoReturn

import msgspec

from penstock.core import jsontext
from penstock.core.errors import ConfigurationError, InvalidJob, PayloadTooLarge, Snooze
from penstock.core.job import Job
from penstock.core.lifecycle import Done, Failed
from penstock.core.note import STATE_LIMIT, Progress, kept_text
from penstock.engine import run_sync
from penstock.task import changed_by_json
from penstock.worker.finishing import finished
from penstock.worker.joblogger import JobLogger
from penstock.worker.notebook import Book

_current: ContextVar["Context"] = ContextVar("penstock_context")
# Whole numbers that every store can hold.
_COUNT_LIMIT = 2**63


class Context:
    """The run that the calling code belongs to; `penstock.context()` returns it.

    It may be handed to other threads, and used from several at once.
    """

    __slots__ = ("_first", "_notebook", "_state", "cancelled", "finishing", "job")

    def __init__(self, job: Job, notebook: Book | None = None) -> None:
        self.job = job
        self.cancelled = False
        """Whether the run should end: cancelled, out of time, or its lease is lost."""
        self.finishing = False
        """Whether the run may have ended by `finish` already."""
        self._notebook = notebook
        # _first and _state are set by those who use them: most jobs do not.

    @property
    def token(self) -> int:
        """The lease token: grows with every claim in the store, for fencing side effects."""
        return self.job.token

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.job.attempt

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry the job's id, task and attempt.

        Lines from `INFO` on are also kept with the job, whatever the logging is set to; see
        `Penstock.lines`.
        """
        return JobLogger(self.job, self._notebook)

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Say how far the run is, as often as you like; see `Penstock.progress`.

        Returns at once. The newest value is written about once a second, and when the run ends.
        """
        for value in (done, 0 if total is None else total):
            if not _is_count(value):
                raise ConfigurationError(f"progress is counted in plain numbers, not {value!r:.80}")
        notebook = self.book
        now = notebook.now()
        first: Progress | None = getattr(self, "_first", None)
        said = Progress(
            done=done,
            total=total,
            note=None if note is None else kept_text(str(note)),
            at=now,
            started_at=now if first is None else first.at,
            start=done if first is None else first.done,
        )
        if first is None:
            self._first = said
        notebook.keep_progress(self.job, said)

    def checkpoint(self, state: Any) -> Awaitable[None]:
        """Store a JSON value that a later attempt finds in `state`: await it in a coroutine.

        In a plain function, just call it. On return it is durable. Raises `LeaseLost` when the
        job is not this run's any more, and `InvalidJob` for a value that is not JSON or too large.
        """
        text = _encoded(state)
        saving = self._save(text)
        if asyncio._get_running_loop() is not None:  # noqa: SLF001 - the public one raises
            return saving
        run_sync(saving)
        return _Saved()

    @property
    def state(self) -> Any:
        """The newest checkpoint of the job, from this or an earlier attempt; None at first.

        The first look reads the store, while the caller waits.
        """
        if not hasattr(self, "_state"):
            self._state = self.book.saved(self.job)
        return self._state

    def finish(self, result: Any = None, *, connection: Any) -> Awaitable[None]:
        """Be done inside your own database transaction: await it in a coroutine.

        In a plain function, just call it. The job is done if and only if you commit; what the
        handler returns later does not count. Without a commit the run has failed. Raises
        `LeaseLost` when the job is not this run's any more, and `InvalidJob` for a result that is
        not JSON or too large.
        """
        return self.finish_all([(self, result)], connection=connection)

    @staticmethod
    def finish_all(ended: Sequence[tuple["Context", Any]], *, connection: Any) -> Awaitable[None]:
        """As `finish`, for several runs of one worker, each with its result: all or none."""
        outcomes = [(run, _outcome(result)) for run, result in ended]
        finishing = _finish(outcomes, connection)
        if asyncio._get_running_loop() is not None:  # noqa: SLF001 - the public one raises
            return finishing
        run_sync(finishing)
        return _Saved()

    def snooze(self, delay: timedelta, reason: str = "snoozed by its handler") -> NoReturn:
        """End this run and have the job run again later; no attempt is used up."""
        raise Snooze(delay, reason)

    def raise_if_cancelled(self) -> None:
        """End the run here if it should: the way out of a long loop in a thread."""
        if self.cancelled:
            raise asyncio.CancelledError("the run was told to end")

    async def _save(self, text: str) -> None:
        await self.book.save(self.job, text)
        self._state = msgspec.json.decode(text)

    @property
    def book(self) -> Book:
        """Where the run says things about itself; raises `ConfigurationError` without a worker."""
        if self._notebook is None:
            raise ConfigurationError("no worker runs this job: there is nowhere to write to")
        return self._notebook


def _outcome(result: Any) -> Done:
    outcome = finished(result)
    if isinstance(outcome, Failed):
        raise InvalidJob(outcome.error)
    return outcome


async def _finish(ended: Sequence[tuple[Context, Done]], connection: Any) -> None:
    book = ended[0][0].book
    for run, _ in ended:
        run.finishing = True
    await book.finish([(run.job, outcome) for run, outcome in ended], connection)


class _Saved:
    """What is left to await of what is written: nothing."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and abs(value) < _COUNT_LIMIT


def _encoded(state: Any) -> str:
    try:
        encoded = jsontext.encode(state, "its state")
        changed = changed_by_json(state, msgspec.json.decode(encoded))
    except ValueError as error:
        raise InvalidJob(f"a checkpoint is plain JSON: {error}") from error
    if changed is not None:
        raise InvalidJob(
            f"a checkpoint is plain JSON: {changed[0]!r:.80} would come back as {changed[1]!r:.80}"
        )
    size = len(encoded.encode())
    if size > STATE_LIMIT:
        raise PayloadTooLarge(
            f"a checkpoint of {size} bytes of JSON, the limit is {STATE_LIMIT}; "
            "store large data elsewhere and keep a reference"
        )
    return encoded


def context() -> Context:
    """The context of the job that is running here; raises `LookupError` outside of one."""
    try:
        return _current.get()
    except LookupError:
        raise LookupError("no job is running here") from None


def enter(context: Context) -> None:
    """Make this the current run of the calling task or thread."""
    _current.set(context)
