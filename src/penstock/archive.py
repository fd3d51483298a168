"""Jobs in files: one JSON line each, with its log; packed if the name ends in `.gz`.

A file begins with a header and is written by portions, each on disk before the next. A portion of
a packed file is a gzip member of its own, so that the last one can be cut off if it is torn.
"""

import contextlib
import gzip
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from penstock.core.errors import ConfigurationError, InvalidJob
from penstock.core.job import JobId, LogId, Queue, Record
from penstock.core.mismatch import mismatch

FORMAT = 2
"""The second also says what a job waits for; files of the first are read as they are."""
_GZIP = b"\x1f\x8b"
_CHUNK = 1 << 20

Kind = Literal["export", "archive"]
_WRITABLE = "name a file in a folder that exists and may be written"


class Header(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="penstock"):
    """The first line: what follows, and of which store. Appending to an archive adds another."""

    format: int = FORMAT
    kind: Kind
    source: int
    at: datetime


class QueueLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="queue"):
    """A queue with its settings."""

    queue: Queue


class JobLine(Record, frozen=True, kw_only=True, tag_field="line", tag="job"):
    """A job with its log and the jobs it waits for."""


class End(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="end"):
    """The last line of an export: a file without it was cut off."""

    jobs: int
    last_job: JobId
    last_log: LogId


Line = Header | QueueLine | JobLine | End

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Line).decode


class _Format(msgspec.Struct):
    """What every format has in its first line, whatever else it has."""

    line: Literal["penstock"]
    format: int


class Archive:
    """A file that finished jobs are written to before they are removed; it is made when needed.

    An archive that exists is continued. What a kill left unfinished at its end is cut off: the
    jobs in it were not removed.
    """

    def __init__(self, path: str | os.PathLike[str], header: Header) -> None:
        self._path = Path(path)
        self._header = header
        self._file: BinaryIO | None = None

    def write(self, records: Iterable[Record]) -> None:
        """Append these jobs; they are on disk when it returns."""
        lines = [JobLine(job=record.job, log=record.log, edges=record.edges) for record in records]
        with _translated(self._path):
            if self._file is None:
                self._file = self._open()
            self._file.write(_portion(lines, self._path))
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()

    def _open(self) -> BinaryIO:
        if not self._path.exists():
            # Under its name only when it is whole: an archive always begins with its header.
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


class Export:
    """A file that is written from the beginning to the end, or not at all."""

    def __init__(self, path: str | os.PathLike[str], header: Header) -> None:
        self._path = Path(path)
        self._stack = contextlib.ExitStack()
        with _translated(self._path):
            self._file = self._stack.enter_context(new_file(self._path))
            self.write([header])

    def write(self, lines: Sequence[Line]) -> None:
        """Append these lines."""
        with _translated(self._path):
            self._file.write(_portion(lines, self._path))

    def close(self, error: BaseException | None = None) -> None:
        """Give the file its name; after an error, leave nothing of it."""
        with _translated(self._path):
            self._stack.__exit__(type(error) if error else None, error, None)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file that gets its name when all of it is on disk; never over another one."""
    if path.exists():
        raise ConfigurationError(f"{path} is there already; name another file, or move it away")
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
        os.link(part, path)  # unlike a rename, refuses to replace
    except FileExistsError:
        raise ConfigurationError(f"{path} is there already; name another file") from None
    except OSError:  # a file system without links
        part.rename(path)


def read(path: str | os.PathLike[str]) -> Iterator[tuple[int, Line]]:
    """The lines of a file, each with its number; raises for a file that cannot be trusted.

    The torn end of an archive is passed over: see `Archive`. A torn export raises `InvalidJob`.
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
            f"{place} was cut off after line {number}: its last line is missing; export it again"
        )


def _lines(path: Path) -> Iterator[bytes | None]:
    """The whole lines of a file, and None at the end if there is half a one."""
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


def _parsed(path: Path, number: int, text: bytes) -> Line:
    try:
        line: Line = _decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, ConfigurationError) as error:
        raise InvalidJob(f"{path}, line {number}: {mismatch(error, Line)}") from error
    return line


def _check_header(path: Path) -> None:
    """Whether a file is one of ours, before anything is read from it or appended to it."""
    try:
        first = next(_lines(path), None)
        header = msgspec.json.decode(first or b"", type=_Format)
    except (msgspec.MsgspecError, InvalidJob):
        raise ConfigurationError(
            f"{path} is not a file with jobs of Penstock; name another file"
        ) from None
    _check_format(path, header.format)


def _check_format(path: Path, found: int) -> None:
    if found > FORMAT:
        raise ConfigurationError(
            f"{path} was written by a newer Penstock (format {found}, this one knows {FORMAT}); "
            "upgrade Penstock"
        )


def _portion(lines: Iterable[Line], path: Path) -> bytes:
    data = b"".join(_encode(line) + b"\n" for line in lines)
    return gzip.compress(data, mtime=0) if path.suffix == ".gz" else data


def _is_packed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == _GZIP


def _whole_members(file: BinaryIO) -> int:
    """Where the last complete gzip member of a file ends."""
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
    """Where the last complete line of a file ends."""
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
