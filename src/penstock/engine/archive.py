"""The archive: `Penstock.archive`, which moves jobs to and from files and prunes old ones."""

import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from penstock.core import lifecycle
from penstock.core.job import JobId, Retention
from penstock.core.lifecycle import FINAL, State
from penstock.core.migration_lock import MigrationLock
from penstock.core.query import JobQuery, matches
from penstock.core.queue import QueueQuery
from penstock.core.recovery import Backup, BackupProgress, Cut, RestoredStore
from penstock.core.restoration import Record, apply_restore, as_new_job
from penstock.core.store import Store
from penstock.core.times import from_micros
from penstock.core.verification import Verification
from penstock.engine.bulk import (
    PORTION,
    Bulk,
    BulkProgress,
    Selection,
    Walk,
    add_up,
    narrowed,
    remove,
)
from penstock.engine.connection import Connection, admit
from penstock.engine.sync_calls import SyncArchive
from penstock.stores.backups import back_up, finish, restore

T = TypeVar("T")
PathLike = str | os.PathLike[str]


class Archive:
    """Jobs in files: exports, imports and backups, and finished jobs past their time.

    `progress` is called with the result so far after every portion.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def sync(self) -> SyncArchive:
        """The same calls from synchronous code, without `await`."""
        return SyncArchive(self)

    async def export(
        self,
        path: PathLike,
        query: JobQuery | None = None,
        *,
        progress: BulkProgress | None = None,
    ) -> Bulk:
        """Write the jobs that match to a new file, with their logs and the settings of queues.

        In any state, oldest first. Every job is written as it was at one moment, but not all at
        the same moment. The file appears when it is complete.
        """
        from penstock.engine.archive_file import End, ExportFile, JobLine, QueueLine, new_header

        own, query = self._connection, query or JobQuery()
        Selection(own, query)  # checks the query
        file = await self._aside(ExportFile, path, await new_header(own, "export"))
        try:
            named = None if query.queue is None else (query.queue,)
            queues = await own.store.queues(QueueQuery(names=named))
            await self._aside(file.write, [QueueLine(queue=queue) for queue in queues])
            done = Bulk()
            walk = await Walk.over(own, query)
            while ids := await walk.portion():
                lines = [
                    JobLine(job=record.job, log=record.log, edges=record.edges)
                    for record in await own.store.records(ids)
                    if matches(record.job, query)
                ]
                await self._aside(file.write, lines)
                done = add_up(done, len(ids), len(lines), progress)
            end = await own.store.origin()
            last = End(jobs=done.changed, last_job=end.last_job, last_log=end.last_log)
            await self._aside(file.write, [last])
        except BaseException as error:
            file.close(error)
            raise
        await self._aside(file.close)
        return done

    async def import_(
        self, path: PathLike, *, dry_run: bool = False, progress: BulkProgress | None = None
    ) -> Bulk:
        """Import the jobs of an export or an archive, with their logs.

        The whole file is checked before the first job is stored. Skips jobs that were imported
        before or still exist, and unfinished ones whose dedupe key is held by another. Pending
        jobs keep their order and wait for the jobs they waited for, as far as those are imported;
        running ones wait for a worker again. Settings of queues apply to queues that do not exist
        yet. `dry_run` only counts the jobs in the file.
        """
        from penstock.engine.archive_file import Inventory

        own = self._connection
        inventory = await self._aside(Inventory.of, path)
        if dry_run:
            return Bulk(matched=inventory.jobs)
        known = {queue.name for queue in await own.store.queues()}
        for queue in inventory.queues:
            if queue.name not in known:
                await own.store.configure(queue)
        done = Bulk()
        with closing(inventory.portions(PORTION)) as portions:
            while (portion := await self._aside(next, portions, None)) is not None:
                origin, records = portion
                admit([as_new_job(record.job) for record in records])
                now = from_micros(own.clock())
                answers = await own.store.restore(
                    [revived(record, now) for record in records], origin=origin, actor=own.actor
                )
                taken = sum(answer is not None for answer in answers)
                done = add_up(done, len(records), taken, progress)
        for origin in inventory.origins:
            await own.store.restore([], origin=origin, actor=own.actor)
        return done

    async def prune(
        self,
        retention: Retention | None = None,
        *,
        states: Iterable[State] = FINAL,
        archive: PathLike | None = None,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
    ) -> Bulk:
        """Remove finished jobs past their time, with their log, after writing them to an `archive`.

        A job is on disk in the archive before it is removed, so that a crash loses none; it may
        then appear in the archive twice, and the last one counts. `dry_run` only counts.
        """
        own, retention = self._connection, retention or Retention()
        now = from_micros(own.clock())
        queries = [
            narrowed(
                JobQuery(states=frozenset({state}), before=_before(now, retention, state)),
                FINAL,
                FINAL,
                "prune",
                "finished",
            )
            for state in sorted(set(states))
        ]
        if dry_run:
            counts = [await Selection(own, query).count() for query in queries]
            return Bulk(matched=sum(counts))
        return await remove(own, queries, archive, progress)

    async def backup(self, path: PathLike, *, progress: BackupProgress | None = None) -> Backup:
        """Write a backup of the whole store to a new file, while the store is in use.

        The file shows the store at one moment. It appears when it is complete, durable, and has
        been read back. For SQLite files and journals; PostgreSQL has its own programs.
        """
        own = self._connection
        return await self._aside(
            partial(back_up, own.url, Path(path), runtime=own.runtime, progress=progress)
        )

    async def restore(
        self,
        backup: PathLike,
        *,
        replace: bool = False,
        above: int = 0,
        progress: BackupProgress | None = None,
    ) -> RestoredStore:
        """Make a store of a backup, at the URL of this one.

        Ids and fencing tokens continue above all that the store may have assigned since the
        backup, the log notes the cut, and jobs that were running wait for a worker again: workers
        from before are refused. See `Store.raise_floor` for `above`. With `replace`, the store at
        this URL is replaced: a SQLite file in one transaction, while it may be in use; a journal
        must not be in use.
        """
        own = self._connection

        def proceed(store: Store, taken_at: datetime | None, highest: int) -> Cut:
            when = "" if taken_at is None else f" of {taken_at.isoformat(timespec='seconds')}"
            return finish(
                store.raise_floor(
                    actor=own.actor,
                    reason=f"restored from a backup{when}",
                    above=max(above, highest),
                    reclaim=True,
                )
            )

        return await self._aside(
            partial(
                restore, Path(backup), own.url, proceed, replace=replace, migrate=own.migrate,
                runtime=own.runtime, progress=progress,
            )
        )  # fmt: skip

    async def restored_in_place(self, *, above: int = 0) -> Cut:
        """Let a store that was set back by other means continue, like one that was restored.

        For a file that a replica was restored to, a copy made by hand, and a database that was
        restored with PostgreSQL's own programs. Call this before anything else uses the store.
        """
        own = self._connection
        return await own.store.raise_floor(
            actor=own.actor, reason="restored in place", above=above, reclaim=True
        )

    async def verify(self, *, progress: BackupProgress | None = None) -> Verification:
        """Read the whole store, at one moment, and check whether its promises hold."""
        return await self._connection.store.verify(progress or _ignore)

    async def repair(self) -> None:
        """Repair what `verify` has found, as far as it can be derived from the jobs.

        `Verification.repairable` says what that is. One transaction; other writers wait meanwhile.
        """
        await self._connection.store.repair(actor=self._connection.actor)

    async def records(self, job_ids: Sequence[int]) -> list[Record]:
        """Return these jobs, each with its whole log and what it waits for, at one moment.

        In this order; unknown ids are left out.
        """
        return await self._connection.store.records([JobId(job_id) for job_id in job_ids])

    async def migration(self) -> MigrationLock | None:
        """Return the migration that locks this store; None without one."""
        return await self._connection.store.migration_lock()

    def _aside(self, function: Callable[..., T], *arguments: object) -> Coroutine[Any, Any, T]:
        from penstock.engine.archive_file import in_thread

        return in_thread(self._connection.runtime, function, *arguments)


def _ignore(_phase: str, _done: int, _total: int) -> None:
    """Show nothing."""


def revived(record: Record, now: datetime) -> Record:
    """Return a job as another store imports it: a running one waits for a worker again."""
    job = record.job
    return Record(
        job=apply_restore(job, lifecycle.restore(job), at=now), log=record.log, edges=record.edges
    )


def _before(now: datetime, retention: Retention, state: State) -> datetime:
    try:
        return now - retention.keeps(state)
    except OverflowError:  # kept for longer than the calendar lasts
        return datetime.min.replace(tzinfo=UTC)
