"""What the routes do: jobs are asked for, looked at and cancelled; collections emptied."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

from penstock import (
    Job,
    JobId,
    JobNotFound,
    JobQuery,
    Penstock,
    Scope,
    State,
    TransitionRefused,
)
from penstock.apps.indexing import shapes
from penstock.apps.indexing.files import Busy, Files, Folder, held, known_folders
from penstock.apps.indexing.parameters import Parameters
from penstock.apps.indexing.places import Places
from penstock.apps.indexing.searching import Searcher
from penstock.apps.indexing.settings import Settings
from penstock.apps.indexing.tasks import QUEUE, TASK
from penstock.http.problems import Problem

_PENDING = frozenset({State.PENDING})
_DRY_RUN_FILES = 20_000
_LARGEST_ID = 2**63 - 1


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
        """Store a job, or find the one that does the same; raises `QueueFull`.

        The jobs of one collection run one after the other.
        """
        if not self._is_limited:  # not before: a server that indexes nothing shows no such queue
            await self._penstock.limit(QUEUE, self._settings.max_queue)
            self._is_limited = True
        options: dict[str, Any] = {"key": f"indexing:{parameters.collection}"}
        if not parameters.force:
            options["dedupe"] = f"{TASK}:{parameters.dedupe}"
        if parameters.source == "auto":  # what changes while a job runs, that job may have missed
            options["scope"] = Scope.PENDING
        return await self._penstock.tasks[TASK].using(**options).enqueue(parameters)

    async def accepted(self, job: Job) -> shapes.Accepted:
        """The answer to a request that became this job."""
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
        """What a job would find, without one."""
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
        """The job with this id, or the only one whose id begins so; raises `Problem`."""
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
            raise Problem(404, f"several jobs begin with {shown!r}; name more of the id")
        if not found:
            raise _unknown(shown)
        return found[0]

    async def _beginning(self, digits: str) -> list[Job]:
        """Up to two jobs whose ids begin so."""
        found: list[Job] = []
        for low, high in _longer(digits):
            query = JobQuery(
                queue=QUEUE, task=TASK, after=JobId(low - 1), newest_first=False, limit=2
            )
            found += [job for job in await self._penstock.find(query) if job.id <= high]
        return found[:2]

    async def detail(self, shown: str) -> shapes.IndexJob:
        """A job in full."""
        job = await self.get(shown)
        message = shapes.error_of(job) or (await self._penstock.explain(job.id)).text
        progress = await self._penstock.progress(job.id)
        kept = None if job.state is State.DONE else await self._penstock.checkpoint(job.id)
        return shapes.detail(job, progress, message, kept if isinstance(kept, dict) else None)

    async def page(self, limit: int, offset: int) -> shapes.IndexJobs:
        """Jobs, newest first."""
        ids = await self._penstock.find_ids(JobQuery(queue=QUEUE, task=TASK, limit=offset + limit))
        records = await self._penstock.records(ids[offset:])
        progress = await self._penstock.progress(ids[offset:]) if ids[offset:] else {}
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
        """How many jobs there are in each state."""
        counted = dict.fromkeys(State, 0)
        for (queue, state, _), n in (await self._penstock.count([QUEUE])).items():
            if queue == QUEUE:
                counted[state] += n
        return counted

    async def cancel(self, shown: str) -> shapes.Cancelling:
        """End a waiting job, or ask a running one to stop."""
        job = await self.get(shown)
        shown = shapes.id_of(job)
        if job.state is State.CANCELLED:
            message = f"Job {shown} was cancelled before"
            return shapes.Cancelling(job_id=shown, status="already_cancelled", message=message)
        try:
            job = await self._penstock.cancel(job.id, "cancelled by a request")
        except TransitionRefused:
            job = await self._penstock.get(job.id)
            status = shapes.STATUSES[job.state]
            raise Problem(409, f"job {shown} is {status}: there is nothing to cancel") from None
        if job.state is State.CANCELLED:
            message = f"Job {shown} cancelled"
            return shapes.Cancelling(job_id=shown, status="cancelled", message=message)
        message = f"Job {shown} was asked to stop, and does at its next file"
        return shapes.Cancelling(job_id=shown, status="cancellation_requested", message=message)

    # Collections

    def folders(self, collection: str | None) -> list[tuple[str, Folder]]:
        """Every folder that was asked for, with the name of its collection."""
        names = self._places.collections() if collection is None else [collection]
        return [
            (name, folder)
            for name in names
            for folder in known_folders(self._places.collection(name))
        ]

    def remove_folder(self, folder: str, collection: str) -> int:
        """Remove a folder from its collection; how many chunks. Raises `Problem`."""
        from penstock.apps.indexing.indexer import forget

        place = self._places.collection(collection)
        index = self._searcher.index(collection)
        if index is None or all(one.path != folder for one in known_folders(place)):
            raise Problem(404, f"{folder} is not indexed", field="folder_path")
        removed = 0
        with self._alone(collection), Files(place) as files:
            for paths in files.paths_of(folder):
                removed += forget(files, index, paths)
            files.forget_folder(folder)
        return removed

    def reset(self, collection: str | None) -> list[str]:
        """Empty a collection, or all; the names of those that were. Raises `Problem`."""
        names = [one for one in self._places.collections() if collection in (None, one)]
        done = []
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(self._alone(name))
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
    def _alone(self, collection: str) -> Iterator[None]:
        """Hold a collection, inside the block; while a job does, 409."""
        try:
            with held(self._places.collection(collection), wait=False):
                yield
        except Busy:
            raise Problem(
                409, f"a job is running on collection {collection!r}; wait, or cancel it"
            ) from None


def _longer(digits: str) -> Iterator[tuple[int, int]]:
    """The ranges of numbers that begin with these digits and have more of them."""
    low, high = int(digits), int(digits) + 1
    while low * 10 <= _LARGEST_ID:
        low, high = low * 10, high * 10
        yield low, min(high - 1, _LARGEST_ID)


def _unknown(shown: str) -> Problem:
    return Problem(404, f"there is no indexing job {shown}")
