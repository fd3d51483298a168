"""What running jobs reported: progress, checkpoints and lines, in memory."""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice

from msgspec.structs import replace

from penstock.core.job import Job, JobId, LogEntry
from penstock.core.lifecycle import Event, State
from penstock.core.progress import LINES_KEPT, Line, Progress, Report, Reported
from penstock.stores.memory.batch import WriteBatch


class _Page:
    """Everything kept of the reports of one job."""

    __slots__ = ("checkpoint", "last", "lines", "progress")

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self.checkpoint: str | None = None
        self.lines: deque[Line] = deque(maxlen=LINES_KEPT)
        self.last = 0


class Reports:
    """The reports of all jobs; false while there are none."""

    def __init__(self) -> None:
        self._pages: dict[JobId, _Page] = {}

    def __bool__(self) -> bool:
        return bool(self._pages)

    def apply(self, batch: WriteBatch) -> None:
        """Apply the reports of a batch."""
        for report in batch.reports:
            self._add(report)
        for place, reported in batch.reported.items():
            self._restore(place, reported)

    def _add(self, report: Report) -> None:
        page = self._pages.setdefault(report.lease.job_id, _Page())
        page.progress = report.progress or page.progress
        page.checkpoint = page.checkpoint if report.state is None else report.state
        for line in report.lines:
            page.last += 1
            page.lines.append(replace(line, id=page.last))

    def _restore(self, job_id: JobId, reported: Reported) -> None:
        page = self._pages.setdefault(job_id, _Page())
        page.progress, page.checkpoint = reported.progress, reported.checkpoint
        page.lines.extend(reported.lines)
        page.last = reported.lines[-1].id if reported.lines else 0

    def follow(
        self, jobs: Iterable[Job], entries: Iterable[LogEntry], removed: Iterable[JobId]
    ) -> None:
        """Drop what is obsolete: the checkpoint of a done job, and more when a job is reset."""
        for job in jobs:
            if job.state is State.DONE and job.id in self._pages:
                self._pages[job.id].checkpoint = None
        for entry in entries:
            if entry.event is Event.RESET and entry.job_id in self._pages:
                page = self._pages[entry.job_id]
                page.progress = page.checkpoint = None
        for place in removed:
            self._pages.pop(place, None)

    def progress(self, ids: Sequence[JobId]) -> dict[JobId, Progress]:
        """Return the progress of these jobs, as far as they reported any."""
        pages = ((place, self._pages.get(place)) for place in ids)
        return {place: page.progress for place, page in pages if page and page.progress}

    def checkpoint(self, job_id: JobId) -> str | None:
        """Return the checkpoint of a job, if any."""
        page = self._pages.get(job_id)
        return None if page is None else page.checkpoint

    def lines(self, job_id: JobId, after: int, limit: int) -> list[Line]:
        """Return the kept lines of a job, starting after a line."""
        page = self._pages.get(job_id)
        return [] if page is None else list(islice((x for x in page.lines if x.id > after), limit))

    def reported(self, ids: Sequence[JobId]) -> dict[JobId, Reported]:
        """Return everything kept of these jobs' reports."""
        return {
            place: Reported(
                progress=page.progress, checkpoint=page.checkpoint, lines=tuple(page.lines)
            )
            for place in ids
            if (page := self._pages.get(place)) is not None
        }

    def all(self) -> dict[JobId, Reported]:
        """Return everything kept of all reports."""
        return self.reported(list(self._pages))
