"""Jobs as results of Django's Tasks framework."""

import builtins
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

import msgspec
from django.conf import settings
from django.utils import timezone

from penstock.core import errors
from penstock.core.job import Job, LogEntry, headline
from penstock.core.lifecycle import Event, State
from penstock.django.framework import TaskError, TaskResult, TaskResultStatus

STATUSES = {
    State.PENDING: TaskResultStatus.READY,
    State.RUNNING: TaskResultStatus.RUNNING,
    State.DONE: TaskResultStatus.SUCCESSFUL,
    State.FAILED: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
    State.SUPERSEDED: TaskResultStatus.FAILED,
}
_CLASS = re.compile(r"([A-Za-z_][\w.]*)(:|$)")
_ID = re.compile(r"[0-9]{1,18}")


class Call(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a job calls, as its payload holds it, and what Django knows of it but no queue.

    A schedule enqueues an empty one: a call without arguments, of the task as it is declared.
    """

    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    backend: str | None = None
    priority: int | None = None
    run_after: datetime | None = None


def job_id(text: str) -> int | None:
    """Return the number of a job from its text; None if it cannot be one."""
    return int(text) if _ID.fullmatch(text) else None


def new_result(task: Any, backend: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of a task that is not stored yet, with its arguments as JSON has them.

    Raises `TypeError` or `ValueError` for arguments that are not JSON.
    """
    return TaskResult(
        task=task,
        id="",
        status=TaskResultStatus.READY,
        enqueued_at=None,
        started_at=None,
        last_attempted_at=None,
        finished_at=None,
        args=list(args),
        kwargs=dict(kwargs),
        backend=backend,
        errors=[],
        worker_ids=[],
    )


def result_of(job: Job, task: Any, log: Sequence[LogEntry] = ()) -> Any:
    """Return the `TaskResult` of a job; the log tells about attempts before the newest."""
    call = msgspec.json.decode(job.payload, type=Call)
    attempts = _Attempts(job, log)
    result = TaskResult(
        task=_as_enqueued(task, job, call),
        id=str(job.id),
        status=STATUSES[job.state],
        enqueued_at=local(job.enqueued_at),
        started_at=local(attempts.started_at[0]) if attempts.started_at else None,
        last_attempted_at=local(attempts.started_at[-1]) if attempts.started_at else None,
        finished_at=None if job.finished_at is None else local(job.finished_at),
        args=call.args,
        kwargs=call.kwargs,
        backend=call.backend or task.backend,
        errors=attempts.errors,
        worker_ids=attempts.workers,
    )
    if job.state is State.DONE:
        update(result, _return_value=job.returned)
    return result


def update(result: Any, **changes: Any) -> None:
    """Change a result in place, as the framework itself does: those who hold it see the change."""
    for name, value in changes.items():
        object.__setattr__(result, name, value)


def local(instant: datetime) -> datetime:
    """Return an instant as the project has them: aware, or local without a zone."""
    return instant if settings.USE_TZ else timezone.make_naive(instant)


def error_of(event: Event, error: str | None, reason: str | None) -> Any:
    """Return the error of an attempt that ended so, as the framework keeps it."""
    if event in (Event.CANCELLED, Event.SUPERSEDED):
        return TaskError(exception_class_path=_path(errors.Cancel), traceback=reason or event.value)
    # The text of an error begins with its class.
    text = error or reason or ""
    first, _, traceback = text.partition("\n\n")
    return TaskError(exception_class_path=_class_path(headline(first)), traceback=traceback or text)


class _Attempts:
    """The attempts that count, from the log: not those before a retry by hand, nor snoozed ones."""

    def __init__(self, job: Job, log: Sequence[LogEntry]) -> None:
        self.workers: list[str] = []
        self.started_at: list[datetime] = []
        self.errors: list[Any] = []
        for entry in log:
            self._read(entry)
        if not log and job.started_at is not None:  # only one attempt, and it runs
            self.workers, self.started_at = [job.worker or ""], [job.started_at]

    def _read(self, entry: LogEntry) -> None:
        match entry.event:
            case Event.CLAIMED:
                self.workers.append(entry.actor)
                self.started_at.append(entry.at)
            case Event.SNOOZED:
                del self.workers[-1:], self.started_at[-1:]
            case Event.RESET:
                self.workers, self.started_at, self.errors = [], [], []
            case Event.FAILED | Event.EXPIRED | Event.CANCELLED | Event.SUPERSEDED:
                self.errors.append(error_of(entry.event, entry.error, entry.reason))


def _class_path(line: str) -> str:
    """Return the path of the exception that a line names, as the last of a traceback does."""
    match = _CLASS.match(line)
    name = match[1] if match else ""
    if "." in name:
        return name
    for module in (builtins, errors):
        if isinstance(kind := getattr(module, name, None), type):
            return _path(kind)
    return _path(errors.JobFailed)


def _path(kind: type) -> str:
    module = "penstock.errors" if kind.__module__ == errors.__name__ else kind.__module__
    return f"{module}.{kind.__qualname__}"


def _as_enqueued(task: Any, job: Job, call: Call) -> Any:
    """Return the task as it was when the job was enqueued.

    Made without its constructor, which would refuse a queue that the settings no longer name.
    """
    copy = object.__new__(type(task))
    for field in fields(task):
        object.__setattr__(copy, field.name, getattr(task, field.name))
    update(
        copy,
        priority=task.priority if call.priority is None else call.priority,
        queue_name=job.queue,
        backend=call.backend or task.backend,
        run_after=None if call.run_after is None else local(call.run_after),
    )
    return copy
