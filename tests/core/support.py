"""Jobs and instants that the tests of the core share."""

from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.core.job import Job, JobId, LogId
from penstock.core.lifecycle import State, Waiting

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def job(job_id: int = 1, state: State = State.PENDING, **fields: Any) -> Job:
    """Return a job with these fields; a pending one is ready."""
    return Job(
        **{
            "id": JobId(job_id),
            "version": LogId(1),
            "task": "t",
            "payload": "{}",
            "queue": "q",
            "priority": 5,
            "state": state,
            "waiting": Waiting.READY if state is State.PENDING else None,
            "attempt": 0,
            "enqueued_at": NOW,
            "run_at": NOW,
            **fields,
        }
    )
