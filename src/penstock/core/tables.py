"""An application's own tables in the database of a store."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

import msgspec

Dialect = Literal["sqlite", "postgres"]


class Tables(msgspec.Struct, frozen=True, kw_only=True):
    """The schema of an application: SQL steps for each database, numbered from 1.

    A released step never changes; a change is a further step.
    """

    sqlite: tuple[str, ...]
    postgres: tuple[str, ...]


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """How many rows the statement changed."""
        ...

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """Return the remaining rows."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the remaining rows."""
        ...


class Statements(Protocol):
    """Runs SQL in the database of a store; `?` marks a parameter in every dialect."""

    @property
    def dialect(self) -> Dialect:
        """The dialect of the database."""
        ...

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Cursor:
        """Run a statement and return its result."""
        ...


class Within(Statements, Protocol):
    """A transaction of the store for an application; pass it as `connection` to add jobs to it."""

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]]) -> None:
        """Run a statement once with each of these sequences of parameters."""
        ...


class Mirror(msgspec.Struct, frozen=True, kw_only=True):
    """One SQL statement that the database runs with every change of a job of one queue.

    It runs inside the transaction of the change, whichever program makes it, and refers to the
    changed job as `NEW`: `NEW.id`, `NEW.stage` (0 ready, 1 scheduled, 2 blocked, 3 running, 4 done,
    5 failed, 6 cancelled, 7 superseded), `NEW.attempt`, `NEW.token`, `NEW.worker`, `NEW.priority`,
    `NEW.run_at`, `NEW.started_at`, `NEW.expires_at`, `NEW.finished_at` (microseconds since 1970),
    `NEW.error`. If the statement fails, so does the change.

    `removed` runs when a job is removed, and refers to it as `OLD`.
    """

    name: str
    queue: str
    sqlite: str
    postgres: str
    removed: str | None = None


WATCHED = (
    "stage", "version", "attempt", "token", "run_at", "started_at", "expires_at", "finished_at",
    "worker", "priority", "error",
)  # fmt: skip
"""The columns of a job whose changes run a mirror."""


def quoted(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"
