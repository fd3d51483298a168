"""The Store protocol: what a home for jobs has to promise."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from penstock.core.history import Counters, Interval
from penstock.core.job import (
    ALL_QUEUES,
    Change,
    Claim,
    Counts,
    Edge,
    Job,
    JobId,
    JobQuery,
    KeyLine,
    Lease,
    LogEntry,
    LogId,
    NewJob,
    Origin,
    Overall,
    Queue,
    QueueQuery,
    QueueSettings,
    Record,
    Retention,
    Tail,
    Tally,
)
from penstock.core.lifecycle import Done
from penstock.core.limits import Held, Limit
from penstock.core.mirror import Mirror
from penstock.core.note import Line, Note, Notes, Progress
from penstock.core.schedule import Due, Firing, Schedule
from penstock.core.seal import Seal
from penstock.core.size import StoreSize
from penstock.core.tables import Statements, Tables, Within
from penstock.core.token import Token
from penstock.core.worker import WorkerInfo

T = TypeVar("T")

Clock = Callable[[], int]
"""Microseconds since 1970, UTC."""


class Store(Protocol):
    """Where jobs are durable.

    A verb is one transaction: all of it is durable when it returns, or nothing happened. Writes
    take a sequence. The store's clock decides every time. `actor` is who the log will name.
    The jobs of an answer are the caller's: a store keeps none of these very objects.

    Verbs are coroutines. Called where no event loop runs, they finish without suspending, so
    that synchronous code can drive them by one `send` (see `penstock.engine.run_sync`).
    """

    async def add(
        self,
        jobs: Sequence[NewJob],
        *,
        actor: str,
        connection: Any = None,
        tail: Tail | None = None,
        reason: str | None = None,
    ) -> list[Job]:
        """Store these jobs, all or none, in this order; ids grow in that order.

        A job with `after` or `follows` is blocked until all of those have ended. Raises
        `JobNotFound` if one of `after` is not stored. With `tail`, there is one new
        job, and it is stored only if the newest pending job of its key is still the one in
        `tail`, unchanged; else raises `Overtaken`. One that replaces it also waits for what that
        job still waited for.

        A job whose dedupe key is held is not stored: the holder is returned in its place, with
        `duplicate` set. Raises `QueueFull` when a queue would pass its limit, `TooManyQueues` when
        the store would; duplicates are looked for first. With `connection`, all happens inside
        that caller's own transaction and becomes visible when the caller commits. `reason` is what
        the log says about why, for jobs that neither supersede nor join a transaction.
        """
        ...

    async def claim(self, wanted: Claim) -> list[Job]:
        """Give ready jobs to a worker: highest priority first, then earliest due, then lowest id.

        Each becomes running with a token higher than any given before, one attempt more, and a
        deadline its own lease time away. Of the jobs of one key only the oldest unfinished one
        is ever given. A paused queue gives none.

        What would pass a limit on running jobs or on starts stays, and what comes behind it is
        given instead. The tenants of a queue that have ready jobs of those asked for take turns
        within a priority. Where `promote_after` is set, waiting raises a job's priority, up to 10.
        """
        ...

    async def renew(self, leases: Sequence[Lease]) -> list[Job]:
        """Move the deadlines of these leases to a full lease time from now.

        Returns the jobs still held, as they are now; a lease that is over, or that has another
        worker's name, is left out.
        """
        ...

    async def transition(self, changes: Sequence[Change], *, actor: str) -> list[Job | None]:
        """Write each move whose job still has the version it was decided on; log each.

        The expiry of a lease is written only while its deadline is still past. A start moves
        the deadline to a full lease time from now.

        Returns, for each change, the job as it is now, or None where the job had changed or is
        gone. Finishing or giving back the head of a key makes the next job of the key visible
        in the same transaction; so does the end of a job for those that wait for it, or they
        meet `lifecycle.abandon`. Who waits for a job with a successor waits for that one
        instead, unless the successor itself waits for it, by whatever way.

        A move to pending meets `lifecycle.give_way` if its dedupe key is held by another, and a
        cancelled job that would wait for itself in the line of its key `lifecycle.keep_back`.
        """
        ...

    async def finish(
        self, ended: Sequence[tuple[Job, Done]], *, actor: str, connection: Any
    ) -> list[Job]:
        """End runs with success inside the caller's own transaction; see `add`.

        Raises `LeaseLost` unless the leases that the jobs were claimed with are still held. Others
        see the end, and what it means for them, when the caller has committed.
        """
        ...

    async def supersede(self, job_id: JobId, by: JobId, *, actor: str, connection: Any) -> bool:
        """Let one job take the place of a pending one, inside a transaction of `transact`.

        False, with nothing changed, if that one is not pending any more.
        """
        ...

    async def transact(self, work: Callable[[Within], T]) -> T:
        """Run an application's own statements in one transaction of the store's database.

        What `work` returns or raises is the answer, and what it has written is kept or undone. It
        may be run again, and in another thread. Jobs are added and finished in the same
        transaction where `connection` is what `work` was given. Raises `ConfigurationError` where
        there is no database.
        """
        ...

    async def read(self, work: Callable[[Statements], T]) -> T:
        """Run an application's statements that only read, all at one moment; see `transact`."""
        ...

    async def prepare(self, name: str, steps: Tables) -> None:
        """Make the tables of an application, or bring them up to date; see `transact`.

        Each step is taken once, in the order of their numbers, however many ask for it at once.
        """
        ...

    async def watch(self, ids: Sequence[JobId]) -> list[Job]:
        """These jobs as they are now; `wait` will return, in every process, when they end."""
        ...

    async def edges(self, ids: Sequence[JobId]) -> list[Edge]:
        """Who waits for whom, as far as these jobs do or are waited for."""
        ...

    async def expired(self, limit: int) -> list[Job]:
        """Running jobs whose deadline is past, longest past first."""
        ...

    async def get(self, ids: Sequence[JobId]) -> list[Job]:
        """These jobs, in this order; unknown ids are left out."""
        ...

    async def find(self, query: JobQuery) -> list[Job]:
        """The jobs that fit, by id."""
        ...

    async def find_ids(self, query: JobQuery) -> list[JobId]:
        """As `find`, the ids alone: cheap enough for very long pages."""
        ...

    async def tally(self, query: JobQuery) -> Tally:
        """How many jobs fit, on all pages, by their states; counts them one by one."""
        ...

    async def count(self, queues: Collection[str] | None = None) -> Counts:
        """How many jobs there are per queue, state and, when pending, what they wait for.

        Of these queues, or of all. Comes from kept totals: the cost does not grow with the number
        of jobs, nor with that of other queues.
        """
        ...

    async def ready_tags(
        self, queue: str, limit: int = 1000, *, among: Sequence[str] | None = None
    ) -> list[str]:
        """The tags of the ready jobs of a queue, each once, by name: what a claim may ask for.

        Jobs that have fallen due count. There are none while the queue is paused, or when its
        concurrency or rate lets no job start. Jobs that a limit of their task or throttle holds
        count, too: only a claim finds out. With `among`, only those tags are looked for. The cost
        grows with the tags, not with the jobs.
        """
        ...

    async def keys(self, after: str | None, limit: int) -> list[KeyLine]:
        """The keys that unfinished jobs have, by name, from behind `after` on.

        The cost grows with the keys that are answered, not with the jobs.
        """
        ...

    async def oldest_ready(self, queues: Collection[str] | None = None) -> Mapping[str, datetime]:
        """Since when the job of each queue that is ready for the longest has been due.

        Of these queues, or of all. Jobs that have fallen due count, and those that a pause or a
        limit keeps from starting. A queue without a ready job is left out. The cost grows with
        these queues, their tenants and the limits that hold jobs, not with the jobs.
        """
        ...

    async def backlog(
        self, queue: str | None = None, until: JobId | None = None
    ) -> tuple[int, JobId]:
        """How many jobs of a queue (or of all) with an id up to `until` are unfinished.

        Also the highest such id, or `until` where there is none.
        """
        ...

    async def queues(self, query: QueueQuery = ALL_QUEUES) -> list[Queue]:
        """The queues that have a job or a setting, by name; all, unless the query narrows."""
        ...

    async def overall(self, without: Collection[str] = ()) -> Overall:
        """What all queues have together, but these. The cost grows with the queues."""
        ...

    async def configure(self, settings: QueueSettings) -> Queue:
        """Change what is set in a queue's settings, for every process; the queue as it is now.

        A queue is paused until `paused_until`, or for ever; a pause that has an end does not take
        the place of one that has none.
        """
        ...

    async def remove_queue(self, name: str) -> bool:
        """Lift all settings of a queue, and its pause; whether there was such a queue.

        It goes at once if it has no jobs, else with the last of them. Raises `QueueInUse`, and
        changes nothing, while it has unfinished jobs.
        """
        ...

    async def limit(self, limit: Limit) -> None:
        """Set how many jobs of a task or of each throttle run, for every process; None: any.

        What runs goes on, also beyond a lower limit. The kind "queues" is about how many queues
        there may be: `add`, `configure` and `restore` raise `TooManyQueues` instead of making a
        further one. Those that are there stay; None is the default, `MOST_QUEUES`.
        """
        ...

    async def limits(self) -> list[Limit]:
        """Every limit of a task or of throttles, by kind and name."""
        ...

    async def held(self, job: Job) -> list[Held]:
        """The limits that would keep this job, were it ready, from starting now."""
        ...

    async def log(
        self, job_id: JobId | None = None, *, after: LogId | None = None, limit: int = 1000
    ) -> list[LogEntry]:
        """The audit, oldest first: of one job or of all, behind `after`."""
        ...

    async def newest_log(self) -> LogId:
        """The id of the newest entry; 0 before the first."""

    async def histories(self, ids: Sequence[JobId]) -> list[Record]:
        """These jobs, each with its whole log and its open edges, as they were at one moment.

        In this order; unknown ids are left out.
        """
        ...

    async def delete(self, jobs: Sequence[Job]) -> list[JobId]:
        """Remove those of these jobs that are finished and still have this version.

        Their log goes with them, their ids are never given again. Returns the ids of those that
        went. From a store whose jobs have left (see `seal`), unfinished ones go as well.
        """
        ...

    async def origin(self) -> Origin:
        """Which store this is: a number of its own, for ever, and the ids it has come to."""
        ...

    async def restore(
        self,
        records: Sequence[Record],
        *,
        origin: Origin,
        actor: str,
        notes: Mapping[JobId, Notes] | None = None,
    ) -> list[Job | None]:
        """Take over jobs of another store, or of this one, that are pending or finished.

        Returns each as it is stored now, or None for a job that was taken over from the same
        source before, however long ago, or is still here, or is unfinished while another job
        holds its dedupe key.

        A job keeps its id if that is higher than any given here; else it gets the next. Its log
        comes along under new ids, in its order, and one entry `restored` is added. All of them,
        and so all tokens from now on, are higher than `origin.last_log`; ids of jobs given after
        this call are higher than `origin.last_job`. A parent is kept if it was taken over too.
        Limits of queues do not count. Pending jobs of a key line up behind those that are there.

        What a job waits for is what was taken over, before it or with it; what was not counts as
        resolved. One that waits for a job which has failed here
        meanwhile meets `lifecycle.abandon`.

        `notes` are what the jobs have said, by their ids in the other store; they are kept with
        those that are taken over.
        """
        ...

    async def places(self, source: int, ids: Sequence[JobId]) -> Mapping[JobId, JobId]:
        """The ids here of jobs that were taken over, by those in the store with that number.

        Those that were not are left out; those that were removed here since are not.
        """
        ...

    async def seal(self, seal: Seal | None, *, was: Seal | None) -> bool:
        """Seal the store for every process, or open it for None, if its seal still is `was`.

        Returns whether it was. Into a sealed store no job comes, none starts there, and none
        moves: `add`, `claim`, `transition` and `fire` raise `StoreMoved`, or `StoreUnavailable`
        while jobs are arriving. If they leave or have left, what would stay behind is refused as
        well: `restore`, `configure`, `limit` with a number, `put_schedule` and `add_token`. All
        else goes on. No write that was under way is left when this returns.
        """
        ...

    async def sealed(self) -> Seal | None:
        """The seal of the store; None while it is open."""
        ...

    async def note(self, notes: Sequence[Note]) -> list[bool]:
        """Keep what running jobs say about themselves, if it comes from who holds their lease.

        For each note, whether its lease is held; what a stale one says is not kept at all. A
        job keeps its newest progress, its newest checkpoint and its newest `LINES_KEPT` lines.
        A reset takes progress and checkpoint away; nothing is a transition, and nobody is woken.
        """
        ...

    async def progress(self, ids: Sequence[JobId]) -> Mapping[JobId, Progress]:
        """How far these jobs are; those that never said it are left out."""
        ...

    async def checkpoint(self, job_id: JobId) -> str | None:
        """The newest checkpoint of a job, as JSON text, unless the job is done."""
        ...

    async def notes(self, ids: Sequence[JobId]) -> Mapping[JobId, Notes]:
        """All that these jobs have said, as far as it is kept; silent ones are left out."""
        ...

    async def lines(self, job_id: JobId, *, after: int = 0, limit: int = 1000) -> list[Line]:
        """The lines that a job has logged and still keeps, oldest first, behind `after`."""
        ...

    async def prune(self, retention: Retention, limit: int, *, whole_days: bool = False) -> int:
        """Remove at most `limit` finished jobs past their time; how many went.

        Their log and their notes go with them. With `whole_days`, a store that keeps finished
        jobs by the day removes whole days only, however many jobs they have: up to a day later,
        but at no cost per job.
        """
        ...

    async def digest(self, limit: int) -> int:
        """Count the log entries behind those that were counted, at most `limit`, into the sums.

        Returns how many it has passed; 0 when there are no more, or when another call counted
        them meanwhile. The sums and the place in the log up to which they reach are written
        together: no entry is counted twice, and none is left out. The counting itself keeps no
        writer waiting. Entries of jobs that were removed before are not counted, because
        they went with their jobs; entries that came along with an imported job are not either.

        Entries have to be passed in the order in which they become visible. A store whose
        transactions can commit in another order than they take their log ids must not pass an
        entry while an older one may still appear: it stops before the first entry of the oldest
        transaction that is under way.

        Also removes some of what `history` keeps no longer.
        """
        ...

    async def history(
        self,
        since: datetime,
        until: datetime | None,
        queue: str | Collection[str] | None,
        step: timedelta,
    ) -> list[Interval]:
        """What has happened per queue and `step`, of the minutes that begin in this time.

        Of this queue, of each of several, or of every queue; `TOGETHER` asks for all queues in one
        sum, which is kept: its cost does not grow with them.

        By time and queue; an interval in which nothing happened is left out. Steps are whole
        minutes, counted from 1970. Minutes are kept for `penstock.core.history.KEPT`.
        """
        ...

    async def counters(self) -> list[Counters]:
        """What has happened in each queue, for ever; by the queue's name.

        Only so many queues have counters of their own, see `series`. What happens in the others
        is counted under `TOGETHER`. No number ever falls: a queue that gets counters of its own
        begins at zero, what was counted for it before stays with the others, and so does what the
        others counted for a queue that was removed. Own counters go with their queue.
        """
        ...

    async def series(self, limit: int | None = None) -> list[str]:
        """The queues that have counters of their own, by name.

        Queues without get theirs first, while there is room, and keep them until the queue is
        removed. `limit` sets how many queues may have their own, for every process; those
        that have them keep them. A queue called `OTHER_QUEUES` never gets any.
        """
        ...

    async def wait(self, seen: int, timeout: float) -> int:
        """Return when the store has changed since `seen`, or a scheduled job falls due.

        Or when a rate that holds ready jobs lets the next one start.

        Also after `timeout` seconds. The answer is the next `seen`. Changes made by other
        processes count.
        """
        ...

    async def schedules(self, names: Collection[str] | None = None) -> list[Schedule]:
        """The schedules with these names, or all; by name. Unknown names are left out."""
        ...

    async def put_schedule(self, schedule: Schedule) -> Schedule | None:
        """Write a schedule while the stored one still has its version, or while there is none.

        A schedule that is not stored has version 0. Returns it as it is now, with the next
        version, or None where another write came first. A version is never given twice under
        the same name.
        """
        ...

    async def drop_schedule(self, name: str) -> bool:
        """Remove a schedule; whether there was one. Jobs that it has enqueued stay."""
        ...

    async def due(self, tasks: Collection[str], declared: Collection[str], limit: int) -> Due:
        """The schedules whose next run has come, longest due first, and when the next one comes.

        Only those of these tasks; of the ones that are declared in code, only those with these
        names. A paused schedule is never due.
        """
        ...

    async def fire(self, firing: Firing, *, actor: str) -> list[Job] | None:
        """Add the jobs of a schedule that is due, as `add` does, and set its next run.

        All of it or nothing: None where the schedule has another version meanwhile, is gone, or
        is not due by the store's clock. So each run happens once, whoever else tries. The log
        says which schedule enqueued each job. Raises `QueueFull`; the schedule then stays due.
        """
        ...

    async def tokens(self) -> list[Token]:
        """Every access token, by name."""
        ...

    async def add_token(self, token: Token) -> bool:
        """Store an access token; False, and nothing changes, if its name is taken.

        `wait` returns in every process when a token comes or goes.
        """
        ...

    async def drop_token(self, name: str) -> bool:
        """Remove an access token; whether there was one."""
        ...

    async def greet(self, workers: Sequence[WorkerInfo]) -> list[str]:
        """Keep what these workers say of themselves, each under its name, as seen now.

        What an earlier greeting said is replaced. Nobody is woken. Returns the names of those
        that were asked to drain.
        """
        ...

    async def drain(self, name: str) -> bool:
        """Ask a worker to take no more jobs, and to end with those that it has.

        It hears of it with its next greeting. Returns whether it has greeted and was not
        dismissed.
        """
        ...

    async def size(self) -> StoreSize:
        """How much room the store takes; the cost does not grow with the number of jobs."""
        ...

    async def dismiss(self, names: Sequence[str]) -> None:
        """Forget the greetings of these workers; unknown names are left out. Nobody is woken."""
        ...

    async def workers(self) -> list[WorkerInfo]:
        """Every worker that greeted and was not dismissed, or that holds a lease; by name.

        Each with the leases that it holds now, past their deadlines or not. A claim or a renewal
        counts as being seen.
        """
        ...

    async def mirror(self, mirror: Mirror) -> None:
        """Let rows of an application follow the jobs of a queue; see `Mirror`.

        It lasts until another of the same name takes its place, for every process and program.
        Raises `ConfigurationError` where there is no database.
        """
        ...

    async def close(self) -> None:
        """Let go of files and threads; what was acknowledged stays."""
        ...
