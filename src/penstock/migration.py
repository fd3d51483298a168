"""Moves a queue from one store to another: its jobs with all that belongs to them, its settings.

First both stores are sealed, so that no job comes in, starts or changes in either. Then all is
written to the target, in portions that are one transaction each. At the end the source is marked
as left, and only then is the target opened. A move that was interrupted goes on where it was: the
target knows which jobs it has taken over, and all else may be written twice.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec
from msgspec.structs import asdict, replace

from penstock.admin import PORTION, revived
from penstock.core.errors import ConfigurationError, MigrationRefused, StoreError
from penstock.core.job import JobId, JobQuery, Origin, QueueSettings, Record
from penstock.core.redaction import redacted
from penstock.core.seal import Passage, Seal
from penstock.core.store import Store
from penstock.core.times import from_micros
from penstock.core.worker import WorkerInfo
from penstock.engine import Penstock

_IDS_AT_ONCE = 100_000
_NAMED = 5
"""How many workers a refusal names."""


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to move, and how many of the jobs have been moved."""

    jobs: int = 0
    moved: int = 0
    queues: int = 0
    limits: int = 0
    schedules: int = 0
    tokens: int = 0


Progress = Callable[[Moved], object]
"""Called after every portion with what has been done so far, also by an earlier call."""


async def survey(source: Penstock, target: Penstock | None) -> Moved:
    """Count what `migrate` would move, and raise as it would; None for a target yet to come."""
    if target is not None:
        await (await _Move.between(source, target)).check()
    return await _counted(source.store)


