"""Statements of applications, on their own tables in the database of a store."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.core.errors import StoreError
from penstock.core.tables import Cursor, Dialect, Statements, Tables
from penstock.stores.sql import migration_lock
from penstock.stores.sql.database import Reader, Transaction, Verb

A = TypeVar("A")
C = TypeVar("C")
T = TypeVar("T")


class ApplicationReader:
    """Runs statements of an application; see `Statements`."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    @property
    def dialect(self) -> Dialect:
        """See `Statements.dialect`."""
        return self._reader.dialect

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Cursor:
        """See `Statements.execute`."""
        return self._reader.execute_sql(sql, parameters)


class ApplicationTransaction(ApplicationReader):
    """A transaction of the store that an application writes in; see `Within`."""

    def __init__(self, tx: Transaction) -> None:
        super().__init__(tx)
        self._tx = tx
        # An error that no later statement can mend, even if the application swallowed it.
        self.broken: Exception | None = None

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Cursor:
        """See `Statements.execute`."""
        return self._guarded(lambda: self._tx.execute_sql(sql, parameters))

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]]) -> None:
        """See `Within.executemany`."""
        self._guarded(lambda: self._tx.executemany_sql(sql, parameters))

    def run(self, verb: Verb[C, A], call: C) -> A:
        """Run a verb of the store as a part of this transaction."""
        return self._guarded(lambda: answered(verb(self._tx, [call])))

    def _guarded(self, work: Callable[[], T]) -> T:
        """Do the work, and remember an error that breaks the transaction."""
        try:
            return work()
        except Exception as error:
            if self._tx.is_broken_by(error):
                self.broken = error
            raise


Work = Callable[[ApplicationTransaction], Any]


def transact(tx: Transaction, works: Sequence[Work]) -> list[Any]:
    """See `TableStore.transact`; what one of these raises is its answer and undoes its writes."""
    migration_lock.check_open(tx)
    tx.written = True
    return [tx.protect(lambda work=work: _transact_one(tx, work)) for work in works]  # type: ignore[misc] # bound at once


def _transact_one(tx: Transaction, work: Work) -> Any:
    transaction = ApplicationTransaction(tx)
    answer = work(transaction)
    if transaction.broken is not None:
        raise transaction.broken
    return answer


def read(reader: Reader, work: Callable[[Statements], T]) -> T:
    """See `TableStore.read`."""
    with reader.snapshot():
        return work(ApplicationReader(reader))


def prepare(tx: Transaction, calls: Sequence[tuple[str, Tables]]) -> list[None]:
    """See `TableStore.prepare_tables`."""
    for name, tables in calls:
        _prepare_one(tx, f"tables:{name}", getattr(tables, tx.dialect))
    return [None] * len(calls)


def is_prepared(reader: Reader, name: str, tables: Tables) -> bool:
    """Return whether the tables are up to date; saves every start a write transaction."""
    return _step(reader, f"tables:{name}") == len(getattr(tables, reader.dialect))


def answered(answers: Sequence[A | Exception]) -> A:
    """Return or raise the answer to the only call of a verb."""
    (answer,) = answers
    if isinstance(answer, Exception):
        raise answer
    return answer


def _prepare_one(tx: Transaction, name: str, steps: Sequence[str]) -> None:
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


def _step(reader: Reader, name: str) -> int:
    row = reader.execute("meta", (name,)).fetchone()
    return 0 if row is None else int(row[0])
