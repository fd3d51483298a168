"""The values that travel between the layers: all immutable.

`gc=False` spares Python's cycle collector from walking thousands of jobs that cannot be part of
a cycle; it makes bulk calls a third faster.
"""

from collections import deque
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import repeat
from typing import TYPE_CHECKING, Any, NewType, Protocol

import msgspec
from msgspec.structs import asdict, force_setattr, replace

from penstock.core.errors import ConfigurationError, InvalidJob
from penstock.core.jsontext import DEPTH_LIMIT, read
from penstock.core.lifecycle import Event, Move, State, Waiting
from penstock.core.retry import DEFAULT_RETRY, RetryPolicy

JobId = NewType("JobId", int)
LogId = NewType("LogId", int)

DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 5
DEFAULT_LEASE = timedelta(seconds=30)


class Scope(StrEnum):
    """Among which jobs a dedupe key is held once."""

    PENDING = "pending"
    UNFINISHED = "unfinished"


class OnFailure(StrEnum):
    """What becomes of a job when one that it waits for does not succeed."""

    CANCEL = "cancel"
    RUN = "run"


class NewJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job that is asked for: what `Task.new` makes and `enqueue` stores.

    `payload` is the JSON text of an object: the arguments by name. `after` are the ids of stored
    jobs that it waits for, `follows` the places of jobs in the same call, before its own.
    `trace` is the W3C traceparent of who asked for it.
    """

    task: str
    payload: str
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    delay: timedelta | None = None
    run_at: datetime | None = None
    key: str | None = None
    dedupe: str | None = None
    scope: Scope = Scope.UNFINISHED
    tags: Collection[str] = ()
    retry: RetryPolicy = DEFAULT_RETRY
    timeout: timedelta | None = None
    lease: timedelta = DEFAULT_LEASE
    correlation: str | None = None
    tenant: str | None = None
    parent: JobId | None = None
    after: Collection[int] = ()
    follows: Collection[int] = ()
    on_failure: OnFailure = OnFailure.CANCEL
    supersede: bool = False
    throttle: str | None = None
    trace: str | None = None

    def __post_init__(self) -> None:
        """Keep collections as tuples: a job does not change, and stores compare jobs by them."""
        if {type(self.tags), type(self.after), type(self.follows)} == {tuple}:
            return  # as nearly always: the loop below would double the cost of a NewJob
        for name in ("tags", "after", "follows"):
            value = _collected(name, getattr(self, name))
            msgspec.structs.force_setattr(self, name, value)


def _collected(name: str, given: object) -> tuple[Any, ...]:
    if isinstance(given, Collection) and not isinstance(given, str | bytes):
        return tuple(given)
    raise InvalidJob(f"{name} must be a collection such as a list, not {given!r:.80}")


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A worker's hold on a job.

    The token only ever grows, from claim to claim, in the whole store: a side effect that
    remembers the highest token it saw can refuse a stale worker.
    """

    job_id: JobId
    token: int
    worker: str


class Results(Protocol):
    """Who can wait for the end of a job: a Penstock."""

    async def result(self, job: "Job", *, timeout: timedelta | None = None) -> Any:
        """See `Job.result`."""
        ...


class _HandedOut:
    """Who handed out a job. A slot, no field: what compares, copies or encodes jobs skips it."""

    __slots__ = ("_results",)
    _results: Results


