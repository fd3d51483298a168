"""Bulk changes: `Penstock.bulk(query)`, in portions, while everything else continues."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from penstock.core import lifecycle
from penstock.core.errors import ConfigurationError, TransitionRefused
from penstock.core.job import Job, JobId
from penstock.core.lifecycle import FINAL, UNFINISHED, Move, State
from penstock.core.query import JobQuery, Tally, matches
from penstock.core.store import Store
from penstock.core.transition import Change
from penstock.engine.connection import Connection
from penstock.engine.decision import Contended, decide
from penstock.engine.sync_calls import SyncSelection
from penstock.engine.validation import check_limit, check_priority

if TYPE_CHECKING:
    from penstock.engine.archive_file import ArchiveFile

PathLike = str | os.PathLike[str]

PORTION = 300
"""Jobs in one transaction: other writers get their turn in between."""

# Few pages, because the database may have to sort all matches for each: with 10,000, retrying a
# million jobs took six times as long as cancelling them.
_IDS_AT_ONCE = 100_000
_RETRIED = frozenset({State.FAILED, State.CANCELLED, State.PENDING})
_PENDING = frozenset({State.PENDING})

_log = logging.getLogger(__name__)


class Bulk(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a bulk change: how many jobs matched, changed, and were skipped.

    `after` is where the next `Portion` continues; None at the end.
    """

    matched: int = 0
    changed: int = 0
    skipped: int = 0
    after: JobId | None = None


class Trail(msgspec.Struct):
    """Ids that a portion has found beyond its end, which the next need not look for again.

    The database may have to sort all matches for each look: without it, retrying 200,000 jobs in
    131 portions took 94 s instead of 12 s. Every job is read again before it is changed.
    """

    after: int | None = None
    ids: list[JobId] = []
    over: bool = False


