"""Files of jobs: one JSON line per job, with its log, compressed if the name ends in `.gz`.

A file begins with a header and is written in portions, each on disk before the next. Each portion
of a compressed file is a gzip member of its own, so that a torn last one can be cut off.
"""

import contextlib
import gzip
import os
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from penstock.core.decode_errors import mismatch
from penstock.core.errors import ConfigurationError, InvalidJob
from penstock.core.job import JobId, LogId
from penstock.core.lifecycle import Event
from penstock.core.queue import Queue, QueueSettings
from penstock.core.restoration import Origin, Record, as_new_job
from penstock.core.times import from_micros
from penstock.engine.connection import Connection
from penstock.engine.validation import LARGEST_INTEGER, JobValidator
from penstock.runtime import Runtime, running_loop

T = TypeVar("T")
PathLike = str | os.PathLike[str]

FORMAT = 2
"""Format 2 added the dependencies of a job. Files of format 1 can still be read."""
_GZIP = b"\x1f\x8b"
_CHUNK = 1 << 20

Kind = Literal["export", "archive"]
_WRITABLE = "name a file in a folder that exists and may be written"
# Far from the end of the ids.
_HIGHEST_ID = 2**62


class Header(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="penstock"):
    """The first line: what follows, and from which store. Appending to an archive adds another."""

    format: int = FORMAT
    kind: Kind
    source: int
    at: datetime


class QueueLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="queue"):
    """A queue with its settings."""

    queue: Queue


class JobLine(Record, frozen=True, kw_only=True, tag_field="line", tag="job"):
    """A job with its log and the jobs it depends on."""


class End(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="end"):
    """The last line of an export: a file without it is incomplete."""

    jobs: int
    last_job: JobId
    last_log: LogId


FileLine = Header | QueueLine | JobLine | End

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(FileLine).decode


class _Format(msgspec.Struct):
    """What the first line contains in every format."""

    line: Literal["penstock"]
    format: int


class ArchiveFile:
    """A file that finished jobs are written to before they are removed; created when needed.

    An existing archive is appended to. A torn end, as a killed process leaves it, is cut off: the
    jobs in it were not removed.
    """

    def __init__(self, path: PathLike, header: Header) -> None:
        self._path = Path(path)
        self._header = header
        self._file: BinaryIO | None = None

    def write(self, records: Iterable[Record]) -> None:
        """Append these jobs; they are on disk on return."""
        lines = [JobLine(job=record.job, log=record.log, edges=record.edges) for record in records]
        with _translated(self._path):
            if self._file is None:
                self._file = self._open()
            self._file.write(_portion(lines, self._path))
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _open(self) -> BinaryIO:
        if not self._path.exists():
            # It gets its name when it is complete: an archive always begins with its header.
            with new_file(self._path) as file:
                file.write(_portion([self._header], self._path))
            return self._path.open("ab")
        _check_header(self._path)
        with self._path.open("r+b") as file:
            end = _whole_members(file) if _is_packed(self._path) else _whole_lines(file)
            file.truncate(end)
        opened = self._path.open("ab")
        opened.write(_portion([self._header], self._path))
        return opened


