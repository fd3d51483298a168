"""Moves everything in one store to another: jobs with all that belongs to them, and settings.

First both stores are locked, so that no job arrives, starts or changes in either. Then everything
is written to the target, in portions of one transaction each. At the end the source is marked as
left, and only then is the target unlocked. An interrupted move continues where it stopped: the
target knows which jobs it has imported, and everything else may be written twice.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec
from msgspec.structs import asdict, replace

from penstock.core.errors import ConfigurationError, MigrationRefused, StoreError, StoreMoved
from penstock.core.job import JobId
from penstock.core.migration_lock import MigrationLock, MigrationPhase
from penstock.core.query import JobQuery
from penstock.core.queue import QueueSettings
from penstock.core.redaction import redacted
from penstock.core.restoration import Origin, Record
from penstock.core.store import Store
from penstock.core.times import from_micros
from penstock.core.workers import WorkerInfo
from penstock.engine.archive import revived
from penstock.engine.bulk import PORTION
from penstock.engine.penstock import Penstock

_IDS_AT_ONCE = 100_000
_NAMED = 5
"""How many workers a refusal names."""


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to move, and how many of the jobs were moved."""

    jobs: int = 0
    moved: int = 0
    queues: int = 0
    limits: int = 0
    schedules: int = 0
    tokens: int = 0


Progress = Callable[[Moved], object]
"""Called after every portion with the result so far, including that of earlier calls."""


async def survey(source: Penstock, target: Penstock | None) -> Moved:
    """Count what `migrate` would move, and raise its errors; None for a target to be created."""
    if target is not None:
        await (await _Move.between(source, target)).check()
    return await _counted(source.store)


async def migrate(source: Penstock, target: Penstock, *, progress: Progress | None = None) -> Moved:
    """Move everything in one store to another, and return how many jobs this call has moved.

    Raises `MigrationRefused`, and moves nothing, while workers are active on the source, or if the
    target has unfinished jobs of its own. Jobs whose leases have expired are taken back first. If a
    call is interrupted, the same call does the rest.
    """
    move = await _Move.between(source, target)
    try:
        await move.check()
        moved = await _counted(source.store)
        if not move.is_over:
            await move.begin()
            moved = await move.take_jobs(progress or (lambda _: None))
            await move.take_settings()
    except MigrationRefused:
        await move.give_up()
        raise
    await move.finish()
    return moved


class _End:
    """One of the two stores, with its migration lock as far as this call knows."""

    def __init__(self, app: Penstock, origin: Origin, lock: MigrationLock | None) -> None:
        self.app = app
        self.store = app.store
        self.number = origin.source
        self.place = redacted(app.url)
        self.lock = lock

    @classmethod
    async def of(cls, app: Penstock) -> "_End":
        """Return the store of an app, as it is now."""
        return cls(app, await app.store.origin(), await app.store.migration_lock())

    @property
    def phase(self) -> MigrationPhase | None:
        """What happens to its jobs; None while it is unlocked."""
        return None if self.lock is None else self.lock.phase

    async def put(self, phase: MigrationPhase | None, other: "_End") -> None:
        """Change its lock, unless somebody else has."""
        lock = None
        if phase is not None:
            lock = MigrationLock(phase=phase, peer=other.number, place=other.place)
        if not await self.store.set_migration_lock(lock, expected=self.lock):
            raise _overtaken(self)
        self.lock = lock