class Job(_HandedOut, msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stored job as it was at one moment.

    `version` is the id of the newest log entry about it; it changes with every transition.
    `token` belongs to the newest claim. `needs` counts the jobs that it still waits for.
    `duplicate` tells that an enqueue met this existing job
    instead of storing another.
    """

    id: JobId
    version: LogId
    task: str
    payload: str
    queue: str
    priority: int
    state: State
    waiting: Waiting | None
    attempt: int
    enqueued_at: datetime
    run_at: datetime
    key: str | None = None
    dedupe: str | None = None
    scope: Scope = Scope.UNFINISHED
    tags: tuple[str, ...] = ()
    retry: RetryPolicy = DEFAULT_RETRY
    timeout: timedelta | None = None
    lease_time: timedelta = DEFAULT_LEASE
    correlation: str | None = None
    tenant: str | None = None
    parent: JobId | None = None
    needs: int = 0
    throttle: str | None = None
    trace: str | None = None
    token: int = 0
    worker: str | None = None
    started_at: datetime | None = None
    expires_at: datetime | None = None
    cancel_requested: bool = False
    finished_at: datetime | None = None
    error: str | None = None
    result_json: str | None = None
    duplicate: bool = False

    @property
    def args(self) -> Any:
        """The arguments by name, decoded; raises `InvalidJob` for what cannot be read.

        Only other programs can have stored that.
        """
        return read(self.payload, f"args of job {self.id}:", DEPTH_LIMIT + 1)

    @property
    def returned(self) -> Any:
        """What the handler had returned by then, decoded; None until the job is done."""
        text = self.result_json
        return None if text is None else read(text, f"result of job {self.id}:")

    @property
    def failed_attempts(self) -> int:
        """How many attempts have failed; one that runs, has succeeded or was cancelled has not."""
        is_open = self.state in (State.RUNNING, State.DONE)
        was_stopped = self.state is State.CANCELLED and self.started_at is not None
        return max(0, self.attempt - (is_open or was_stopped))

    @property
    def lease(self) -> Lease:
        """The hold of the worker that claimed it last."""
        return Lease(self.id, self.token, self.worker or "")

    async def result(self, *, timeout: timedelta | None = None) -> Any:
        """What the handler returns, when the job has ended, in whatever process.

        Raises `JobFailed` if it ended without success, `TimeoutError` when the time is over, and
        `ConfigurationError` for a job that does not know its Penstock: one that a worker claimed,
        one of an archive, or a copy.
        """
        try:
            results = self._results
        except AttributeError:
            raise ConfigurationError(
                f"job {self.id} was not handed out by a Penstock, which could wait for its end; "
                "ask one: await app.result(job)"
            ) from None
        return await results.result(self, timeout=timeout)


def bind(jobs: list[Job], results: Results) -> list[Job]:
    """These jobs, which now know who hands them out; for `Job.result`."""
    if len(jobs) == 1:
        force_setattr(jobs[0], "_results", results)
        return jobs
    # A loop over them would cost twice as much.
    deque(map(force_setattr, jobs, repeat("_results"), repeat(results)), maxlen=0)
    return jobs


def moved(job: Job, move: Move, *, at: datetime, version: LogId, waiting: Waiting | None) -> Job:
    """The job after this move: what every store has to keep of it."""
    fields = moved_fields(move, kept_error(job, move), at=at, waiting=waiting)
    if move.renews:
        fields["expires_at"] = at + job.lease_time
    return replace(job, version=version, **fields)


def moved_fields(
    move: Move, error: str | None, *, at: datetime, waiting: Waiting | None
) -> dict[str, Any]:
    """What a move changes in a job, besides its version and the deadline that it renews."""
    if move.stays:
        if move.priority is not None:
            return {"priority": move.priority}
        return {"cancel_requested": move.cancel_requested}
    fields: dict[str, Any] = {
        "state": move.state,
        "waiting": waiting,
        "attempt": move.attempt,
        "expires_at": None,
        "cancel_requested": False,
        "error": error,
        "result_json": move.result,
    }
    if move.state is not State.PENDING:
        return {**fields, "finished_at": at}
    run_at = at + move.delay
    return {**fields, "run_at": run_at, "worker": None, "started_at": None, "finished_at": None}


def kept_error(job: Job, move: Move) -> str | None:
    """The error that a job shows after this move: its last, until it succeeds or starts anew."""
    if move.event in (Event.DONE, Event.RESET):
        return None
    return move.error or job.error


def headline(error: str | None) -> str:
    """What an error is, in one line: its first, or the last of a bare traceback."""
    lines = (error or "").strip().splitlines() or [""]
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]


class LogEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One line of the audit: what happened to which job, when, by whom, and where it led.

    `duration` is how long the run took that ended, or of a claim, how long the job had waited
    since it was due. `detail` is JSON text that a worker gave along.
    """

    id: LogId
    job_id: JobId
    at: datetime
    event: Event
    state: State
    actor: str
    token: int | None = None
    reason: str | None = None
    error: str | None = None
    duration: timedelta | None = None
    detail: str | None = None


class Edge(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One job waits for another; `resolved` when that one has come to an end."""

    needed: JobId
    job_id: JobId
    on_failure: OnFailure
    resolved: bool = False


class KeyLine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The unfinished jobs of a key: the one that runs or is next, and how many there are.

    `length` is counted up to `LONGEST_LINE`.
    """

    key: str
    first: JobId
    length: int


LONGEST_LINE = 1_000
"""So far the line of a key is counted where many are listed."""


class Tail(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a superseding job was merged with: the newest pending job of its key, if any.

    The new job takes the other's place if it `replaces` it, or stands behind it.
    """

    job: Job | None
    replaces: bool = False


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job with its whole log, and what it waits for: what outlives its removal from a store."""

    job: Job
    log: tuple[LogEntry, ...]
    edges: tuple[Edge, ...] = ()


class Origin(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which store it is, and the highest ids of a job and of a log entry it has given so far."""

    source: int
    last_job: JobId = JobId(0)
    last_log: LogId = LogId(0)


def asked(job: Job) -> NewJob:
    """What a stored job was asked for."""
    return NewJob(
        task=job.task,
        payload=job.payload,
        queue=job.queue,
        priority=job.priority,
        run_at=job.run_at,
        key=job.key,
        dedupe=job.dedupe,
        scope=job.scope,
        tags=job.tags,
        retry=job.retry,
        timeout=job.timeout,
        lease=job.lease_time,
        correlation=job.correlation,
        tenant=job.tenant,
        parent=job.parent,
        throttle=job.throttle,
        trace=job.trace,
    )


def restored(job: Job, move: Move, *, at: datetime) -> Job:
    """The job after `lifecycle.restore`: it keeps its times, and so its place in the order."""
    if job.state is not State.RUNNING:
        return replace(job, expires_at=None, cancel_requested=False)
    fields = moved_fields(move, job.error, at=at, waiting=None)
    return replace(job, **{**fields, "run_at": job.run_at})


class Change(msgspec.Struct, frozen=True, gc=False):
    """A move for a job, to be written only while the job is still the one that was looked at."""

    job: Job
    move: Move


class Claim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a worker asks for: at most `limit` jobs.

    Of these queues, when None of all but those `besides`; with any of these tags, whatever their
    tags when empty.
    """

    worker: str
    limit: int
    queues: tuple[str, ...] | None = None
    besides: frozenset[str] = frozenset()
    tags: tuple[str, ...] = ()

    def wants(self, queue: str) -> bool:
        """Whether jobs of this queue are asked for."""
        return queue not in self.besides if self.queues is None else queue in self.queues


class JobQuery(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which jobs to list; every field narrows. Pages by id: pass the last id seen as `after`.

    `tags` finds jobs with any of them. `error` is a text that occurs in the job's error, `text` one
    that occurs in its task, key, tags, tenant, arguments or error; tags and arguments are looked at
    as the JSON that they are stored as. `since` and `before` are about age: jobs that ended at that
    instant or later, or before it; while unfinished, they count from when they were enqueued.
    `until` is the last id that is looked at, in the direction of the pages.
    """

    states: frozenset[State] | None = None
    queue: str | None = None
    task: str | None = None
    key: str | None = None
    tags: tuple[str, ...] = ()
    correlation: str | None = None
    tenant: str | None = None
    parent: JobId | None = None
    cancel_requested: bool | None = None
    error: str | None = None
    text: str | None = None
    since: datetime | None = None
    before: datetime | None = None
    after: JobId | None = None
    until: JobId | None = None
    newest_first: bool = True
    limit: int = 100

    if TYPE_CHECKING:
        # For type checkers: `states` and `tags` may be given as any collection, and are read as
        # what __post_init__ makes of it.
        def __init__(
            self,
            *,
            states: Collection[State] | None = None,
            queue: str | None = None,
            task: str | None = None,
            key: str | None = None,
            tags: Collection[str] = (),
            correlation: str | None = None,
            tenant: str | None = None,
            parent: int | None = None,
            cancel_requested: bool | None = None,
            error: str | None = None,
            text: str | None = None,
            since: datetime | None = None,
            before: datetime | None = None,
            after: int | None = None,
            until: int | None = None,
            newest_first: bool = True,
            limit: int = 100,
        ) -> None: ...

    def __post_init__(self) -> None:
        """Refuse what no job could be compared with."""
        if self.states is not None and type(self.states) is not frozenset:
            msgspec.structs.force_setattr(self, "states", _states(self.states))
        if type(self.tags) is not tuple:
            try:
                tags = _collected("tags", self.tags)
            except InvalidJob as error:
                raise ConfigurationError(str(error)) from None
            msgspec.structs.force_setattr(self, "tags", tags)
        for name in ("error", "text"):
            value = getattr(self, name)
            if value is not None and type(value) is not str:
                raise ConfigurationError(f"{name} is a text to look for, not {value!r:.80}")
        for name in ("since", "before"):
            value = getattr(self, name)
            if value is not None and getattr(value, "tzinfo", None) is None:
                raise ConfigurationError(
                    f"{name} is an instant with a time zone: datetime.now(UTC) - …, "
                    f"not {value!r:.80}"
                )


def _states(given: object) -> frozenset[State]:
    try:
        if isinstance(given, Collection) and not isinstance(given, str | bytes):
            return frozenset(map(State, given))
    except ValueError:
        pass
    raise ConfigurationError(
        f"states is a collection of states, such as [State.FAILED], not {given!r:.80}"
    )


def fits(job: Job, query: JobQuery) -> bool:
    """Whether a query asks for this job, wherever its page begins and ends."""
    return (
        (query.states is None or job.state in query.states)
        and (query.queue is None or job.queue == query.queue)
        and (query.task is None or job.task == query.task)
        and (query.key is None or job.key == query.key)
        and (not query.tags or not set(query.tags).isdisjoint(job.tags))
        and (query.correlation is None or job.correlation == query.correlation)
        and (query.tenant is None or job.tenant == query.tenant)
        and (query.parent is None or job.parent == query.parent)
        and (query.cancel_requested is None or job.cancel_requested == query.cancel_requested)
        and (query.error is None or (job.error is not None and query.error in job.error))
        and (query.since is None or (job.finished_at or job.enqueued_at) >= query.since)
        and (query.before is None or (job.finished_at or job.enqueued_at) < query.before)
        and (query.text is None or _mentions(job, query.text))
    )


def _mentions(job: Job, text: str) -> bool:
    return (
        text in job.task
        or (job.key is not None and text in job.key)
        or (job.tenant is not None and text in job.tenant)
        or (job.error is not None and text in job.error)
        or (bool(job.tags) and text in msgspec.json.encode(job.tags).decode())
        or text in job.payload
    )


Ages = timedelta | tuple[timedelta, ...]
"""When waiting raises a priority: after each such time, or once at each of these ages."""


class Queue(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A named stream of jobs with its limits, as every process sees it.

    At most `max_pending` jobs wait in it, `concurrency` run, and `rate[0]` start within any time
    of `rate[1]`; a job that has waited counts as one priority higher for each `promote_after`, or
    for each age in it that it has reached. A pause ends by itself at `paused_until`; without that,
    it stays until the queue is resumed.
    """

    name: str
    paused: bool = False
    paused_until: datetime | None = None
    max_pending: int | None = None
    concurrency: int | None = None
    rate: tuple[int, timedelta] | None = None
    promote_after: Ages | None = None


class QueueQuery(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which queues to list, by name; every field narrows.

    `names` are exact, unknown ones are left out. `contains` is a text in the name. A page begins
    behind the name `after` and has at most `limit` queues.
    """

    names: tuple[str, ...] | None = None
    contains: str | None = None
    after: str | None = None
    limit: int | None = None

    def wants(self, name: str) -> bool:
        """Whether a queue of this name is meant, on whatever page behind `after`."""
        return (
            (self.names is None or name in self.names)
            and (self.contains is None or self.contains in name)
            and (self.after is None or name > self.after)
        )


ALL_QUEUES = QueueQuery()


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What to change about a queue; what is unset stays."""

    name: str
    paused: bool | msgspec.UnsetType = msgspec.UNSET
    paused_until: datetime | msgspec.UnsetType | None = msgspec.UNSET
    max_pending: int | msgspec.UnsetType | None = msgspec.UNSET
    concurrency: int | msgspec.UnsetType | None = msgspec.UNSET
    rate: tuple[int, timedelta] | msgspec.UnsetType | None = msgspec.UNSET
    promote_after: Ages | msgspec.UnsetType | None = msgspec.UNSET


def queue_at(queue: Queue, now: datetime) -> Queue:
    """A queue as it is at an instant: without a pause that has ended by itself."""
    over = queue.paused_until is not None and queue.paused_until <= now
    return replace(queue, paused=False, paused_until=None) if over else queue


def configured(queue: Queue, settings: QueueSettings) -> Queue:
    """A queue with what these settings change.

    A pause that has an end never takes the place of one that has none: who holds a queue for a
    while cannot undo what somebody else has decided for good.
    """
    changed = {
        name: value for name, value in asdict(settings).items() if value is not msgspec.UNSET
    }
    if "paused" in changed:
        changed.setdefault("paused_until", None)
    lasts = queue.paused and queue.paused_until is None and settings.paused is True
    queue = replace(queue, **changed)
    return replace(queue, paused_until=None) if lasts or not queue.paused else queue


class Retention(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How long a finished job is kept, from its end."""

    finished: timedelta = timedelta(days=1)
    failed: timedelta = timedelta(days=7)

    def keeps(self, state: State) -> timedelta:
        """The time that jobs of a final state are kept."""
        return self.failed if state is State.FAILED else self.finished


Counts = Mapping[tuple[str, State, Waiting | None], int]
Tally = Mapping[State, int]


Stages = Mapping[tuple[State, Waiting | None], int]
"""How many jobs there are by state and, when pending, what they wait for."""


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A queue with its limits, its jobs by state, and since when its oldest ready one is due."""

    queue: Queue
    counts: Stages
    oldest_ready: datetime | None

    @property
    def states(self) -> dict[State, int]:
        """How many jobs there are in each state, also where there are none."""
        return by_state(self.counts)

    @property
    def waiting(self) -> dict[Waiting, int]:
        """How many pending jobs there are by what they wait for."""
        return {waiting: self.counts.get((State.PENDING, waiting), 0) for waiting in Waiting}

    @property
    def totals(self) -> dict[State | Waiting, int]:
        """Both in one."""
        return dict([*self.states.items(), *self.waiting.items()])


def by_state(counts: Stages) -> dict[State, int]:
    """How many jobs there are in each state, also where there are none."""
    states = dict.fromkeys(State, 0)
    for (state, _), n in counts.items():
        states[state] += n
    return states


class Overall(msgspec.Struct, frozen=True, kw_only=True):
    """What many queues have together.

    `queues` is how many there are, `paused` how many of them are paused. `oldest_ready` is since
    when the job that is ready for the longest has been due.
    """

    queues: int
    paused: int
    counts: Stages
    oldest_ready: datetime | None
