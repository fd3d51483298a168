"""The registry of workers: their heartbeats, and the leases that they hold."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from penstock.core.tasks import AnnouncedTask, SetAside, TaskVersion

SILENT_AFTER = timedelta(seconds=30)
"""A worker silent for this long is most likely dead: it sends a heartbeat every ten seconds."""


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker: what its last heartbeat said, and the leases that it holds now.

    `queues=None` means all queues. Of a worker that holds leases but never sent a heartbeat, only
    the name and the leases are known; it was last seen when it claimed or renewed one of them.
    `oldest_start` is when the first of its running jobs started, `expires_at` when the first of
    its leases expires. `tasks=None` means that it does not say which it runs. `draining` means
    that it was asked to take no more jobs and to end once it has finished those it has.
    """

    name: str
    host: str | None = None
    pid: int | None = None
    queues: tuple[str, ...] | None = None
    tags: tuple[str, ...] = ()
    concurrency: int | None = None
    started_at: datetime | None = None
    seen_at: datetime
    running: int = 0
    oldest_start: datetime | None = None
    expires_at: datetime | None = None
    draining: bool = False
    tasks: tuple[AnnouncedTask, ...] | None = None

    def is_silent(self, now: datetime) -> bool:
        """Return whether there has been no sign of life for over 30 seconds.

        A worker without heartbeats shows only when it renews, which may be rare: it is silent
        only if one of its leases has expired as well.
        """
        overdue = self.host is not None or self.expires_at is None or self.expires_at <= now
        return overdue and now - self.seen_at > SILENT_AFTER


REMEMBERED_FOR = timedelta(days=30)
MOST_REMEMBERED = 1_000
"""How long, and how many, tasks of workers are remembered that have left."""


class DepartedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task as the last worker that had it, and has left since, announced it."""

    host: str
    seen_at: datetime
    task: AnnouncedTask


def remembered(before: Iterable[DepartedTask], worker: WorkerInfo) -> list[DepartedTask]:
    """Return the tasks to remember after a worker has left, by name."""
    host = worker.host or worker.name
    known = {one.task.name: one for one in before}
    for task in worker.tasks or ():
        if task.name not in known or known[task.name].seen_at <= worker.seen_at:
            known[task.name] = DepartedTask(host=host, seen_at=worker.seen_at, task=task)
    newest = sorted(known.values(), key=lambda one: one.seen_at, reverse=True)[:MOST_REMEMBERED]
    kept = [one for one in newest if one.seen_at >= newest[0].seen_at - REMEMBERED_FOR]
    return sorted(kept, key=lambda one: one.task.name)


def announced_task(name: str, workers: Iterable[WorkerInfo], now: datetime) -> AnnouncedTask | None:
    """Return what live workers announce of a task; of several, the newest version."""
    found = [
        task
        for worker in workers
        if not worker.is_silent(now)
        for task in worker.tasks or ()
        if task.name == name
    ]
    return max(found, key=lambda task: task.version, default=None)


class MissingTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task, or a version of it, that no live worker knows, and where one was last seen."""

    task: str
    version: int
    other_versions: bool
    """Whether a live worker takes other versions of it."""
    seen_on: str | None = None
    seen_at: datetime | None = None

    def __str__(self) -> str:
        known = f"knows task {self.task!r}"
        if self.other_versions:
            known = f"takes version {self.version} of task {self.task!r}"
        seen = "; no worker has announced it"
        if self.seen_at is not None:
            seen = f" (last seen on {self.seen_on} at {self.seen_at:%Y-%m-%d %H:%M:%S} UTC)"
        return f"no live worker {known}{seen}"


def unknown_task(
    task: TaskVersion,
    workers: Iterable[WorkerInfo],
    departed: Iterable[DepartedTask],
    now: datetime,
) -> MissingTask | None:
    """Return what is known of a task that no live worker takes; None if one may take it.

    A worker that does not announce its tasks, such as one of another language, may take any. None
    also if there is no worker at all: then nothing is wrong with the task.
    """
    other_versions = anybody = False
    sightings = [
        (one.seen_at, one.host)
        for one in departed
        if one.task.name == task.task and one.task.accepts(task.version)
    ]
    for worker in workers:
        is_live = not worker.is_silent(now)
        anybody = anybody or is_live
        if is_live and worker.tasks is None:
            return None
        for one in worker.tasks or ():
            if one.name == task.task and one.accepts(task.version):
                if is_live:
                    return None
                sightings.append((worker.seen_at, worker.host or worker.name))
            elif one.name == task.task and is_live:
                other_versions = True
    if not anybody and not sightings:
        return None
    seen_at, seen_on = max(sightings, default=(None, None))
    return MissingTask(
        task=task.task,
        version=task.version,
        other_versions=other_versions,
        seen_on=seen_on,
        seen_at=seen_at,
    )


MOST_COUNTED = 10_000
"""How many waiting jobs of an unknown task are counted."""


class WaitingTask(msgspec.Struct, frozen=True, kw_only=True):
    """Ready jobs that wait because no live worker knows their task; `text` says so.

    At most 10,000 jobs are counted; `oldest` is that of the first of these.
    """

    task: str
    version: int
    jobs: int
    oldest: datetime
    """When the first of them fell due."""
    text: str


def waiting_tasks(
    set_aside: Iterable[SetAside],
    workers: Sequence[WorkerInfo],
    departed: Sequence[DepartedTask],
    now: datetime,
) -> list[WaitingTask]:
    """Return the tasks that claims have met and no live worker knows, by name and version."""
    jobs: dict[TaskVersion, list[SetAside]] = {}
    for one in set_aside:
        jobs.setdefault(TaskVersion(one.task, one.version), []).append(one)
    return [
        WaitingTask(
            task=task.task,
            version=task.version,
            jobs=sum(one.jobs for one in found),
            oldest=min(one.oldest for one in found),
            text=str(unknown),
        )
        for task, found in sorted(jobs.items())
        if (unknown := unknown_task(task, workers, departed, now)) is not None
    ]


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """The leases of one worker, summarised."""

    worker: str
    running: int
    oldest_start: datetime
    expires_at: datetime
    seen_at: datetime


def roster(registered: Iterable[WorkerInfo], holdings: Iterable[Holding]) -> list[WorkerInfo]:
    """Return every worker that is registered or holds a lease, by name."""
    known = {worker.name: worker for worker in registered}
    for holding in holdings:
        worker = known.get(holding.worker)
        if worker is None:
            worker = WorkerInfo(name=holding.worker, seen_at=holding.seen_at)
        known[worker.name] = replace(
            worker,
            seen_at=max(worker.seen_at, holding.seen_at),
            running=holding.running,
            oldest_start=holding.oldest_start,
            expires_at=holding.expires_at,
        )
    return [known[name] for name in sorted(known)]