class _Move:
    """One move between two stores, which begins or continues."""

    def __init__(self, source: _End, target: _End) -> None:
        self._source, self._target = source, target

    @classmethod
    async def between(cls, source: Penstock, target: Penstock) -> "_Move":
        """Return the move from one store to the other."""
        ends = (await _End.of(source), await _End.of(target))
        if ends[0].number == ends[1].number:
            raise ConfigurationError(
                f"{ends[0].place} and {ends[1].place} are the same store, or copies of it; name "
                "another"
            )
        return cls(*ends)

    @property
    def is_over(self) -> bool:
        """Whether everything was moved before."""
        return self._source.phase is MigrationPhase.LEFT

    async def check(self) -> None:
        """Raise an error if the move can neither begin nor continue now; changes nothing."""
        self._check_locks()
        if self._source.lock is None:
            await self._check_workers()
        if not self.is_over and self._target.lock is None:
            await self._check_target()
            await self._check_tokens()

    def _check_locks(self) -> None:
        source, target = self._source, self._target
        for one, other, phase in (
            (source, target, MigrationPhase.LEAVING),
            (target, source, MigrationPhase.ARRIVING),
        ):
            lock = one.lock
            if lock is None or lock.phase is MigrationPhase.LEFT:
                continue
            if lock.phase is not phase or lock.peer != other.number:
                raise MigrationRefused(
                    f"a migration between {one.place} and {lock.place} is unfinished; finish it "
                    "first, by running the same 'penstock migrate' again"
                )
        if self.is_over and source.lock is not None and source.lock.peer != target.number:
            raise MigrationRefused(
                f"the jobs of {source.place} have already moved to {source.lock.place}; migrate "
                "from there"
            )

    async def begin(self) -> None:
        """Lock both stores: from now on only this move changes them."""
        source, target = self._source, self._target
        begins, returns = source.lock is None, target.phase is MigrationPhase.LEFT
        if begins:
            await self._take_back()
        if target.lock is None:
            await target.put(MigrationPhase.ARRIVING, source)
            try:
                await self._check_target()  # again: jobs may have arrived since the first check
            except MigrationRefused:
                await target.put(None, source)
                raise
        if begins:
            if not returns:
                await self._check_target()
            await source.put(MigrationPhase.LEAVING, target)
            try:
                await self._check_locked()
            except MigrationRefused:
                await source.put(None, target)
                raise
        if returns:  # only now: another move may have begun, and what it brought must stay
            await _clear(target)
            await target.put(MigrationPhase.ARRIVING, source)

    async def _take_back(self) -> None:
        """End the leases of the source that have expired."""
        try:
            while await self._source.app.leases.reclaim():
                pass
        except StoreMoved as error:
            raise _overtaken(self._source) from error

    async def give_up(self) -> None:
        """Unlock a target that was locked for a move which cannot begin, or which is over.

        Not one that has imported jobs: the source may be an old copy of what was moved.
        """
        here = self._target.lock
        if here is None or here.phase is not MigrationPhase.ARRIVING:
            return
        if here.peer != self._source.number or self._source.lock is not None:
            return
        there = await self._source.store.migration_lock()
        if there is None:
            unfinished, _ = await self._target.store.backlog()
            needed = bool(unfinished)
        else:
            over = there.phase is MigrationPhase.LEFT and there.peer == self._target.number
            needed = not over
        if not needed:
            await self._target.store.set_migration_lock(None, expected=here)

    async def take_jobs(self, progress: Progress) -> Moved:
        """Move the jobs that were not moved yet, in the order of their ids."""
        counted = await _counted(self._source.store)
        ids = await self._still_to_come()
        whole = await self._source.store.origin()
        # Ids of jobs are raised only after the last portion, or no job could keep its own.
        origin = replace(whole, last_job=JobId(0))
        start = 0
        while start < len(ids):
            records, start = await self._portion(ids, start)
            await self._take(records, origin)
            progress(replace(counted, moved=counted.jobs - len(ids) + start))
        await self._target.store.restore([], origin=whole, actor=self._target.app.connection.actor)
        return replace(counted, moved=len(ids))

    async def take_settings(self) -> None:
        """Copy the settings of the source; they replace those of the target with the same names."""
        source, target = self._source.store, self._target.store
        for queue in await source.queues():
            await target.configure(QueueSettings(**asdict(queue)))
        for limit in await source.limits():
            await target.limit(limit)
        for token in await source.tokens():
            await target.add_token(token)
        versions = {schedule.name: schedule.version for schedule in await target.schedules()}
        for schedule in await source.schedules():
            last = schedule.last_job
            if last is not None:
                last = (await target.restored_ids(self._source.number, [last])).get(last)
            version = versions.get(schedule.name, 0)
            await target.put_schedule(replace(schedule, version=version, last_job=last))

    async def finish(self) -> None:
        """Mark the source as left, and only then unlock the target."""
        if not self.is_over:
            await self._source.put(MigrationPhase.LEFT, self._target)
        if self._target.phase is MigrationPhase.ARRIVING:
            await self._target.put(None, self._source)

    async def _still_to_come(self) -> "array[int]":
        found: array[int] = array("q")
        page = JobQuery(newest_first=False, limit=_IDS_AT_ONCE)
        while ids := await self._source.store.find_ids(page):
            here = await self._target.store.restored_ids(self._source.number, ids)
            found.extend(job_id for job_id in ids if job_id not in here)
            page = replace(page, after=ids[-1])
        return found

    async def _portion(self, ids: Sequence[int], start: int) -> tuple[list[Record], int]:
        """Return the next jobs, up to the last that one depends on, and where the rest begins."""
        records: list[Record] = []
        end = min(start + PORTION, len(ids))
        while start < end:
            more = await self._source.store.records([JobId(one) for one in ids[start:end]])
            records += more
            awaited = max((edge.needed for one in more for edge in one.edges), default=0)
            start, end = end, max(end, bisect_right(ids, awaited))
        return records, end

    async def _take(self, records: Sequence[Record], origin: Origin) -> None:
        now = self._now()
        await self._target.store.restore(
            [revived(record, now) for record in records],
            origin=origin,
            actor=self._target.app.connection.actor,
            reported=await self._source.store.reported([record.job.id for record in records]),
        )

    def _now(self) -> datetime:
        return from_micros(self._source.app.clock())

    async def _check_workers(self) -> None:
        now = self._now()
        found = [one for one in await self._source.store.workers() if _is_active(one, now)]
        if found:
            raise self._busy(found)

    async def _check_locked(self) -> None:
        """Raise an error if a job was claimed just before, or if the target was unlocked since."""
        found = [one for one in await self._source.store.workers() if one.running]
        if found:
            raise self._busy(found)
        if await self._target.store.migration_lock() != self._target.lock:
            raise _overtaken(self._target)

    def _busy(self, workers: Sequence[WorkerInfo]) -> MigrationRefused:
        now = self._now()
        named = [_described(one, now) for one in workers[:_NAMED]]
        if len(workers) > _NAMED:
            named.append(f"and {len(workers) - _NAMED} more")
        return MigrationRefused(
            f"workers are active on {self._source.place}: {', '.join(named)}; stop them first, "
            "nothing was moved"
        )

    async def _check_target(self) -> None:
        unfinished, _ = await self._target.store.backlog()
        if unfinished:
            raise MigrationRefused(
                f"{self._target.place} has {unfinished} unfinished jobs of its own; let them end "
                "first, or move to another store"
            )

    async def _check_tokens(self) -> None:
        secrets = {token.name: token.digest for token in await self._target.store.tokens()}
        for token in await self._source.store.tokens():
            if secrets.get(token.name, token.digest) != token.digest:
                raise MigrationRefused(
                    f"both stores have an access token named {token.name!r}, with different "
                    "secrets; revoke one of them first"
                )


