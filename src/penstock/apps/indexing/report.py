"""What an indexing job says: how far it is, and what it came to."""

from typing import Protocol

import msgspec


class NothingIndexed(Exception):
    """The job came to nothing, and would again; the message says why."""


class NotVerified(Exception):
    """The collection does not hold what it should; another attempt makes it anew."""


class Report(msgspec.Struct, kw_only=True):
    """What a job came to."""

    files_total: int = 0
    files_indexed: int = 0
    files_unchanged: int = 0
    files_deleted: int = 0
    files_skipped: int = 0
    skipped: dict[str, int] = {}
    """How many files were skipped for each reason."""
    examples: list[tuple[str, str]] = []
    """Some of them, each with its reason."""
    chunks_created: int = 0
    chunks_removed: int = 0
    total_chunks: int = 0
    """Of the folder, when the job had ended."""


class Observer(Protocol):
    """Who is told how far a job is."""

    def progress(self, report: Report, done: int, path: str) -> None:
        """So many files are behind it, this one the last."""
        ...

    def checkpoint(self, after: str, report: Report) -> None:
        """All files up to this path are in the collection for good."""
        ...
