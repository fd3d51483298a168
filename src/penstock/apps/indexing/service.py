"""Indexing on a Penstock: its jobs, its collections and its status."""

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import (
    Job,
    JobNotFound,
    JobQuery,
    Penstock,
    PenstockError,
    State,
    TransitionRefused,
)
from penstock.apps.indexing import shapes
from penstock.apps.indexing.files import LOCK, Files, Folder, known_folders
from penstock.apps.indexing.job import QUEUE, TASK, Parameters
from penstock.apps.indexing.places import Places
from penstock.apps.indexing.search import Searcher
from penstock.apps.indexing.settings import Settings
from penstock.apps.kit import Busy, Problem, in_background, locked, records_at
from penstock.jobs import JobId, Scope

if TYPE_CHECKING:
    from penstock.apps.indexing.watcher import Watcher

_log = logging.getLogger(__name__)

_PENDING = frozenset({State.PENDING})
_DRY_RUN_FILES = 20_000
_LARGEST_ID = 2**63 - 1
_POLL = 1.0
_PAUSE = 0.25


class Indexing:
    """The indexing of one server."""

    def __init__(
        self, penstock: Penstock, settings: Settings, places: Places, searcher: Searcher
    ) -> None:
        self._penstock = penstock
        self._settings = settings
        self._places = places
        self._searcher = searcher
        self._is_limited = False

    # Jobs

    async def enqueue(self, parameters: Parameters) -> Job:
        """Store a job, or return the unfinished one that does the same; raises `QueueFull`.

        The jobs of one collection run one after the other.
        """
        if not self._is_limited:  # not earlier: a server that indexes nothing shows no such queue
            await self._penstock.limits.queue(QUEUE, self._settings.max_queue)
            self._is_limited = True
        options: dict[str, Any] = {"key": f"indexing:{parameters.collection}"}
        if not parameters.force:
            options["dedupe"] = f"{TASK}:{parameters.dedupe}"
        if parameters.source == "auto":  # a running job may have missed the change
            options["scope"] = Scope.PENDING
        return await self._penstock.tasks[TASK].using(**options).enqueue(parameters)

    async def accepted(self, job: Job) -> shapes.Accepted:
        """Return the answer to a request that stored this job."""
        waiting = await self._penstock.find_ids(
            JobQuery(queue=QUEUE, states=_PENDING, newest_first=False, limit=10_000)
        )
        position = waiting.index(job.id) + 1 if job.id in waiting else 0
        shown, status = shapes.id_of(job), shapes.STATUSES[job.state]
        if job.duplicate:
            message = f"Duplicate: job {shown} already {status}"
        else:
            message = f"Job {shown} queued, {position} of {len(waiting)}"
        return shapes.Accepted(
            job_id=shown,
            status=status,
            message=message,
            queue_position=position,
            queue_length=len(waiting),
            dedupe_hit=job.duplicate,
        )

    async def dry_run(self, parameters: Parameters) -> shapes.Accepted:
        """Return what a job would find, without storing one."""
        message = await asyncio.to_thread(self._found, parameters)
        return shapes.Accepted(job_id="dry_run", status="completed", message=message)

    def _found(self, parameters: Parameters) -> str:
        from penstock.apps.indexing.indexer import read_metadata, walk_through

        read_metadata(parameters.metadata_file)
        walk = walk_through(
            parameters.folder,
            parameters,
            self._settings.max_file_size,
            (str(self._places.data),),
        )
        met = list(islice(walk, _DRY_RUN_FILES))
        skipped = sum(one.why_not is not None for one in met)
        more = " or more" if len(met) == _DRY_RUN_FILES else ""
        return f"Dry run: {len(met) - skipped}{more} files would be indexed, {skipped} skipped"

    async def get(self, shown: str) -> Job:
        """Return the job with this ID, or the only one whose ID starts so; raises `Problem`."""
        digits = shown.removeprefix(shapes.PREFIX)
        if not digits.isascii() or not digits.isdigit() or digits.startswith("0"):
            raise _unknown(shown)
        if int(digits) <= _LARGEST_ID:
            try:
                job = await self._penstock.get(int(digits))
            except JobNotFound:
                pass
            else:
                if job.task == TASK:
                    return job
        found = await self._beginning(digits)
        if len(found) > 1:
            raise Problem(404, f"the IDs of several jobs start with {shown!r}; give more digits")
        if not found:
            raise _unknown(shown)
        return found[0]

    async def _beginning(self, digits: str) -> list[Job]:
        """Return up to two jobs whose IDs start with these digits."""
        found: list[Job] = []
        for low, high in _longer(digits):
            query = JobQuery(
                queue=QUEUE, task=TASK, after=JobId(low - 1), newest_first=False, limit=2
            )
            found += [job for job in await self._penstock.find(query) if job.id <= high]
        return found[:2]

    async def detail(self, shown: str) -> shapes.IndexJob:
        """Return a job in full."""
        job = await self.get(shown)
        message = shapes.error_of(job) or (await self._penstock.explain(job.id)).text
        progress = await self._penstock.progress(job.id)
        kept = None if job.state is State.DONE else await self._penstock.checkpoint(job.id)
        return shapes.detail(job, progress, message, kept if isinstance(kept, dict) else None)

    async def page(self, limit: int, offset: int) -> shapes.IndexJobs:
        """Return a page of jobs, newest first."""
        query = JobQuery(queue=QUEUE, task=TASK, limit=limit)
        records = await records_at(self._penstock, query, offset)
        ids = [one.job.id for one in records]
        progress = await self._penstock.progress(ids) if ids else {}
        counted = await self.counts()
        return shapes.IndexJobs(
            jobs=[
                shapes.IndexJobSummary(**shapes.summary(one.job, progress.get(one.job.id)))
                for one in records
            ],
            total=sum(counted.values()),
            pending=counted[State.PENDING],
            running=counted[State.RUNNING],
            completed=counted[State.DONE],
            failed=counted[State.FAILED],
            cancelled=counted[State.CANCELLED],
        )

    async def counts(self) -> dict[State, int]:
        """Return the number of jobs in each state."""
        counted = dict.fromkeys(State, 0)
        for (queue, state, _), n in (await self._penstock.count([QUEUE])).items():
            if queue == QUEUE:
                counted[state] += n
        return counted

    async def cancel(self, shown: str) -> shapes.Cancelling:
        """Cancel a pending job, or ask a running one to stop."""
        job = await self.get(shown)
        shown = shapes.id_of(job)
        if job.state is State.CANCELLED:
            message = f"Job {shown} was already cancelled"
            return shapes.Cancelling(job_id=shown, status="already_cancelled", message=message)
        try:
            job = await self._penstock.cancel(job.id, "cancelled by a request")
        except TransitionRefused:
            job = await self._penstock.get(job.id)
            status = shapes.STATUSES[job.state]
            raise Problem(409, f"job {shown} is {status} and cannot be cancelled") from None
        if job.state is State.CANCELLED:
            message = f"Job {shown} cancelled"
            return shapes.Cancelling(job_id=shown, status="cancelled", message=message)
        message = f"Job {shown} was asked to stop, and stops at its next file"
        return shapes.Cancelling(job_id=shown, status="cancellation_requested", message=message)

    # Collections

    def folders(self, collection: str | None) -> list[tuple[str, Folder]]:
        """Return every requested folder, with the name of its collection."""
        names = self._places.collections() if collection is None else [collection]
        return [
            (name, folder)
            for name in names
            for folder in known_folders(self._places.collection(name))
        ]

    def remove_folder(self, folder: str, collection: str) -> int:
        """Remove a folder from its collection; return the number of chunks. Raises `Problem`."""
        from penstock.apps.indexing.indexer import forget

        place = self._places.collection(collection)
        index = self._searcher.index(collection)
        if index is None or all(one.path != folder for one in known_folders(place)):
            raise Problem(404, f"{folder} is not indexed", field="folder_path")
        removed = 0
        with self._locked(collection), Files(place) as files:
            for paths in files.paths_of(folder):
                removed += forget(files, index, paths)
            files.forget_folder(folder)
        return removed

    def reset(self, collection: str | None) -> list[str]:
        """Empty a collection, or all, and return their names. Raises `Problem`."""
        names = [one for one in self._places.collections() if collection in (None, one)]
        done = []
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(self._locked(name))
            for name in names:
                index = self._searcher.index(name)
                if index is not None:
                    with Files(self._places.collection(name)) as files:
                        files.doubt_under("")
                        index.clear()
                        files.forget_all()
                    done.append(name)
        return done

    @contextmanager
    def _locked(self, collection: str) -> Iterator[None]:
        """Lock a collection inside the block; raise the `Problem` 409 while a job has it."""
        try:
            with locked(self._places.collection(collection) / LOCK, wait=False):
                yield
        except Busy:
            raise Problem(
                409, f"a job is running on collection {collection!r}; wait for it, or cancel it"
            ) from None


