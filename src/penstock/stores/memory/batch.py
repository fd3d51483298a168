"""What a write changes, as one value."""

import msgspec
from msgspec import UNSET, UnsetType

from penstock.core.history import Sum
from penstock.core.job import Edge, Job, JobId, LogEntry, LogId, Queue
from penstock.core.limits import Limit, Start
from penstock.core.note import Note, Notes
from penstock.core.schedule import Schedule
from penstock.core.seal import Seal
from penstock.core.token import Token
from penstock.core.worker import WorkerInfo


class Batch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that one verb writes: jobs and all else as they became, and what it logged.

    To apply the batches of a store in their order, each at its time, is to make the store again.
    """

    jobs: list[Job] = []
    entries: list[LogEntry] = []
    queues: list[Queue] = []
    edges: list[Edge] = []
    removed: list[JobId] = []
    origins: list[tuple[int, JobId, JobId]] = []
    """Where jobs came from: the other store's number, the id there, the id here."""
    last_job: int = 0
    last_log: int = 0
    """Ids to be given are higher than these."""
    schedules: list[Schedule] = []
    unscheduled: list[str] = []
    last_version: int = 0
    """Versions of schedules to be given are higher than this."""
    limits: list[Limit] = []
    starts: dict[str, list[Start]] = {}
    """The starts that the rate of a queue counts."""
    turns: dict[str, dict[int, str]] = {}
    """The tenant of each queue and priority that was served last."""
    tokens: list[Token] = []
    revoked: list[str] = []
    seal: Seal | UnsetType | None = UNSET
    notes: list[Note] = []
    kept: dict[JobId, Notes] = {}
    """All that jobs have said elsewhere."""
    greeted: list[WorkerInfo] = []
    dismissed: list[str] = []
    digested: LogId = LogId(0)
    """Count the log up to this entry."""
    forgotten: int = 0
    """Some of the sums of minutes before this one go."""
    minutes: list[Sum] = []
    ever: list[Sum] = []
    counted: LogId = LogId(0)
    """Sums as they were counted elsewhere, up to this entry."""
    series: int = 0
    """How many queues have counters of their own from now on, at most."""
    named: list[str] = []
    """Queues that have them."""


NOTHING = Batch()
