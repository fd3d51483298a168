"""What is in a file of jobs: all of it is read and checked before any of it is stored."""

import os
import sys
from collections.abc import Generator, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from pathlib import Path

import msgspec
from msgspec.structs import replace

from penstock import archive as files
from penstock.checks import MOST, JobChecker
from penstock.core.errors import InvalidJob
from penstock.core.job import JobId, LogId, Origin, QueueSettings, Record, asked
from penstock.core.lifecycle import Event

PathLike = str | os.PathLike[str]

# Far from where ids would run out.
_HIGHEST = 2**62


class Inventory:
    """What is in a file, after all of it was read and checked."""

    def __init__(self, path: PathLike) -> None:
        self._path = path
        self._check = JobChecker(sys.maxsize).check
        self._sources: dict[int, Origin] = {}
        self._last: dict[tuple[int, JobId], int] = {}
        self._needed: dict[tuple[int, JobId], set[tuple[int, JobId]]] = {}
        self.queues: list[QueueSettings] = []

    @classmethod
    def of(cls, path: PathLike) -> "Inventory":
        """Read and check a whole file."""
        found = cls(path)
        for number, source, line in found._lines():
            match line:
                case files.QueueLine(queue=queue):
                    settings = msgspec.structs.asdict(queue)
                    found.queues.append(QueueSettings(**settings))
                case files.JobLine():
                    found._note_job(number, source, line)
                case files.End(last_job=last_job, last_log=last_log):
                    found._note(source, last_job, last_log)
        found._check_circles()
        return found

    @property
    def jobs(self) -> int:
        """How many jobs there are; one that stands there twice counts once."""
        return len(self._last)

    @property
    def origins(self) -> list[Origin]:
        """The stores that the jobs come from, and the highest ids they are known to have given."""
        return list(self._sources.values())

    def portions(self, size: int) -> Generator[tuple[Origin, list[Record]], None, None]:
        """The jobs, by store; of one that stands there twice, the last."""
        for origin in self.origins:
            # Ids of jobs are only raised behind the last portion, or no job could keep its own.
            given = replace(origin, last_job=JobId(0))
            records: Iterator[Record] = (
                line
                for number, source, line in self._lines()
                if isinstance(line, files.JobLine)
                and source == origin.source
                and self._last[source, line.job.id] == number
            )
            while portion := list(islice(records, size)):
                portion += self._awaited(origin.source, portion, records)
                yield given, portion

    def _awaited(
        self, source: int, portion: Sequence[Record], following: Iterator[Record]
    ) -> list[Record]:
        """Those that follow, up to the last that an earlier one waits for: they come together."""
        more: list[Record] = []
        awaited = set().union(*(self._newer(source, record.job.id) for record in portion))
        awaited -= {record.job.id for record in portion}
        while awaited and (record := next(following, None)) is not None:
            more.append(record)
            awaited |= self._newer(source, record.job.id)
            awaited.discard(record.job.id)
        return more

    def _newer(self, source: int, job_id: JobId) -> set[JobId]:
        """The jobs behind it in the file that a job waits for."""
        found = self._needed.get((source, job_id), set()) & self._last.keys()
        return {needed for _, needed in found if needed > job_id}

    def _check_circles(self) -> None:
        try:
            TopologicalSorter(self._needed).prepare()
        except CycleError as error:
            _, job_id = error.args[1][0]
            raise InvalidJob(f"{Path(self._path)}: job {job_id} waits for itself") from error

    def _lines(self) -> Iterator[tuple[int, int, files.Line]]:
        source = 0
        for number, line in files.read(self._path):
            if isinstance(line, files.Header):
                source = line.source
                self._note(source, JobId(0), LogId(0))
            yield number, source, line

    def _note(self, source: int, last_job: JobId, last_log: LogId) -> None:
        if not (0 <= source <= MOST and last_job <= _HIGHEST and last_log <= _HIGHEST):
            raise InvalidJob(f"{Path(self._path)}: an id is out of range")
        known = self._sources.get(source, Origin(source=source))
        self._sources[source] = Origin(
            source=source,
            last_job=max(known.last_job, last_job),
            last_log=max(known.last_log, last_log),
        )

    def _note_job(self, number: int, source: int, record: Record) -> None:
        job = record.job
        try:
            self._check(asked(job))
            _check_whole(record)
        except InvalidJob as error:
            raise InvalidJob(f"{Path(self._path)}, line {number}: job {job.id}: {error}") from error
        self._note(source, job.id, job.version)
        self._last[source, job.id] = number
        self._needed.pop((source, job.id), None)  # of one that stands there twice, the last counts
        if record.edges:
            open_ends = {(source, edge.needed) for edge in record.edges if not edge.resolved}
            self._needed[source, job.id] = open_ends


def _check_whole(record: Record) -> None:
    """A job that could have come out of a store: nothing else may come into one."""
    job, log = record.job, record.log
    if not all(0 < number <= _HIGHEST for number in (job.id, *(one.id for one in log))):
        raise InvalidJob("an id is out of range")
    if not all(one.job_id == job.id and 0 < one.needed <= _HIGHEST for one in record.edges):
        raise InvalidJob("what it waits for does not fit to it")
    if not 0 <= job.attempt <= _HIGHEST:
        raise InvalidJob("its attempt is out of range")
    times = (job.enqueued_at, job.run_at, job.started_at, job.finished_at)
    if any(at is not None and at.tzinfo is None for at in (*times, *(one.at for one in log))):
        raise InvalidJob("a time has no time zone")
    if job.state.final is (job.finished_at is None):
        raise InvalidJob(f"it is {job.state}, and finished_at does not fit to that")
    if not log or log[0].event is not Event.ENQUEUED or log[-1].id != job.version:
        raise InvalidJob("its log does not reach from its beginning to its version")
    if log[-1].state is not job.state or [one.id for one in log] != sorted({o.id for o in log}):
        raise InvalidJob("its log does not lead to its state")
