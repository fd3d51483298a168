"""Tables of an application beside the jobs: what a store lets it do in one transaction."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

import msgspec

Dialect = Literal["sqlite", "postgres"]


class Tables(msgspec.Struct, frozen=True, kw_only=True):
    """The tables of an application: numbered steps of SQL for each database, the first is 1.

    A step never changes once it was released; what is to be different is a further step.
    """

    sqlite: tuple[str, ...]
    postgres: tuple[str, ...]


class Cursor(Protocol):
    """What a statement comes to."""

    @property
    def rowcount(self) -> int:
        """How many rows it changed."""
        ...

    def fetchone(self) -> Any:
        """The next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """The rows that are left."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """The rows that are left, one by one."""
        ...


class Statements(Protocol):
    """Runs SQL in the database of the store; a `?` marks a parameter, whichever it is."""

    @property
    def dialect(self) -> Dialect:
        """Which database it is."""
        ...

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Cursor:
        """Run a statement."""
        ...


class Within(Statements, Protocol):
    """A transaction of the store that an application writes in; jobs join it as `connection`."""

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]]) -> None:
        """Run a statement with each of these."""
        ...
