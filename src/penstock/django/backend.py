"""The task backend: stores tasks as jobs in a database of the project."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.core import checks
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.utils import timezone

from penstock.core import jsontext
from penstock.core.errors import JobNotFound, PenstockError
from penstock.core.job import Job, NewJob
from penstock.django import databases, handlers, results, tasks
from penstock.django.checks import check_backend
from penstock.django.framework import (
    BaseTaskBackend,
    InvalidTask,
    TaskResultDoesNotExist,
    task_backends,
    task_enqueued,
)
from penstock.engine.penstock import Penstock, enqueue_readable, run_sync
from penstock.engine.validation import PAYLOAD_LIMIT, JobValidator, check_concurrency

_LOG_LIMIT = 10_000
_validator = JobValidator(PAYLOAD_LIMIT)


class PenstockBackend(BaseTaskBackend):
    """Stores tasks as jobs in the database `OPTIONS["database"]`, "default" unless given.

    A task enqueued inside `transaction.atomic()` exists if and only if the transaction commits.
    `OPTIONS["retry"]` is the `RetryPolicy` of tasks without one, and `OPTIONS["modules"]` names
    modules with tasks that workers import besides the module `tasks` of every installed app.
    """

    task_class = tasks.PenstockTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.database: str = self.options.get("database", DEFAULT_DB_ALIAS)
        self.modules: Sequence[str] = self.options.get("modules", ())
        self._retry = {"retry": self.options["retry"]} if "retry" in self.options else {}

    @property
    def penstock(self) -> Penstock:
        """The queue behind this backend, for what the Tasks framework does not offer."""
        return databases.penstock_of(self.database)

    def validate_task(self, task: Any) -> None:
        """Raise `InvalidTask` for a task that cannot be enqueued; remember any other."""
        super().validate_task(task)
        try:
            _validator.check_encoded(self._job(task, results.Call()))
            if getattr(task, "concurrency", None) is not None:
                check_concurrency(task.concurrency)
        except (PenstockError, TypeError, AttributeError) as error:
            raise InvalidTask(str(error)) from error
        tasks.declare(task)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Store a job, as a part of the transaction of the caller if there is one."""
        super().validate_task(task)
        tasks.declare(task)  # it may have been made when the settings named another backend
        result = results.new_result(task, self.alias, args, kwargs)
        call = results.Call(
            args=result.args,
            kwargs=result.kwargs,
            backend=self.alias,
            priority=task.priority,
            run_after=aware(task.run_after),
        )
        job = self._store(self._job(task, call))
        if job.duplicate:
            return self._result(job)
        results.update(result, id=str(job.id), enqueued_at=results.local(job.enqueued_at))
        # The job is stored: a receiver that fails must not look like a failed enqueue.
        task_enqueued.send_robust(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the result of a job by its id. Raises `TaskResultDoesNotExist`."""
        job_id = results.job_id(result_id)
        if job_id is None:
            raise TaskResultDoesNotExist(result_id)
        with databases.advised():
            try:
                job = run_sync(self.penstock.get(job_id))
            except JobNotFound as error:
                found = _uncommitted(connections[self.database], job_id)
                if found is None:
                    raise TaskResultDoesNotExist(result_id) from error
                job = found
            return self._result(job)

    def _result(self, job: Job) -> Any:
        """Return the result of a job, with its earlier attempts."""
        try:
            log = run_sync(self.penstock.log(job.id, limit=_LOG_LIMIT))
        except JobNotFound:  # enqueued by the open transaction of the caller: it has not run
            log = []
        return results.result_of(job, tasks.find(job.task), log)

    def worker_app(self) -> Penstock:
        """Return the queue with the handlers of all tasks, for a worker."""
        tasks.load_modules(self.modules)
        app = databases.unshared(databases.url_of(connections[self.database]))
        handlers.register(app, self, self._job_options)
        return app

    def _job(self, task: Any, call: results.Call) -> NewJob:
        return NewJob(
            task=task.module_path,
            payload=jsontext.encode(call, "the call", jsontext.DEPTH_LIMIT + 1),
            run_at=aware(task.run_after),
            **self._job_options(task),
        )

    def _job_options(self, task: Any) -> dict[str, Any]:
        return {
            **self._retry,
            **tasks.job_options(task),
            "queue": task.queue_name,
            "priority": tasks.queue_priority(task.priority),
        }

    def _store(self, new: NewJob) -> Job:
        connection = connections[self.database]
        # Connects, and is refused in an event loop, as any use of a database in Django.
        if connection.get_autocommit():
            with databases.advised():
                return run_sync(enqueue_readable(self.penstock, [new]))[0]
        connection.validate_no_broken_transaction()
        with databases.advised():
            job = run_sync(enqueue_readable(self.penstock, [new], connection=connection))[0]
        if connection.in_atomic_block:
            transaction.on_commit(_Uncommitted(job), using=self.database)
        return job

    def check(self, **_: Any) -> Iterable[checks.CheckMessage]:
        """Check the settings of this backend."""
        return check_backend(self)


class _Uncommitted:
    """A job in an open transaction of Django, kept where a rollback forgets it: see `on_commit`."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __call__(self) -> None:
        """Do nothing: others can see the job now."""


def _uncommitted(connection: Any, job_id: int) -> Job | None:
    """Return a job that the open transaction of this thread has enqueued."""
    for _, callback, *_rest in connection.run_on_commit:
        if isinstance(callback, _Uncommitted) and callback.job.id == job_id:
            return callback.job
    return None


def aware(instant: datetime | None) -> datetime | None:
    """Return an instant of the project with its zone; that of the settings unless it has one."""
    if instant is None or timezone.is_aware(instant):
        return instant
    return instant.replace(tzinfo=timezone.get_default_timezone())


def backends() -> list[PenstockBackend]:
    """Return the backends of this kind in `TASKS`."""
    return [one for one in task_backends.all() if isinstance(one, PenstockBackend)]


def used_databases() -> set[str]:
    """Return the aliases of the databases that hold jobs."""
    return {backend.database for backend in backends()}