class ExportFile:
    """A file that is written completely or not at all."""

    def __init__(self, path: PathLike, header: Header) -> None:
        self._path = Path(path)
        self._stack = contextlib.ExitStack()
        with _translated(self._path):
            self._file = self._stack.enter_context(new_file(self._path))
            self.write([header])

    def write(self, lines: Sequence[FileLine]) -> None:
        """Append these lines."""
        with _translated(self._path):
            self._file.write(_portion(lines, self._path))

    def close(self, error: BaseException | None = None) -> None:
        """Give the file its name, or remove it after an error."""
        with _translated(self._path):
            self._stack.__exit__(type(error) if error else None, error, None)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that gets its name when all of it is on disk, and never replaces another."""
    if path.exists():
        raise ConfigurationError(f"{path} already exists; name another file, or move it away")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _give_name(part, path)
    finally:
        part.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _give_name(part: Path, path: Path) -> None:
    try:
        os.link(part, path)  # unlike a rename, refuses to replace a file
    except FileExistsError:
        raise ConfigurationError(f"{path} already exists; name another file") from None
    except OSError:  # a file system without links
        part.rename(path)


def read(path: PathLike) -> Iterator[tuple[int, FileLine]]:
    """Yield the lines of a file with their numbers; raise an error for a file that is damaged.

    The torn end of an archive is skipped: see `ArchiveFile`. A torn export raises `InvalidJob`.
    """
    place = Path(path)
    kind: Kind = "export"
    ended = False
    number = 0
    with _translated(place, "name an export or an archive that may be read"):
        _check_header(place)
        for number, text in enumerate(_lines(place), start=1):
            if text is None:
                ended = False
                break
            line = _parsed(place, number, text)
            if isinstance(line, Header):
                _check_format(place, line.format)
                kind = line.kind
            ended = isinstance(line, End)
            yield number, line
    if kind == "export" and not ended:
        raise InvalidJob(
            f"{place} is incomplete: it has no end mark after line {number}; export it again"
        )


def _lines(path: Path) -> Iterator[bytes | None]:
    """Yield the complete lines of a file, and None at the end if the last one is incomplete."""
    with gzip.open(path) if _is_packed(path) else path.open("rb") as file:
        try:
            for line in file:
                if not line.endswith(b"\n"):
                    yield None
                    return
                yield line
        except EOFError:
            yield None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise InvalidJob(f"{path} is damaged: {error}; use another copy of it") from error


def _parsed(path: Path, number: int, text: bytes) -> FileLine:
    try:
        line: FileLine = _decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, ConfigurationError) as error:
        raise InvalidJob(f"{path}, line {number}: {mismatch(error, FileLine)}") from error
    return line


def _check_header(path: Path) -> None:
    """Check that a file is one of ours, before reading from it or appending to it."""
    try:
        first = next(_lines(path), None)
        header = msgspec.json.decode(first or b"", type=_Format)
    except (msgspec.MsgspecError, InvalidJob):
        raise ConfigurationError(
            f"{path} is not an export or archive of Penstock; name another file"
        ) from None
    _check_format(path, header.format)


def _check_format(path: Path, found: int) -> None:
    if found > FORMAT:
        raise ConfigurationError(
            f"{path} was written by a newer Penstock (format {found}, this one knows {FORMAT}); "
            "upgrade Penstock"
        )


def _portion(lines: Iterable[FileLine], path: Path) -> bytes:
    data = b"".join(_encode(line) + b"\n" for line in lines)
    return gzip.compress(data, mtime=0) if path.suffix == ".gz" else data


def _is_packed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == _GZIP


def _whole_members(file: BinaryIO) -> int:
    """Return where the last complete gzip member of a file ends."""
    end = start = 0
    unpacker = zlib.decompressobj(wbits=31)
    while data := file.read(_CHUNK):
        while data:
            try:
                unpacker.decompress(data)
            except zlib.error:
                return end
            start += len(data) - len(unpacker.unused_data)
            data = unpacker.unused_data
            if unpacker.eof:
                end = start
                unpacker = zlib.decompressobj(wbits=31)
    return end


def _whole_lines(file: BinaryIO) -> int:
    """Return where the last complete line of a file ends."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _CHUNK)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _translated(path: Path, advice: str = _WRITABLE) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be used: {error.strerror or error}; {advice}"
        ) from error


