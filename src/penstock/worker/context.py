"""The context of a running handler: what it can read about its run, and report about it."""

import asyncio
import logging
import sys
import threading
from collections.abc import Awaitable, Coroutine, Generator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, NoReturn, Protocol

import msgspec

from penstock.core import jsontext
from penstock.core.errors import ConfigurationError, InvalidJob, PayloadTooLarge, Snooze
from penstock.core.job import Job
from penstock.core.lifecycle import Done, Failed, Outcome
from penstock.core.progress import STATE_LIMIT, Line, Progress, kept_text
from penstock.engine.codec import changed_by_json
from penstock.engine.penstock import run_sync
from penstock.worker.outcomes import returned

TASK_LOGGER = "penstock.task"
"""The logger behind `context().logger`."""

_current: ContextVar["Context"] = ContextVar("penstock_context")
_logger = logging.getLogger(TASK_LOGGER)
_formatter = logging.Formatter("%(message)s")
# Every store can hold integers of this size.
_COUNT_LIMIT = 2**63
# Held for a moment when a run ends early, or concludes; a handler may be in another thread.
_ending = threading.Lock()


class Reporter(Protocol):
    """Records what a run reports about itself."""

    def now(self) -> datetime:
        """Return the time, by the clock of the store."""
        ...

    def report_progress(self, job: Job, progress: Progress, /) -> None:
        """Have this written soon, in place of what the run reported before."""
        ...

    def report_line(self, job: Job, line: Line, /) -> None:
        """Have this log line written soon."""
        ...

    async def save_checkpoint(self, job: Job, state: str, /) -> None:
        """Write a checkpoint at once; raise `LeaseLost` if the run has lost its job."""
        ...

    def load_checkpoint(self, job: Job, /) -> object:
        """Read the job's checkpoint while the caller waits."""
        ...

    async def finish(self, ended: Sequence[tuple[Job, Done]], connection: Any, /) -> None:
        """Complete jobs inside the handler's transaction; raise `LeaseLost` if one is lost."""
        ...


class Context:
    """The run that the calling code belongs to; `penstock.context()` returns it.

    It may be passed to other threads, and used from several at once.
    """

    __slots__ = (
        "_first", "_reporter", "_state", "cancelled", "concluded", "finishing", "job", "lost",
        "requested",
    )  # fmt: skip

    def __init__(self, job: Job, reporter: Reporter | None = None) -> None:
        self.job = job
        self.cancelled = False
        """Whether the run should end: cancelled, out of time, or its lease is lost."""
        self.finishing = False
        """Whether the run may have ended by `finish` already."""
        self.lost = False
        """Whether another worker may run the job now; what this run does is not stored."""
        self.requested: Outcome | None = None
        """How the run was asked to end early, for example because it is out of time."""
        self.concluded = False
        """Whether the outcome is decided: the run cannot be asked to end early any more."""
        self._reporter = reporter
        # _first and _state are set on first use: most jobs never need them.

    @property
    def token(self) -> int:
        """The lease token: grows with every claim in the store, for fencing side effects."""
        return self.job.token

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.job.attempt

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry the job's id, task and attempt.

        Lines of level `INFO` and above are also kept with the job, whatever the logging
        configuration; see `Penstock.lines`.
        """
        return JobLogger(self.job, self._reporter)

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Report how far the run is, as often as you like; see `Penstock.progress`.

        Returns at once. The newest value is written about once a second, and when the run ends.
        """
        for value in (done, 0 if total is None else total):
            if not _is_count(value):
                raise ConfigurationError(f"progress must be a finite number, not {value!r:.80}")
        reporter = self.reporter
        now = reporter.now()
        first: Progress | None = getattr(self, "_first", None)
        progress = Progress(
            done=done,
            total=total,
            note=None if note is None else kept_text(str(note)),
            at=now,
            started_at=now if first is None else first.at,
            start=done if first is None else first.done,
        )
        if first is None:
            self._first = progress
        reporter.report_progress(self.job, progress)

    def checkpoint(self, state: Any) -> Awaitable[None]:
        """Store a JSON value that later attempts find in `state`: await it in a coroutine.

        In a plain function, just call it. On return the value is durable. Raises `LeaseLost` if
        another worker may have the job now, and `InvalidJob` for a value that is not JSON or too
        large.
        """
        text = _encoded(state)
        return _await_or_run(self._save(text))

    @property
    def state(self) -> Any:
        """The newest checkpoint of the job, from this or an earlier attempt; None at first.

        The first access reads the store, while the caller waits.
        """
        if not hasattr(self, "_state"):
            self._state = self.reporter.load_checkpoint(self.job)
        return self._state

    def finish(self, result: Any = None, *, connection: Any) -> Awaitable[None]:
        """Complete the job inside your own database transaction: await it in a coroutine.

        In a plain function, just call it. The job is done if and only if you commit; what the
        handler returns later is ignored. Without a commit the run has failed. Raises `LeaseLost`
        if another worker may have the job now, and `InvalidJob` for a result that is not JSON or
        too large.
        """
        return self.finish_all([(self, result)], connection=connection)

    @staticmethod
    def finish_all(ended: Sequence[tuple["Context", Any]], *, connection: Any) -> Awaitable[None]:
        """Do what `finish` does for several runs of one worker, each with its result: all or none.

        Await it in a coroutine; in a plain function, just call it.
        """
        outcomes = [(run, _done(result)) for run, result in ended]
        return _await_or_run(_finish(outcomes, connection))

    def snooze(self, delay: timedelta, reason: str = "snoozed by its handler") -> NoReturn:
        """End this run and have the job run again later, without using up an attempt."""
        raise Snooze(delay, reason)

    def raise_if_cancelled(self) -> None:
        """End the run here if it should end: the way out of a long loop in a thread."""
        if self.cancelled:
            raise asyncio.CancelledError("the run was cancelled")

    async def _save(self, text: str) -> None:
        await self.reporter.save_checkpoint(self.job, text)
        self._state = msgspec.json.decode(text)

    @property
    def reporter(self) -> Reporter:
        """What records the run's reports; raises `ConfigurationError` without a worker."""
        if self._reporter is None:
            raise ConfigurationError("no worker runs this job, so nothing records its reports")
        return self._reporter


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs as `penstock.task` with the job's id, task and attempt, and keeps lines with the job."""

    def __init__(self, job: Job, reporter: Reporter | None) -> None:
        super().__init__(_logger, {"job_id": job.id, "task": job.task, "attempt": job.attempt})
        self._job = job
        self._reporter = reporter

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a line; keep it with the job if it is `INFO` or above, or enabled for logging."""
        if self._reporter is not None and (level >= logging.INFO or self.isEnabledFor(level)):
            text = _text(level, msg, args, kwargs)
            name = logging.getLevelName(level)
            line = Line(0, self._reporter.now(), name, kept_text(text), self._job.attempt)
            self._reporter.report_line(self._job, line)
        # The caller is one frame further away than the adapter assumes.
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        super().log(level, msg, *args, **kwargs)


def context() -> Context:
    """Return the context of the job that is running here; raise `LookupError` outside of one."""
    try:
        return _current.get()
    except LookupError:
        raise LookupError("no job is running here") from None


def request_end(run: Context, outcome: Outcome) -> bool:
    """Ask a run to end with this outcome; return whether this is the first such request.

    After `conclude`, none counts.
    """
    with _ending:
        if run.concluded or run.requested is not None:
            return False
        run.requested = outcome
        run.cancelled = True
        return True


def conclude(run: Context) -> Outcome | None:
    """Return the end that was requested of a run, if any; requests that follow are ignored.

    For code around a handler that has to know the outcome before the worker stores it.
    """
    with _ending:
        run.concluded = True
        return run.requested


def enter(context: Context) -> None:
    """Make this the current run of the calling task or thread."""
    _current.set(context)


class _Completed:
    """An awaitable that is already done."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


