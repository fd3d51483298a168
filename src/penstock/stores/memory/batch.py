"""A write batch: everything that one write changes, as a value."""

import msgspec
from msgspec import UNSET, UnsetType, field

from penstock.core.dependencies import Edge
from penstock.core.job import Job, JobId, LogEntry, LogId
from penstock.core.limits import Limit, Start
from penstock.core.migration_lock import MigrationLock
from penstock.core.progress import Report, Reported
from penstock.core.queue import Queue
from penstock.core.schedule import Schedule
from penstock.core.statistics import Sum
from penstock.core.tokens import Token
from penstock.core.workers import WorkerInfo


class WriteBatch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that one verb writes: jobs and other values as they are afterwards, and the log.

    Applying the batches of a store in order, each at its time, creates the store again. Names in
    files (`name=`) belong to the format of journals and do not change.
    """

    jobs: list[Job] = []
    entries: list[LogEntry] = []
    queues: list[Queue] = []
    edges: list[Edge] = []
    removed: list[JobId] = []
    origins: list[tuple[int, JobId, JobId]] = []
    """Jobs taken over: the identity of the other store, the id there and the id here."""
    last_job: int = 0
    last_log: int = 0
    """Ids assigned from now on are higher than these."""
    schedules: list[Schedule] = []
    dropped_schedules: list[str] = field(default_factory=list, name="unscheduled")
    last_schedule: int = field(default=0, name="last_version")
    """Versions of schedules assigned from now on are higher than this."""
    limits: list[Limit] = []
    starts: dict[str, list[Start]] = {}
    """The starts that count towards the rate of a queue."""
    turns: dict[str, dict[int, str]] = {}
    """The tenant that had the last turn, by queue and level."""
    tokens: list[Token] = []
    dropped_tokens: list[str] = field(default_factory=list, name="revoked")
    migration_lock: MigrationLock | UnsetType | None = field(default=UNSET, name="seal")
    reports: list[Report] = field(default_factory=list, name="notes")
    reported: dict[JobId, Reported] = field(default_factory=dict, name="kept")
    """What jobs reported in another store, or before a snapshot."""
    workers: list[WorkerInfo] = field(default_factory=list, name="greeted")
    deregistered: list[str] = field(default_factory=list, name="dismissed")
    roll_up_to: LogId = field(default=LogId(0), name="digested")
    """Count the log entries up to this one."""
    forget_before: int = field(default=0, name="forgotten")
    """Remove some of the sums of minutes before this one."""
    minutes: list[Sum] = []
    totals: list[Sum] = field(default_factory=list, name="ever")
    rolled_up_to: LogId = field(default=LogId(0), name="counted")
    """Sums as they were counted before a snapshot, up to this entry."""
    series_limit: int = field(default=0, name="series")
    """How many queues may have counters of their own."""
    series: list[str] = field(default_factory=list, name="named")
    """Queues that have counters of their own."""


NOTHING = WriteBatch()