class Inventory:
    """The contents of a file, which was read and checked completely."""

    def __init__(self, path: PathLike) -> None:
        self._path = path
        self._check = JobValidator(sys.maxsize).check
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
                case QueueLine(queue=queue):
                    settings = msgspec.structs.asdict(queue)
                    found.queues.append(QueueSettings(**settings))
                case JobLine():
                    found._note_job(number, source, line)
                case End(last_job=last_job, last_log=last_log):
                    found._note(source, last_job, last_log)
        found._check_circles()
        return found

    @property
    def jobs(self) -> int:
        """The number of jobs; one that appears twice counts once."""
        return len(self._last)

    @property
    def origins(self) -> list[Origin]:
        """The stores that the jobs come from, with the highest ids that they have assigned."""
        return list(self._sources.values())

    def portions(self, size: int) -> Generator[tuple[Origin, list[Record]], None, None]:
        """Yield the jobs by store; of one that appears twice, the last."""
        for origin in self.origins:
            # Ids of jobs are raised only after the last portion, or no job could keep its own.
            given = replace(origin, last_job=JobId(0))
            records: Iterator[Record] = (
                line
                for number, source, line in self._lines()
                if isinstance(line, JobLine)
                and source == origin.source
                and self._last[source, line.job.id] == number
            )
            while portion := list(islice(records, size)):
                portion += self._awaited(origin.source, portion, records)
                yield given, portion

    def _awaited(
        self, source: int, portion: Sequence[Record], following: Iterator[Record]
    ) -> list[Record]:
        """Return those that follow, up to the last that an earlier one depends on."""
        more: list[Record] = []
        awaited = set().union(*(self._newer(source, record.job.id) for record in portion))
        awaited -= {record.job.id for record in portion}
        while awaited and (record := next(following, None)) is not None:
            more.append(record)
            awaited |= self._newer(source, record.job.id)
            awaited.discard(record.job.id)
        return more

    def _newer(self, source: int, job_id: JobId) -> set[JobId]:
        """Return the jobs later in the file that a job depends on."""
        found = self._needed.get((source, job_id), set()) & self._last.keys()
        return {needed for _, needed in found if needed > job_id}

    def _check_circles(self) -> None:
        try:
            TopologicalSorter(self._needed).prepare()
        except CycleError as error:
            _, job_id = error.args[1][0]
            raise InvalidJob(f"{Path(self._path)}: job {job_id} waits for itself") from error

    def _lines(self) -> Iterator[tuple[int, int, FileLine]]:
        source = 0
        for number, line in read(self._path):
            if isinstance(line, Header):
                source = line.source
                self._note(source, JobId(0), LogId(0))
            yield number, source, line

    def _note(self, source: int, last_job: JobId, last_log: LogId) -> None:
        if not (
            0 <= source <= LARGEST_INTEGER and last_job <= _HIGHEST_ID and last_log <= _HIGHEST_ID
        ):
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
            self._check(as_new_job(job))
            _check_whole(record)
        except InvalidJob as error:
            raise InvalidJob(f"{Path(self._path)}, line {number}: job {job.id}: {error}") from error
        self._note(source, job.id, job.version)
        self._last[source, job.id] = number
        self._needed.pop((source, job.id), None)  # of one that appears twice, the last counts
        if record.edges:
            open_ends = {(source, edge.needed) for edge in record.edges if not edge.resolved}
            self._needed[source, job.id] = open_ends


def _check_whole(record: Record) -> None:
    """Check that a job could come from a store."""
    job, log = record.job, record.log
    if not all(0 < number <= _HIGHEST_ID for number in (job.id, *(one.id for one in log))):
        raise InvalidJob("an id is out of range")
    if not all(one.job_id == job.id and 0 < one.needed <= _HIGHEST_ID for one in record.edges):
        raise InvalidJob("its dependencies do not match it")
    if not 0 <= job.attempt <= _HIGHEST_ID:
        raise InvalidJob("its attempt is out of range")
    times = (job.enqueued_at, job.run_at, job.started_at, job.finished_at)
    if any(at is not None and at.tzinfo is None for at in (*times, *(one.at for one in log))):
        raise InvalidJob("a time has no time zone")
    if job.state.final is (job.finished_at is None):
        raise InvalidJob(f"it is {job.state}, which does not match its finished_at")
    if not log or log[0].event is not Event.ENQUEUED or log[-1].id != job.version:
        raise InvalidJob("its log is incomplete")
    if log[-1].state is not job.state or [one.id for one in log] != sorted({o.id for o in log}):
        raise InvalidJob("its log does not match its state")


async def new_header(connection: Connection, kind: Kind) -> Header:
    """Return the header of a file that is written now."""
    origin = await connection.store.origin()
    return Header(kind=kind, source=origin.source, at=from_micros(connection.clock()))


async def in_thread(runtime: Runtime, function: Callable[..., T], *arguments: object) -> T:
    """Call a function that reads or writes files, in a thread if an event loop runs."""
    loop = running_loop()
    if loop is None:
        return function(*arguments)
    executor = runtime.executor(1, "penstock-files")
    try:
        call = partial(function, *arguments)
        return await loop.run_in_executor(executor, call)
    finally:
        executor.shutdown(wait=False)