class Status:
    """The state of indexing, read from the store in the background."""

    def __init__(self, penstock: Penstock, indexing: Indexing, watcher: "Watcher") -> None:
        self._penstock = penstock
        self._indexing = indexing
        self._found = shapes.IndexStatus()
        self._running: Job | None = None
        self._watcher = watcher

    def now(self) -> shapes.IndexStatus:
        """Return the state as it was last read."""
        ran = None
        if self._running is not None and self._running.started_at is not None:
            since = self._penstock.clock() / 1e3 - self._running.started_at.timestamp() * 1e3
            ran = max(0, round(since))
        watcher = shapes.FileWatcher(
            running=self._watcher.is_watching, watched_folders=self._watcher.count
        )
        return msgspec.structs.replace(self._found, running_time_ms=ran, file_watcher=watcher)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Read the state whenever jobs change, inside the block."""
        await self._read()
        async with in_background(self._follow()):
            yield

    async def _follow(self) -> None:
        seen = 0
        while True:
            try:
                seen = await self._penstock.wait(seen, _POLL)
            except PenstockError as error:
                _log.warning("the store did not answer, trying again: %s", error)
            await asyncio.sleep(_PAUSE)
            await self._read()

    async def _read(self) -> None:
        try:
            counts = await self._indexing.counts()
            query = JobQuery(
                queue=QUEUE,
                task=TASK,
                states=frozenset({State.RUNNING}),
                newest_first=False,
                limit=1,
            )
            running = await self._penstock.find(query)
            progress = await self._penstock.progress(running[0].id) if running else None
            folders = await asyncio.to_thread(self._indexing.folders, None)
        except (PenstockError, OSError, sqlite3.Error) as error:
            _log.warning("the state of indexing could not be read: %s", error)
            return  # the last state remains
        indexed = [one for _, one in folders if one.indexed_at is not None]
        self._running = running[0] if running else None
        self._found = shapes.IndexStatus(
            total_documents=sum(one.files for _, one in folders),
            total_chunks=sum(one.chunks for _, one in folders),
            indexing_in_progress=bool(running),
            current_job_id=shapes.id_of(running[0]) if running else None,
            progress_percent=shapes.percent(running[0], progress) if running else 0.0,
            last_indexed_at=max(
                (one.indexed_at for one in indexed if one.indexed_at), default=None
            ),
            indexed_folders=[one.path for one in indexed],
            queue_length=counts[State.PENDING],
            running_jobs=counts[State.RUNNING],
        )


def _longer(digits: str) -> Iterator[tuple[int, int]]:
    """Yield the ranges of longer numbers that start with these digits."""
    low, high = int(digits), int(digits) + 1
    while low * 10 <= _LARGEST_ID:
        low, high = low * 10, high * 10
        yield low, min(high - 1, _LARGEST_ID)


def _unknown(shown: str) -> Problem:
    return Problem(404, f"there is no indexing job {shown}")