class Portion(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a bulk change, for callers that show progress or may stop in between.

    At most `limit` of the jobs that match, after the one that the `after` of the last `Bulk`
    names. Jobs with an id above `up_to` are left alone: they arrived after the first portion.
    Portions of the same change share a `trail`.
    """

    limit: int
    after: int | None = None
    up_to: int | None = None
    trail: Trail | None = None


BulkProgress = Callable[[Bulk], object]
"""Called after every portion with the result so far."""


class Selection:
    """The jobs that match a query, to be counted or changed together.

    How a query is paged (`after`, `newest_first`, `limit`) does not matter here. A call works in
    portions, each a transaction: if it is interrupted, what it has done is kept, and the same call
    does the rest. Jobs that arrive meanwhile are left alone. With `dry_run`, a call only counts.
    With a `Portion`, it does a part of the work and returns where the next one continues.
    """

    def __init__(self, connection: Connection, query: JobQuery) -> None:
        if not isinstance(query, JobQuery):
            raise ConfigurationError(f"select jobs with a JobQuery, not {query!r:.80}")
        self._connection = connection
        self._query = query

    @property
    def sync(self) -> SyncSelection:
        """The same calls from synchronous code, without `await`."""
        return SyncSelection(self)

    async def count(self) -> int:
        """Count the jobs that match."""
        return sum((await self.tally()).values())

    async def tally(self) -> Tally:
        """Count the jobs that match, by state."""
        store, query = self._connection.store, self._query
        if not is_guarded(self._connection, query):
            return await store.tally(query)
        counted: dict[State, int] = {}
        walk = await Walk.over(self._connection, query)
        while ids := await walk.portion():
            for job in await store.get(ids):
                counted[job.state] = counted.get(job.state, 0) + 1
        return counted

    async def cancel(
        self,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
        portion: Portion | None = None,
    ) -> Bulk:
        """End the pending jobs that match, and ask the running ones to stop; newest first."""
        query = narrowed(self._query, UNFINISHED, UNFINISHED, "cancel", "pending and running")

        def rule(job: Job) -> Move:
            if job.cancel_requested:
                raise TransitionRefused(f"job {job.id} was already asked to stop")
            return lifecycle.cancel(job, reason)

        # From the end: no job of a key becomes ready that is about to be cancelled.
        return await self._move_all(
            query, rule, progress, portion, dry_run=dry_run, newest_first=True
        )

    async def retry(
        self,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
        portion: Portion | None = None,
    ) -> Bulk:
        """Run the failed jobs that match again, with all their attempts, oldest first.

        Cancelled jobs, and pending ones that wait for their time, only if the query's `states` name
        them. Skips a job whose dedupe key is held by another.
        """
        query = narrowed(
            self._query,
            _RETRIED,
            frozenset({State.FAILED}),
            "retry",
            "failed, cancelled and pending",
        )

        def rule(job: Job) -> Move:
            return lifecycle.reset(job, reason)

        return await self._move_all(query, rule, progress, portion, dry_run=dry_run)

    async def reprioritise(
        self,
        priority: int,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
        portion: Portion | None = None,
    ) -> Bulk:
        """Give the pending jobs that match another priority; claims follow it at once.

        Skips those that have it already.
        """
        check_priority(priority)
        query = narrowed(self._query, _PENDING, _PENDING, "reprioritise", "pending")

        def rule(job: Job) -> Move:
            if job.priority == priority:
                raise TransitionRefused(f"job {job.id} already has priority {priority}")
            return lifecycle.reprioritise(job, priority, reason)

        return await self._move_all(query, rule, progress, portion, dry_run=dry_run)

    async def delete(
        self,
        *,
        archive: PathLike | None = None,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
        portion: Portion | None = None,
    ) -> Bulk:
        """Remove the finished jobs that match, with their log, after writing them to an `archive`.

        Never removes unfinished jobs: cancel them first.
        """
        query = narrowed(self._query, FINAL, FINAL, "delete", "finished", strict=True)
        if dry_run:
            return Bulk(matched=await Selection(self._connection, query).count())
        return await remove(self._connection, [query], archive, progress, portion)

    async def _move_all(
        self,
        query: JobQuery,
        rule: Callable[[Job], Move],
        progress: BulkProgress | None,
        portion: Portion | None,
        *,
        dry_run: bool,
        newest_first: bool = False,
    ) -> Bulk:
        if dry_run:
            return Bulk(matched=await Selection(self._connection, query).count())
        done = Bulk()
        walk = await Walk.over(self._connection, query, portion, newest_first=newest_first)
        while ids := await walk.portion():
            done = add_up(done, len(ids), await self._move(ids, query, rule), progress)
        return walk.end(done, portion)

    async def _move(
        self, ids: Sequence[JobId], query: JobQuery, rule: Callable[[Job], Move]
    ) -> int:
        """Move these jobs, and return how many; one that keeps changing is skipped."""
        changed, left = 0, ids

        async def attempt() -> bool | None:
            nonlocal changed, left
            jobs = [job for job in await self._connection.store.get(left) if matches(job, query)]
            changes = list(_allowed(jobs, rule))
            answers = await self._transition(changes) if changes else []
            changed += sum(isinstance(answer, Job) for answer in answers)
            left = [
                change.job.id
                for change, answer in zip(changes, answers, strict=True)
                if answer is None
            ]
            return None if left else True

        with suppress(Contended):
            await decide(attempt, "the jobs that match")
        return changed

    async def _transition(self, changes: Sequence[Change]) -> list[Job | TransitionRefused | None]:
        """Write changes as the store does, but without a refused one stopping the others."""
        own = self._connection
        try:
            return [*await own.store.transition(changes, actor=own.actor)]
        except TransitionRefused as error:
            if len(changes) == 1:
                return [error]
            half = len(changes) // 2
            return [
                *await self._transition(changes[:half]),
                *await self._transition(changes[half:]),
            ]


async def remove(
    connection: Connection,
    queries: Sequence[JobQuery],
    archive: PathLike | None,
    progress: BulkProgress | None,
    portion: Portion | None = None,
) -> Bulk:
    """Remove the finished jobs that match these queries, after archiving them if a file is named.

    A job is on disk in the archive before it is removed, so that a crash loses none.
    """
    done = Bulk()
    file = None
    if archive is not None:
        from penstock.engine.archive_file import ArchiveFile, new_header

        file = ArchiveFile(archive, await new_header(connection, "archive"))
    try:
        for query in queries:
            walk = await Walk.over(connection, query, portion)
            while ids := await walk.portion():
                removed = await _remove_portion(connection, ids, query, file)
                done = add_up(done, len(ids), removed, progress)
            done = walk.end(done, portion)
    finally:
        if file is not None:
            file.close()
        if done.changed:
            _log.info("%s removed %d finished jobs", connection.actor, done.changed)
    return done


async def _remove_portion(
    connection: Connection, ids: Sequence[JobId], query: JobQuery, file: "ArchiveFile | None"
) -> int:
    store = connection.store
    if file is None:
        jobs = [job for job in await store.get(ids) if matches(job, query)]
        return len(await store.delete(jobs))
    records = [record for record in await store.records(ids) if matches(record.job, query)]
    from penstock.engine.archive_file import in_thread

    await in_thread(connection.runtime, file.write, records)
    # One that has changed since it was written stays, and is written again when it is removed.
    return len(await store.delete([record.job for record in records]))


def is_guarded(connection: Connection, query: JobQuery) -> bool:
    """Return whether the store may find what nobody may search for: see `Secrets`."""
    return query.text is not None and connection.secrets.hides


class Walk:
    """Iterates over the jobs that match, by id, up to the newest one at its beginning."""

    def __init__(self, store: Store, page: JobQuery, last: int, left: int | None = None) -> None:
        self._store = store
        self._page = page
        self._last = last
        self._left = left  # of a portion; None without a limit
        self._ids: list[JobId] = []
        self._over = False
        self._seen: JobId | None = None
        self._finds: Callable[[Job], bool] | None = None  # if the store finds too much

    @classmethod
    async def over(
        cls,
        connection: Connection,
        query: JobQuery,
        portion: Portion | None = None,
        *,
        newest_first: bool = False,
    ) -> "Walk":
        """Return a walk over all jobs that match a query now, or over a portion of them."""
        store = connection.store
        last: int = (await store.origin()).last_job
        page = replace(query, newest_first=newest_first, after=None, limit=_IDS_AT_ONCE)
        if portion is None:
            walk = cls(store, page, last)
        else:
            check_limit(portion.limit)
            if portion.up_to is not None:
                last = min(last, portion.up_to)
            after = portion.after
            if newest_first and after is None:
                after = last + 1  # skips what has arrived since
            trail = portion.trail
            limit = _IDS_AT_ONCE if trail else min(portion.limit, _IDS_AT_ONCE)
            page = replace(page, after=None if after is None else JobId(after), limit=limit)
            walk = cls(store, page, last, portion.limit)
            if trail and trail.after is not None and trail.after == portion.after:
                walk._follow(trail)
        if is_guarded(connection, query):
            walk._finds = partial(connection.secrets.lets_find, query=query)
        return walk

    def _follow(self, trail: Trail) -> None:
        self._ids, self._over = trail.ids, trail.over
        if self._ids:
            self._page = replace(self._page, after=self._ids[-1])

    async def portion(self) -> list[JobId]:
        """Return the next ids; none at the end."""
        while portion := await self._next():
            self._seen = portion[-1]
            if self._finds is None:
                return portion
            kept = [job.id for job in await self._store.get(portion) if self._finds(job)]
            if kept:
                return kept
        return []

    async def _next(self) -> list[JobId]:
        while self._left != 0 and not self._ids and not self._over:
            found = await self._store.find_ids(self._page)
            self._over = len(found) < self._page.limit
            if found:
                self._page = replace(self._page, after=found[-1])
            self._ids = [job_id for job_id in found if job_id <= self._last]
        size = PORTION if self._left is None else min(PORTION, self._left)
        portion, self._ids = self._ids[:size], self._ids[size:]
        if self._left is not None:
            self._left -= len(portion)
        return portion

    def end(self, done: Bulk, portion: Portion | None) -> Bulk:
        """Add where the next portion continues, and leave it the trail."""
        if self._left != 0 or (self._over and not self._ids):
            return done
        if portion is not None and portion.trail is not None:
            portion.trail.after = self._seen
            portion.trail.ids, portion.trail.over = self._ids, self._over
        return replace(done, after=self._seen)


def narrowed(
    query: JobQuery,
    allowed: frozenset[State],
    unless_named: frozenset[State],
    verb: str,
    words: str,
    *,
    strict: bool = False,
) -> JobQuery:
    """Restrict a query to the states that a verb applies to."""
    if query.states is None:
        return replace(query, states=unless_named)
    states = query.states & allowed
    if not states or (strict and states != query.states):
        others = ", ".join(sorted(query.states - allowed)) or "none"
        advice = "; cancel unfinished ones first" if strict else ""
        raise ConfigurationError(f"{verb} applies to {words} jobs, not to {others}{advice}")
    return replace(query, states=states)


def _allowed(jobs: Iterable[Job], rule: Callable[[Job], Move]) -> Iterator[Change]:
    for job in jobs:
        try:
            yield Change(job, rule(job))
        except TransitionRefused:
            continue


def add_up(done: Bulk, matched: int, changed: int, progress: BulkProgress | None) -> Bulk:
    """Add a portion to the result so far, and report it."""
    done = Bulk(
        matched=done.matched + matched,
        changed=done.changed + changed,
        skipped=done.skipped + matched - changed,
    )
    if progress is not None:
        progress(done)
    return done