def _overtaken(end: _End) -> MigrationRefused:
    return MigrationRefused(
        f"another 'penstock migrate' has begun or ended on {end.place}; try again"
    )


async def _counted(store: Store) -> Moved:
    return Moved(
        jobs=sum((await store.count()).values()),
        queues=len(await store.queues()),
        limits=sum(one.kind != "reserved" for one in await store.limits()),
        schedules=len(await store.schedules()),
        tokens=len(await store.tokens()),
    )


async def _clear(end: _End) -> None:
    """Empty a store whose jobs have left: it holds copies of what comes back."""
    store = end.store
    while jobs := await store.find(JobQuery(limit=PORTION)):
        if await store.migration_lock() != end.lock:
            raise _overtaken(end)
        if not await store.delete(jobs):
            raise StoreError("jobs that have moved elsewhere could not be removed; try again")
    for schedule in await store.schedules():
        await store.drop_schedule(schedule.name)
    for token in await store.tokens():
        await store.drop_token(token.name)
    for limit in await store.limits():
        await store.limit(replace(limit, concurrency=None))


def _is_active(worker: WorkerInfo, now: datetime) -> bool:
    """Return whether a worker holds a lease or is probably alive; one may never have registered."""
    holds = worker.expires_at is not None and worker.expires_at > now
    return holds or (worker.host is not None and not worker.is_silent(now))


def _described(worker: WorkerInfo, now: datetime) -> str:
    where = f" ({worker.host}, pid {worker.pid})" if worker.host is not None else ""
    if worker.running and worker.expires_at is not None:
        jobs = "1 job" if worker.running == 1 else f"{worker.running} jobs"
        return f"{worker.name}{where} holds {jobs} until {worker.expires_at:%Y-%m-%d %H:%M:%S} UTC"
    seconds = max(0, round((now - worker.seen_at).total_seconds()))
    return f"{worker.name}{where} was heard of {seconds} s ago"
