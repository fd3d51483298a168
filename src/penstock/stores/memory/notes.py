"""What running jobs say about themselves, in plain Python."""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice

from msgspec.structs import replace

from penstock.core.job import Job, JobId, LogEntry
from penstock.core.lifecycle import Event, State
from penstock.core.note import LINES_KEPT, Line, Note, Progress
from penstock.core.note import Notes as Kept
from penstock.stores.memory.batch import Batch


class _Page:
    """All that one job has said."""

    __slots__ = ("last", "lines", "progress", "state")

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self.state: str | None = None
        self.lines: deque[Line] = deque(maxlen=LINES_KEPT)
        self.last = 0


class Notes:
    """The notes of all jobs; false while there are none."""

    def __init__(self) -> None:
        self._pages: dict[JobId, _Page] = {}

    def __bool__(self) -> bool:
        return bool(self._pages)

    def apply(self, batch: Batch) -> None:
        """Take over what a batch says."""
        for note in batch.notes:
            self._write(note)
        for place, kept in batch.kept.items():
            self._restore(place, kept)

    def _write(self, note: Note) -> None:
        page = self._pages.setdefault(note.lease.job_id, _Page())
        page.progress = note.progress or page.progress
        page.state = page.state if note.state is None else note.state
        for line in note.lines:
            page.last += 1
            page.lines.append(replace(line, id=page.last))

    def follow(
        self, jobs: Iterable[Job], entries: Iterable[LogEntry], removed: Iterable[JobId]
    ) -> None:
        """Let go of what is over: a checkpoint with its job, more where a job starts anew."""
        for job in jobs:
            if job.state is State.DONE and job.id in self._pages:
                self._pages[job.id].state = None
        for entry in entries:
            if entry.event is Event.RESET and entry.job_id in self._pages:
                page = self._pages[entry.job_id]
                page.progress = page.state = None
        for place in removed:
            self._pages.pop(place, None)

    def progress(self, ids: Sequence[JobId]) -> dict[JobId, Progress]:
        """See `Store.progress`."""
        pages = ((place, self._pages.get(place)) for place in ids)
        return {place: page.progress for place, page in pages if page and page.progress}

    def checkpoint(self, job_id: JobId) -> str | None:
        """See `Store.checkpoint`."""
        page = self._pages.get(job_id)
        return None if page is None else page.state

    def lines(self, job_id: JobId, after: int, limit: int) -> list[Line]:
        """See `Store.lines`."""
        page = self._pages.get(job_id)
        return [] if page is None else list(islice((x for x in page.lines if x.id > after), limit))

    def all(self) -> dict[JobId, Kept]:
        """What all jobs have said."""
        return self.kept(list(self._pages))

    def kept(self, ids: Sequence[JobId]) -> dict[JobId, Kept]:
        """See `Store.notes`."""
        return {
            place: Kept(progress=page.progress, checkpoint=page.state, lines=tuple(page.lines))
            for place in ids
            if (page := self._pages.get(place)) is not None
        }

    def _restore(self, job_id: JobId, kept: Kept) -> None:
        page = self._pages.setdefault(job_id, _Page())
        page.progress, page.state = kept.progress, kept.checkpoint
        page.lines.extend(kept.lines)
        page.last = kept.lines[-1].id if kept.lines else 0