async def migrate(source: Penstock, target: Penstock, *, progress: Progress | None = None) -> Moved:
    """Move all that is in one store to another; says how many jobs this call has moved.

    Raises `MigrationRefused`, and nothing has moved, while workers are active on the source, or
    if the target has unfinished jobs of its own. Jobs whose leases are over are taken back first.
    If a call is interrupted, the same call does the rest.
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
    """One of the two stores, with its seal as far as this call knows."""

    def __init__(self, app: Penstock, origin: Origin, seal: Seal | None) -> None:
        self.app = app
        self.store = app.store
        self.number = origin.source
        self.place = redacted(app.url)
        self.seal = seal

    @classmethod
    async def of(cls, app: Penstock) -> "_End":
        """The store of an app, as it is now."""
        return cls(app, await app.store.origin(), await app.store.sealed())

    @property
    def passage(self) -> Passage | None:
        """What becomes of its jobs; None while it is open."""
        return None if self.seal is None else self.seal.passage

    async def put(self, passage: Passage | None, other: "_End") -> None:
        """Change its seal, unless somebody else did."""
        seal = None
        if passage is not None:
            seal = Seal(passage=passage, peer=other.number, place=other.place)
        if not await self.store.seal(seal, was=self.seal):
            raise _overtaken(self)
        self.seal = seal


class _Move:
    """One move between two stores that begins, or goes on."""

    def __init__(self, source: _End, target: _End) -> None:
        self._source, self._target = source, target

    @classmethod
    async def between(cls, source: Penstock, target: Penstock) -> "_Move":
        """The move from one store to the other."""
        ends = (await _End.of(source), await _End.of(target))
        if ends[0].number == ends[1].number:
            raise ConfigurationError(
                f"{ends[0].place} and {ends[1].place} are one store, or copies of one; name another"
            )
        return cls(*ends)

    @property
    def is_over(self) -> bool:
        """Whether all was moved before."""
        return self._source.passage is Passage.LEFT

    async def check(self) -> None:
        """Raise if the move can neither begin nor go on now; changes nothing."""
        self._check_seals()
        if self._source.seal is None:
            await self._check_workers()
        if not self.is_over and self._target.seal is None:
            await self._check_target()
            await self._check_tokens()

    def _check_seals(self) -> None:
        source, target = self._source, self._target
        for one, other, passage in (
            (source, target, Passage.LEAVING),
            (target, source, Passage.ARRIVING),
        ):
            seal = one.seal
            if seal is None or seal.passage is Passage.LEFT:
                continue
            if seal.passage is not passage or seal.peer != other.number:
                raise MigrationRefused(
                    f"jobs are on their way between {one.place} and {seal.place}; run that "
                    "'penstock migrate' again to its end first"
                )
        if self.is_over and source.seal is not None and source.seal.peer != target.number:
            raise MigrationRefused(
                f"the jobs of {source.place} have moved to {source.seal.place} before; move them "
                "from there"
            )

    async def begin(self) -> None:
        """Seal both stores: from then on nothing but this changes anything in them."""
        source, target = self._source, self._target
        begins = source.seal is None
        if begins:
            while await source.app.reclaim():
                pass
        if target.passage is Passage.LEFT:
            await _clear(target.store)
        if target.passage is not Passage.ARRIVING:
            await target.put(Passage.ARRIVING, source)
            try:
                await self._check_target()  # again: what came in since the first look
            except MigrationRefused:
                await target.put(None, source)
                raise
        if begins:
            await self._check_target()
            await source.put(Passage.LEAVING, target)
            try:
                await self._check_sealed()
            except MigrationRefused:
                await source.put(None, target)
                raise

    async def give_up(self) -> None:
        """Open the target again that was sealed for a move which cannot begin.

        Not one that jobs have come to: the source may be an old copy of what has moved.
        """
        here = self._target.seal
        if here is None or here.peer != self._source.number or self._source.seal is not None:
            return
        if here.passage is not Passage.ARRIVING or await self._source.store.sealed() is not None:
            return
        unfinished, _ = await self._target.store.backlog()
        if not unfinished:
            await self._target.store.seal(None, was=here)

    async def take_jobs(self, progress: Progress) -> Moved:
        """Take over the jobs that were not yet, in the order of their ids."""
        counted = await _counted(self._source.store)
        ids = await self._still_to_come()
        whole = await self._source.store.origin()
        # Ids of jobs are only raised behind the last portion, or no job could keep its own.
        origin = replace(whole, last_job=JobId(0))
        start = 0
        while start < len(ids):
            records, start = await self._portion(ids, start)
            await self._take(records, origin)
            progress(replace(counted, moved=counted.jobs - len(ids) + start))
        await self._target.store.restore([], origin=whole, actor=self._target.app.actor)
        return replace(counted, moved=len(ids))

    async def take_settings(self) -> None:
        """Write the settings of the source; what the target has under the same names goes."""
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
                last = (await target.places(self._source.number, [last])).get(last)
            version = versions.get(schedule.name, 0)
            await target.put_schedule(replace(schedule, version=version, last_job=last))

    async def finish(self) -> None:
        """Mark the source as left; only then open the target."""
        if not self.is_over:
            await self._source.put(Passage.LEFT, self._target)
        if self._target.passage is Passage.ARRIVING:
            await self._target.put(None, self._source)

    async def _still_to_come(self) -> "array[int]":
        found: array[int] = array("q")
        page = JobQuery(newest_first=False, limit=_IDS_AT_ONCE)
        while ids := await self._source.store.find_ids(page):
            here = await self._target.store.places(self._source.number, ids)
            found.extend(job_id for job_id in ids if job_id not in here)
            page = replace(page, after=ids[-1])
        return found

    async def _portion(self, ids: Sequence[int], start: int) -> tuple[list[Record], int]:
        """The next jobs, up to the last that one of them waits for, and where the rest begins."""
        records: list[Record] = []
        end = min(start + PORTION, len(ids))
        while start < end:
            more = await self._source.store.histories([JobId(one) for one in ids[start:end]])
            records += more
            awaited = max((edge.needed for one in more for edge in one.edges), default=0)
            start, end = end, max(end, bisect_right(ids, awaited))
        return records, end

    async def _take(self, records: Sequence[Record], origin: Origin) -> None:
        now = self._now()
        await self._target.store.restore(
            [revived(record, now) for record in records],
            origin=origin,
            actor=self._target.app.actor,
            notes=await self._source.store.notes([record.job.id for record in records]),
        )

    def _now(self) -> datetime:
        return from_micros(self._source.app.clock())

    async def _check_workers(self) -> None:
        now = self._now()
        found = [one for one in await self._source.store.workers() if _is_active(one, now)]
        if found:
            raise self._busy(found)

    async def _check_sealed(self) -> None:
        """Raise if a job was claimed just before, or if the target was opened meanwhile."""
        found = [one for one in await self._source.store.workers() if one.running]
        if found:
            raise self._busy(found)
        if await self._target.store.sealed() != self._target.seal:
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
        limits=len(await store.limits()),
        schedules=len(await store.schedules()),
        tokens=len(await store.tokens()),
    )


async def _clear(store: Store) -> None:
    """Empty a store whose jobs have left: what it has are copies of what comes back."""
    while jobs := await store.find(JobQuery(limit=PORTION)):
        if not await store.delete(jobs):
            raise StoreError("jobs that have moved elsewhere could not be removed; try again")
    for schedule in await store.schedules():
        await store.drop_schedule(schedule.name)
    for token in await store.tokens():
        await store.drop_token(token.name)
    for limit in await store.limits():
        await store.limit(replace(limit, concurrency=None))


def _is_active(worker: WorkerInfo, now: datetime) -> bool:
    """Whether it holds a lease, or is alive most likely. One that never greets has its leases."""
    holds = worker.expires_at is not None and worker.expires_at > now
    return holds or (worker.host is not None and not worker.is_silent(now))


def _described(worker: WorkerInfo, now: datetime) -> str:
    where = f" ({worker.host}, pid {worker.pid})" if worker.host is not None else ""
    if worker.running and worker.expires_at is not None:
        jobs = "1 job" if worker.running == 1 else f"{worker.running} jobs"
        return f"{worker.name}{where} holds {jobs} until {worker.expires_at:%Y-%m-%d %H:%M:%S} UTC"
    seconds = max(0, round((now - worker.seen_at).total_seconds()))
    return f"{worker.name}{where} was heard of {seconds} s ago"
