"""Statements of applications, on their own tables in the database of a store."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.core.errors import StoreError
from penstock.core.tables import Cursor, Dialect, Tables
from penstock.stores.sql import seals
from penstock.stores.sql.transaction import Reading, Transaction

T = TypeVar("T")


class Spoken:
    """Runs the statements of an application."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    @property
    def dialect(self) -> Dialect:
        """See `Statements.dialect`."""
        return self._reading.dialect

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Cursor:
        """See `Statements.execute`."""
        return self._reading.speak(sql, parameters)


class Joined(Spoken):
    """A transaction of ours that an application writes in."""

    def __init__(self, tx: Transaction) -> None:
        super().__init__(tx)
        self.tx = tx
        # What no statement after it can mend, whether the application has passed it on or not.
        self.broken: Exception | None = None

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Cursor:
        """See `Statements.execute`."""
        return self.guarded(lambda: self.tx.speak(sql, parameters))

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]]) -> None:
        """See `Within.executemany`."""
        self.guarded(lambda: self.tx.speak_each(sql, parameters))

    def guarded(self, do: Callable[[], T]) -> T:
        """Do it, and remember if it has broken the transaction."""
        try:
            return do()
        except Exception as error:
            if self.tx.is_broken_by(error):
                self.broken = error
            raise


Work = Callable[[Joined], Any]


def transact(tx: Transaction, works: Sequence[Work]) -> list[Any]:
    """Do each of these; what one raises is its answer, and undoes what it has written."""
    seals.check_open(tx)
    tx.written = True
    return [tx.shelter(lambda work=work: _whole(tx, work)) for work in works]  # type: ignore[misc] # bound at once


def _whole(tx: Transaction, work: Work) -> Any:
    joined = Joined(tx)
    answer = work(joined)
    if joined.broken is not None:
        raise joined.broken
    return answer


def prepare(tx: Transaction, calls: Sequence[tuple[str, Tables]]) -> list[None]:
    """Bring the tables of applications up to date."""
    for name, tables in calls:
        _prepare(tx, f"tables:{name}", getattr(tables, tx.dialect))
    return [None] * len(calls)


def is_prepared(reading: Reading, name: str, tables: Tables) -> bool:
    """Whether nothing is left to do; it spares every start a transaction that writes."""
    return _step(reading, f"tables:{name}") == len(getattr(tables, reading.dialect))


def _prepare(tx: Transaction, name: str, steps: Sequence[str]) -> None:
    found = _step(tx, name)
    if found > len(steps):
        raise StoreError(
            f"{name} were written by a newer Penstock (step {found}, this one knows "
            f"{len(steps)}); upgrade Penstock"
        )
    for step in steps[found:]:
        tx.run_script(step)
    tx.execute("set_meta", (name, len(steps)))
    tx.written = True


def _step(reading: Reading, name: str) -> int:
    row = reading.execute("meta", (name,)).fetchone()
    return 0 if row is None else int(row[0])
