"""The log lines about runs: one for each that ended, with the traceback of a failure."""

import logging

from penstock.core.job import Job, headline
from penstock.core.lifecycle import Cancelled, Done, Failed, Outcome, Snoozed, State

_log = logging.getLogger(__name__)

_NAMES: dict[type, str] = {Done: "done", Snoozed: "snoozed", Cancelled: "cancelled"}


def log_failure(job: Job, attempt: int, seconds: float) -> None:
    """Log a run that failed: `job` as it is afterwards, the number of the attempt, its duration."""
    if job.state is State.PENDING:
        due = f"; the next is due at {job.run_at:%Y-%m-%d %H:%M:%S} UTC"
        text = f"failed: {headline(job.error)}; {_run(job, attempt, seconds)}{due}"
        _write(logging.WARNING, job, text, attempt=attempt, outcome="failed", seconds=seconds)
    else:
        text = f"is {job.state}: {headline(job.error)}; {_run(job, attempt, seconds)}"
        _write(logging.ERROR, job, text, attempt=attempt, outcome="failed", seconds=seconds)


def log_end(job: Job, outcome: Outcome, attempt: int, seconds: float) -> None:
    """Log a run that ended in any way, in one line."""
    if isinstance(outcome, Failed):
        log_failure(job, attempt, seconds)
    elif _log.isEnabledFor(logging.INFO):
        name, reason = _NAMES[type(outcome)], getattr(outcome, "reason", None)
        why = f": {headline(reason)}" if reason else ""
        text = f"is {name}{why}; {_run(job, attempt, seconds)}"
        _write(logging.INFO, job, text, attempt=attempt, outcome=name, seconds=seconds)


def _run(job: Job, attempt: int, seconds: float) -> str:
    return f"queue {job.queue}, attempt {attempt} of {job.retry.attempts}, {seconds:.3f} s"


def _write(level: int, job: Job, text: str, *, attempt: int, outcome: str, seconds: float) -> None:
    extra = {
        "job_id": job.id,
        "task": job.task,
        "queue": job.queue,
        "attempt": attempt,
        "outcome": outcome,
        "seconds": round(seconds, 6),
    }
    message = f"job {job.id} ({job.task}) {text}"
    record = _log.makeRecord(_log.name, level, __file__, 0, message, (), None, extra=extra)
    if outcome == "failed":
        # Of an exception, perhaps in a child process, only the text is left: see `describe`.
        record.exc_text = (job.error or "").partition("\n\n")[2] or None
    if _log.isEnabledFor(level):
        _log.handle(record)
