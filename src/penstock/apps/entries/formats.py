"""Entries in files: which formats there are, what is read from one, and what is written.

A file is read record by record, and written entry by entry; neither is ever in memory as a whole.
What is wrong with a single record is told with its line, and the next one is read.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import IO, Any, NamedTuple, Protocol

from penstock.apps.entries.entrytypes import EntryType

OWN = ("id", "entity_type", "category_code")
"""What a record has beside its data; in a table, these columns come first."""
TOLD = ("embedding_status", "version", "created_at", "updated_at")
"""What an export also tells. An import ignores it: every entry that it stores is pending."""
FORMATS = ("csv", "jsonl", "xlsx")
_SUFFIXES = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".tsv": "csv",
    ".txt": "csv",
    ".xlsx": "xlsx",
}


class UnreadableFile(Exception):
    """A file that cannot be read as a whole: where, and why."""

    def __init__(self, why: str, line: int | None = None) -> None:
        super().__init__(why if line is None else f"line {line}: {why}")


class Unwritable(Exception):
    """An entry that a format has no place for."""


class Record(NamedTuple):
    """What a file says of one entry, and where."""

    line: int
    id: str | None
    entity_type: str | None
    category_code: str | None
    data: Mapping[str, Any]


class BadRecord(NamedTuple):
    """A record that cannot be stored, and why."""

    line: int
    error: str


class Exported(NamedTuple):
    """An entry as it goes into a file; instants are text."""

    id: str
    entity_type: str
    category_code: str
    data: Mapping[str, Any]
    embedding_status: str
    version: int
    created_at: str
    updated_at: str


class Types(Protocol):
    """The types of entries that records may have."""

    def __iter__(self) -> Iterator[EntryType]:
        """All of them."""
        ...

    def get(self, name: str) -> EntryType:
        """That of a name; raises `InvalidEntry`."""
        ...


class Writer(Protocol):
    """Writes entries to a file."""

    def write(self, entry: Exported) -> None:
        """Add an entry; raises `Unwritable`."""
        ...

    def close(self) -> None:
        """Finish the file; it stays open."""
        ...

    def discard(self) -> None:
        """Write no more."""
        ...


def format_of(name: str) -> str:
    """The format of a file by its name; raises `UnreadableFile`."""
    suffix = PurePath(name).suffix.lower()
    if suffix not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise UnreadableFile(f"{PurePath(name).name!r:.200} ends with none of {known}")
    return _SUFFIXES[suffix]


def read(
    file: IO[bytes], kind: str, types: Types, *, entity_type: str | None = None
) -> Iterator[Record | BadRecord]:
    """The records of a file; `entity_type` is for those that name none.

    Raises `UnreadableFile` for a file of another kind, or with columns that no type has.
    """
    if kind == "jsonl":
        from penstock.apps.entries.lines import read_lines

        return read_lines(file)
    if kind == "xlsx":
        from penstock.apps.entries.sheets import read_sheet

        return read_sheet(file, types, entity_type)
    if kind == "csv":
        from penstock.apps.entries.delimited import read_delimited

        return read_delimited(file, types, entity_type)
    raise UnreadableFile(f"there is no format {kind!r:.80}; known are {', '.join(FORMATS)}")


@contextmanager
def writing(file: IO[bytes], kind: str, types: Sequence[EntryType]) -> Iterator[Writer]:
    """Writes entries of these types; a table has a column for each of their fields."""
    to = _writer(file, kind, types)
    try:
        yield to
    except BaseException:
        to.discard()
        raise
    to.close()


def _writer(file: IO[bytes], kind: str, types: Sequence[EntryType]) -> Writer:
    if kind == "jsonl":
        from penstock.apps.entries.lines import LinesWriter

        return LinesWriter(file)
    if kind == "xlsx":
        from penstock.apps.entries.sheets import SheetWriter

        return SheetWriter(file, types)
    if kind == "csv":
        from penstock.apps.entries.delimited import DelimitedWriter

        return DelimitedWriter(file, types)
    raise UnreadableFile(f"there is no format {kind!r:.80}; known are {', '.join(FORMATS)}")
