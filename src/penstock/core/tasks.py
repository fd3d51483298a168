"""Tasks by name and version: which jobs a worker takes, and what workers announce of their tasks.

A claim that names its tasks takes jobs of these only. It sets the others that it meets aside, under
a name made of task and version. A claim that knows a task reads what is set aside under its name
together with the ready jobs of the queue, so each job is set aside at most once.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

import msgspec

FIRST_VERSION = 1
"""The version of a task that declares none, and of jobs that other programs enqueue."""
MOST_VERSIONS = 100
"""How many versions a task may accept."""
HIGHEST_VERSION = 2**31 - 1

MERGED = ""
"""Stands for all queues together that a database indexes as one; no queue has this name."""

UNKNOWN = "unknown"
"""The kind of the holder of a job that was set aside, next to "task" and "throttle"."""
_PREFIX = f"{UNKNOWN}:"


class TaskVersion(NamedTuple):
    """A task as a job names it."""

    task: str
    version: int


class SetAside(msgspec.Struct, frozen=True):
    """Ready jobs of a task that claims have met and did not know.

    The queue may be `MERGED`.
    """

    task: str
    version: int
    queue: str
    jobs: int
    oldest: datetime
    """When the first of them fell due."""


class Versioned(Protocol):
    """Something with a task and a version: a job, or what a claim sees of one."""

    @property
    def task(self) -> str:
        """The name of the task."""
        ...

    @property
    def task_version(self) -> int:
        """The version of the task that enqueued the job."""
        ...


class KnownTasks:
    """The tasks that a worker runs, by name, each with the versions that it accepts."""

    __slots__ = ("_pairs", "encoded_holders", "holders")

    def __init__(self, accepted: Mapping[str, Iterable[int]]) -> None:
        self._pairs = {(task, n) for task, versions in accepted.items() for n in versions}
        self.holders = sorted(_PREFIX + name_of(*pair) for pair in self._pairs)
        """The names under which jobs of these tasks are set aside."""
        self.encoded_holders = msgspec.json.encode(self.holders).decode()
        """The same as JSON."""

    def __contains__(self, pair: tuple[str, int]) -> bool:
        return pair in self._pairs

    def take(self, job: Versioned) -> bool:
        """Return whether a job is of one of these tasks and versions."""
        return (job.task, job.task_version) in self._pairs


def name_of(task: str, version: int) -> str:
    """Return one name for a task and a version; the version comes first, for it has no colon."""
    return f"{version}:{task}"


def holder_of(job: Versioned) -> tuple[str, str]:
    """Return what holds a job whose task a claim does not know, as `Places.holder` does."""
    return UNKNOWN, name_of(job.task, job.task_version)


def set_aside_as(holder: str) -> TaskVersion:
    """Return the task and version of a name in `KnownTasks.holders`."""
    _, version, task = holder.split(":", 2)
    return TaskVersion(task, int(version))


class AnnouncedRetry(msgspec.Struct, frozen=True, kw_only=True):
    """The retry policy of a task; durations are seconds."""

    attempts: int
    delay: float
    factor: float
    max_delay: float
    jitter: float


class AnnouncedTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker says about one of its tasks: the versions it accepts, and its defaults.

    Durations are seconds; None stands for the default of all tasks.
    """

    name: str
    version: int = FIRST_VERSION
    """The version of jobs that its program enqueues."""
    oldest: int = FIRST_VERSION
    newest: int = FIRST_VERSION
    alias_of: str | None = None
    """The present name of a task that was renamed."""
    queue: str = "default"
    priority: int = 5
    retry: AnnouncedRetry | None = None
    timeout: float | None = None
    lease: float | None = None
    delay: float | None = None
    key: str | None = None
    tags: tuple[str, ...] = ()
    tenant: str | None = None
    throttle: str | None = None

    def accepts(self, version: int) -> bool:
        """Return whether the worker takes jobs of this version."""
        return self.oldest <= version <= self.newest


MOST_ANNOUNCED = 1_000
"""How many tasks a worker announces; one that has more announces none, and may know any."""


def announced(tasks: Sequence[AnnouncedTask]) -> tuple[AnnouncedTask, ...] | None:
    """Return what a worker with these tasks announces; None if they are too many."""
    return tuple(tasks) if len(tasks) <= MOST_ANNOUNCED else None