def _await_or_run(call: Coroutine[Any, Any, None]) -> Awaitable[None]:
    """Return the coroutine where an event loop runs; elsewhere run it to its end."""
    if asyncio._get_running_loop() is not None:  # noqa: SLF001 - the public one raises
        return call
    run_sync(call)
    return _Completed()


def _done(result: Any) -> Done:
    outcome = returned(result)
    if isinstance(outcome, Failed):
        raise InvalidJob(outcome.error)
    return outcome


async def _finish(ended: Sequence[tuple[Context, Done]], connection: Any) -> None:
    reporter = ended[0][0].reporter
    for run, _ in ended:
        run.finishing = True
    await reporter.finish([(run.job, outcome) for run, outcome in ended], connection)


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < _COUNT_LIMIT  # NaN is not


def _encoded(state: Any) -> str:
    try:
        encoded = jsontext.encode(state, "its state")
        changed = changed_by_json(state, msgspec.json.decode(encoded))
    except ValueError as error:
        raise InvalidJob(f"a checkpoint must be plain JSON: {error}") from error
    if changed is not None:
        raise InvalidJob(
            f"a checkpoint must be plain JSON: {changed[0]!r:.80} would come back as "
            f"{changed[1]!r:.80}"
        )
    size = len(encoded.encode())
    if size > STATE_LIMIT:
        raise PayloadTooLarge(
            f"the checkpoint has {size} bytes of JSON, the limit is {STATE_LIMIT}; "
            "store large data elsewhere and keep a reference"
        )
    return encoded


def _text(level: int, msg: object, args: tuple[Any, ...], options: Mapping[str, Any]) -> str:
    """Return the message as logging would write it, with a traceback if one is requested."""
    error = options.get("exc_info")
    if isinstance(error, BaseException):
        error = (type(error), error, error.__traceback__)
    elif error and not isinstance(error, tuple):
        error = sys.exc_info()
    record = logging.LogRecord(_logger.name, level, "", 0, msg, args, error or None)
    try:
        return _formatter.format(record)
    except (TypeError, ValueError, KeyError):  # logging itself reports it
        return str(msg)
