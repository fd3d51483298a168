"""Work on many jobs at once: by filter, in portions, while everything else goes on."""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from penstock import archive as files
from penstock.checks import check_limit, check_priority
from penstock.core import lifecycle
from penstock.core.errors import ConfigurationError, TransitionRefused
from penstock.core.job import (
    Change,
    Job,
    JobId,
    JobQuery,
    QueueQuery,
    Record,
    Retention,
    asked,
    fits,
    restored,
)
from penstock.core.lifecycle import FINAL, UNFINISHED, Move, State
from penstock.core.store import Store
from penstock.core.times import from_micros
from penstock.inventory import Inventory
from penstock.opening import Opened, admit

T = TypeVar("T")
PathLike = str | os.PathLike[str]

PORTION = 300
"""Jobs in one transaction: other writers get their turn in between."""

# Few pages, because the database may have to sort all that fits for each: by 10,000, retrying a
# million took six times as long as cancelling them.
_IDS_AT_ONCE = 100_000
# A move is decided anew this often when others keep changing the job, before it is skipped.
_DECISIONS = 10
_RETRIED = frozenset({State.FAILED, State.CANCELLED, State.PENDING})

_log = logging.getLogger(__name__)


class Bulk(msgspec.Struct, frozen=True, kw_only=True):
    """What a call for many jobs came to: how many fitted, changed, and did not after all.

    `after` is where the next `Portion` goes on; None where the call has come to the end.
    """

    matched: int = 0
    changed: int = 0
    skipped: int = 0
    after: JobId | None = None


class Trail(msgspec.Struct):
    """Jobs that a portion has found ahead of it, which the next need not look for again.

    The database may have to sort all that fits for each look: without it, retrying 200,000 jobs in
    131 portions took 94 s instead of 12 s. Every job is looked at again before it is changed.
    """

    after: int | None = None
    ids: list[JobId] = []
    over: bool = False


class Portion(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a call for many jobs, for callers that show progress or may stop in between.

    At most `limit` of the jobs that fit, behind the one that the `after` of the last `Bulk` names.
    Jobs with an id above `up_to` are left alone: they came after the first portion. Portions of the
    same call share a `trail`.
    """

    limit: int
    after: int | None = None
    up_to: int | None = None
    trail: Trail | None = None


Progress = Callable[[Bulk], object]
"""Called after every portion with what has been done so far."""


class Administration(Opened):
    """The part of `Penstock` that works on many jobs at once.

    How a query is paged (`after`, `newest_first`, `limit`) does not count here. A call works in
    portions, each a transaction: if it is interrupted, what it has done stays done, and the same
    call does the rest. Jobs that come while it works are left alone. With a `Portion`, a call does
    a part of the work, and says where the next one goes on.
    """

    async def count_matching(self, query: JobQuery) -> int:
        """How many jobs fit a query."""
        _check_query(query)
        if not self._is_guarded(query):
            return sum((await self.store.tally(query)).values())
        walk, found = await self._walk(query), 0
        while ids := await walk.portion():
            found += len(ids)
        return found

    def _is_guarded(self, query: JobQuery) -> bool:
        """Whether the store may find what nobody may search for: see `Secrets`."""
        return query.text is not None and self.secrets.hides

    async def _walk(
        self, query: JobQuery, portion: Portion | None = None, *, newest_first: bool = False
    ) -> "_Walk":
        walk = await _Walk.over(self.store, query, portion, newest_first=newest_first)
        if self._is_guarded(query):
            walk.finds = partial(self.secrets.lets_find, query=query)
        return walk

    async def cancel_all(
        self,
        query: JobQuery,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
        portion: Portion | None = None,
    ) -> Bulk:
        """End the pending jobs that fit, and ask the running ones to stop; newest first.

        `dry_run` only counts.
        """
        query = _about(query, UNFINISHED, UNFINISHED, "cancel_all", "pending and running")

        def decide(job: Job) -> Move:
            if job.cancel_requested:
                raise TransitionRefused(f"job {job.id} was asked to stop already")
            return lifecycle.cancel(job, reason)

        # From the end: of a key, none becomes visible that is about to be cancelled.
        return await self._move_all(
            query, decide, progress, portion, dry_run=dry_run, newest_first=True
        )

    async def retry_all(
        self,
        query: JobQuery,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
        portion: Portion | None = None,
    ) -> Bulk:
        """Run the jobs that fit again, with all their attempts: the failed ones, oldest first.

        Cancelled ones and those that wait for their time only if the query's `states` name them.
        A job whose dedupe key is held by another is skipped. `dry_run` only counts.
        """
        query = _about(
            query,
            _RETRIED,
            frozenset({State.FAILED}),
            "retry_all",
            "failed, cancelled and pending",
        )

        def decide(job: Job) -> Move:
            return lifecycle.reset(job, reason)

        return await self._move_all(query, decide, progress, portion, dry_run=dry_run)

    async def reprioritise(
        self,
        query: JobQuery,
        priority: int,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
        portion: Portion | None = None,
    ) -> Bulk:
        """Give the pending jobs that fit another priority; claims follow it at once.

        Those that have it already are skipped. `dry_run` only counts.
        """
        check_priority(priority)
        pending = frozenset({State.PENDING})
        query = _about(query, pending, pending, "reprioritise", "pending")

        def decide(job: Job) -> Move:
            if job.priority == priority:
                raise TransitionRefused(f"job {job.id} has priority {priority} already")
            return lifecycle.reprioritise(job, priority, reason)

        return await self._move_all(query, decide, progress, portion, dry_run=dry_run)

    async def delete_all(
        self,
        query: JobQuery,
        *,
        archive: PathLike | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
        portion: Portion | None = None,
    ) -> Bulk:
        """Remove the finished jobs that fit, with their log; first to a file, if one is named.

        Unfinished jobs are never removed: cancel them first. `dry_run` only counts.
        """
        query = _about(query, FINAL, FINAL, "delete_all", "finished", strict=True)
        return await self._remove([query], archive, progress, portion, dry_run=dry_run)

    async def prune(
        self,
        retention: Retention | None = None,
        *,
        states: Iterable[State] = FINAL,
        archive: PathLike | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Bulk:
        """Remove finished jobs past their time, with their log; first to a file, if one is named.

        A job is on disk in the archive before it is removed, so that a crash loses none; it may
        then stand in the archive twice, where the last counts. `dry_run` only counts.
        """
        retention = retention or Retention()
        now = from_micros(self.clock())
        queries = [
            _about(
                JobQuery(states=frozenset({state}), before=_before(now, retention, state)),
                FINAL,
                FINAL,
                "prune",
                "finished",
            )
            for state in sorted(set(states))
        ]
        return await self._remove(queries, archive, progress, dry_run=dry_run)

    async def export(
        self,
        path: PathLike,
        query: JobQuery | None = None,
        *,
        progress: Progress | None = None,
    ) -> Bulk:
        """Write the jobs that fit into a new file, with their logs and the settings of queues.

        In whatever state, oldest first. Every job is written as it was at one moment, but not
        all of them at the same one. The file appears when it is whole.
        """
        query = query or JobQuery()
        _check_query(query)
        export = await _aside(files.Export, path, await self._header("export"))
        try:
            named = None if query.queue is None else (query.queue,)
            queues = await self.store.queues(QueueQuery(names=named))
            await _aside(export.write, [files.QueueLine(queue=queue) for queue in queues])
            done = Bulk()
            walk = await self._walk(query)
            while ids := await walk.portion():
                records = await self.store.histories(ids)
                lines = [
                    files.JobLine(job=record.job, log=record.log, edges=record.edges)
                    for record in records
                    if fits(record.job, query)
                ]
                await _aside(export.write, lines)
                done = _add(done, len(ids), len(lines), progress)
            end = await self.store.origin()
            last = files.End(jobs=done.changed, last_job=end.last_job, last_log=end.last_log)
            await _aside(export.write, [last])
        except BaseException as error:
            export.close(error)
            raise
        await _aside(export.close)
        return done

    async def import_jobs(
        self, path: PathLike, *, dry_run: bool = False, progress: Progress | None = None
    ) -> Bulk:
        """Take over the jobs of an export or an archive, with their logs.

        The whole file is checked before the first job is stored. Jobs that were imported before,
        or are still here, are skipped; so are unfinished ones whose dedupe key is held by
        another. Pending jobs wait in the order they had, and for the jobs they waited for, as far
        as those came along; running ones wait for a worker again.
        Settings of queues count for queues that are not known yet. `dry_run` only counts what is
        in the file.
        """
        inventory = await _aside(Inventory.of, path)
        if dry_run:
            return Bulk(matched=inventory.jobs)
        known = {queue.name for queue in await self.store.queues()}
        for queue in inventory.queues:
            if queue.name not in known:
                await self.store.configure(queue)
        done = Bulk()
        with closing(inventory.portions(PORTION)) as portions:
            while (portion := await _aside(next, portions, None)) is not None:
                origin, records = portion
                admit([asked(record.job) for record in records])
                now = from_micros(self.clock())
                answers = await self.store.restore(
                    [revived(record, now) for record in records], origin=origin, actor=self.actor
                )
                taken = sum(answer is not None for answer in answers)
                done = _add(done, len(records), taken, progress)
        for origin in inventory.origins:
            await self.store.restore([], origin=origin, actor=self.actor)
        return done

    async def _move_all(
        self,
        query: JobQuery,
        decide: Callable[[Job], Move],
        progress: Progress | None,
        portion: Portion | None,
        *,
        dry_run: bool,
        newest_first: bool = False,
    ) -> Bulk:
        if dry_run:
            return Bulk(matched=await self.count_matching(query))
        done = Bulk()
        walk = await self._walk(query, portion, newest_first=newest_first)
        while ids := await walk.portion():
            done = _add(done, len(ids), await self._move(ids, query, decide), progress)
        return walk.end(done, portion)

    async def _move(
        self, ids: Sequence[JobId], query: JobQuery, decide: Callable[[Job], Move]
    ) -> int:
        """Move these jobs; one that changed meanwhile is decided anew, if it still fits."""
        changed = 0
        for _ in range(_DECISIONS):
            jobs = [job for job in await self.store.get(ids) if fits(job, query)]
            changes = list(_decided(jobs, decide))
            if not changes:
                break
            answers = await self._transition(changes)
            changed += sum(isinstance(answer, Job) for answer in answers)
            ids = [
                change.job.id
                for change, answer in zip(changes, answers, strict=True)
                if answer is None
            ]
        return changed

    async def _transition(self, changes: Sequence[Change]) -> list[Job | TransitionRefused | None]:
        """As the store's; one that is refused does not keep the others from moving."""
        try:
            return [*await self.store.transition(changes, actor=self.actor)]
        except TransitionRefused as error:
            if len(changes) == 1:
                return [error]
            half = len(changes) // 2
            return [
                *await self._transition(changes[:half]),
                *await self._transition(changes[half:]),
            ]

    async def _remove(
        self,
        queries: Sequence[JobQuery],
        archive: PathLike | None,
        progress: Progress | None,
        portion: Portion | None = None,
        *,
        dry_run: bool,
    ) -> Bulk:
        if dry_run:
            return Bulk(matched=sum([await self.count_matching(query) for query in queries]))
        done = Bulk()
        file = None if archive is None else files.Archive(archive, await self._header("archive"))
        try:
            for query in queries:
                walk = await self._walk(query, portion)
                while ids := await walk.portion():
                    gone = await self._remove_portion(ids, query, file)
                    done = _add(done, len(ids), gone, progress)
                done = walk.end(done, portion)
        finally:
            if file is not None:
                file.close()
            if done.changed:
                _log.info("%s removed %d finished jobs", self.actor, done.changed)
        return done

    async def _remove_portion(
        self, ids: Sequence[JobId], query: JobQuery, file: files.Archive | None
    ) -> int:
        if file is None:
            jobs = [job for job in await self.store.get(ids) if fits(job, query)]
            return len(await self.store.delete(jobs))
        found = await self.store.histories(ids)
        records = [record for record in found if fits(record.job, query)]
        await _aside(file.write, records)
        # One that has changed since it was written stays, and is written again when it goes.
        return len(await self.store.delete([record.job for record in records]))

    async def _header(self, kind: files.Kind) -> files.Header:
        origin = await self.store.origin()
        return files.Header(kind=kind, source=origin.source, at=from_micros(self.clock()))


class _Walk:
    """Walks the jobs that fit, by id, up to the newest that there was in the beginning."""

    def __init__(self, store: Store, page: JobQuery, last: int, left: int | None = None) -> None:
        self._store = store
        self._page = page
        self._last = last
        self._left = left  # of a portion; None without a limit
        self._ids: list[JobId] = []
        self._over = False
        self._seen: JobId | None = None
        self.finds: Callable[[Job], bool] | None = None
        """Decides about what the store has found, where that is not enough."""

    @classmethod
    async def over(
        cls,
        store: Store,
        query: JobQuery,
        portion: Portion | None = None,
        *,
        newest_first: bool = False,
    ) -> "_Walk":
        """A walk over all jobs that fit a query now, or over a portion of them."""
        last: int = (await store.origin()).last_job
        page = replace(query, newest_first=newest_first, after=None, limit=_IDS_AT_ONCE)
        if portion is None:
            return cls(store, page, last)
        check_limit(portion.limit)
        if portion.up_to is not None:
            last = min(last, portion.up_to)
        after = portion.after
        if newest_first and after is None:
            after = last + 1  # not through what came since
        trail = portion.trail
        limit = _IDS_AT_ONCE if trail else min(portion.limit, _IDS_AT_ONCE)
        page = replace(page, after=None if after is None else JobId(after), limit=limit)
        walk = cls(store, page, last, portion.limit)
        if trail and trail.after is not None and trail.after == portion.after:
            walk._follow(trail)
        return walk

    def _follow(self, trail: Trail) -> None:
        self._ids, self._over = trail.ids, trail.over
        if self._ids:
            self._page = replace(self._page, after=self._ids[-1])

    async def portion(self) -> list[JobId]:
        """The next ones; none at the end."""
        while portion := await self._next():
            self._seen = portion[-1]
            if self.finds is None:
                return portion
            kept = [job.id for job in await self._store.get(portion) if self.finds(job)]
            if kept:
                return kept
        return []

    async def _next(self) -> list[JobId]:
        while self._left != 0 and not self._ids and not self._over:
            found = await self._store.find_ids(self._page)
            self._over = len(found) < self._page.limit
            if found:
                self._page = replace(self._page, after=found[-1])
            self._ids = [place for place in found if place <= self._last]
        size = PORTION if self._left is None else min(PORTION, self._left)
        portion, self._ids = self._ids[:size], self._ids[size:]
        if self._left is not None:
            self._left -= len(portion)
        return portion

    def end(self, done: Bulk, portion: Portion | None) -> Bulk:
        """Where the next portion goes on, behind the last job of this one; it gets the trail."""
        if self._left != 0 or (self._over and not self._ids):
            return done
        if portion is not None and portion.trail is not None:
            portion.trail.after = self._seen
            portion.trail.ids, portion.trail.over = self._ids, self._over
        return replace(done, after=self._seen)


def revived(record: Record, now: datetime) -> Record:
    """A job as it comes into another store: one that was running waits for a worker again."""
    job = record.job
    return Record(
        job=restored(job, lifecycle.restore(job), at=now), log=record.log, edges=record.edges
    )


def _about(
    query: JobQuery,
    allowed: frozenset[State],
    unless_named: frozenset[State],
    verb: str,
    words: str,
    *,
    strict: bool = False,
) -> JobQuery:
    """The query for those jobs alone that a verb is about."""
    _check_query(query)
    if query.states is None:
        return replace(query, states=unless_named)
    states = query.states & allowed
    if not states or (strict and states != query.states):
        others = ", ".join(sorted(query.states - allowed)) or "none"
        advice = "; cancel unfinished ones first" if strict else ""
        raise ConfigurationError(f"{verb} is about {words} jobs, not {others}{advice}")
    return replace(query, states=states)


def _check_query(query: object) -> None:
    if not isinstance(query, JobQuery):
        raise ConfigurationError(f"say which jobs by a JobQuery, not {query!r:.80}")


def _before(now: datetime, retention: Retention, state: State) -> datetime:
    try:
        return now - retention.keeps(state)
    except OverflowError:  # kept for longer than there is a calendar
        return datetime.min.replace(tzinfo=UTC)


def _decided(jobs: Iterable[Job], decide: Callable[[Job], Move]) -> Iterator[Change]:
    for job in jobs:
        try:
            yield Change(job, decide(job))
        except TransitionRefused:
            continue


def _add(done: Bulk, matched: int, changed: int, progress: Progress | None) -> Bulk:
    done = Bulk(
        matched=done.matched + matched,
        changed=done.changed + changed,
        skipped=done.skipped + matched - changed,
    )
    if progress is not None:
        progress(done)
    return done


async def _aside(function: Callable[..., T], *arguments: object) -> T:
    """Call what reads or writes files, out of the way of the event loop if there is one."""
    if asyncio._get_running_loop() is None:  # noqa: SLF001 - the public one raises
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)
