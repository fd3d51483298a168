"""Tables of your own beside the jobs: the part of `Penstock` that works on them."""

from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from typing import Any, TypeVar

from penstock.checks import check_name
from penstock.core.errors import ConfigurationError
from penstock.core.job import Job, JobId, NewJob
from penstock.core.tables import Cursor, Dialect, Statements, Tables, Within
from penstock.opening import Opened

T = TypeVar("T")


class Transaction:
    """A transaction in the database of the store, for your own tables and for jobs.

    Made by `Penstock.transact`. It is a `connection` wherever one is asked for.
    """

    def __init__(self, penstock: "OwnTables", within: Within) -> None:
        self._penstock = penstock
        self.within = within

    @property
    def dialect(self) -> Dialect:
        """Which database it is: `sqlite` or `postgres`."""
        return self.within.dialect

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Cursor:
        """Run a statement; a `?` marks a parameter, whichever database it is."""
        return self.within.execute(sql, parameters)

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]]) -> None:
        """Run a statement with each of these."""
        self.within.executemany(sql, parameters)

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Job]:
        """Store jobs in this transaction; see `Penstock.enqueue_many`."""
        return _at_once(self._penstock.enqueue_many(jobs, connection=self))

    def supersede(self, job_id: int, *, by: int) -> bool:
        """Let a job of this transaction take the place of a pending one, which is superseded.

        Who waits for that one waits for the other. False, with nothing changed, if it is not
        pending any more.
        """
        penstock = self._penstock
        return _at_once(
            penstock.store.supersede(
                JobId(job_id), JobId(by), actor=penstock.actor, connection=self.within
            )
        )


def _at_once(call: Coroutine[Any, Any, T]) -> T:
    """The answer to a call that never waits, because this is the thread that writes."""
    try:
        call.send(None)
    except StopIteration as answer:
        return answer.value  # type: ignore[no-any-return] # a coroutine's own result
    raise AssertionError("it has waited")


class OwnTables(Opened):
    """The part of `Penstock` that runs SQL of yours in the database of the store."""

    def enqueue_many(
        self, jobs: Sequence[NewJob], *, connection: Any = None
    ) -> Coroutine[Any, Any, list[Job]]:
        """Store jobs."""
        raise NotImplementedError  # Penstock has it

    async def transact(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in one transaction of the store's database; durable on return.

        What several callers ask for at once shares a commit. When `work` raises, all that it has
        written is undone. It runs in another thread, may be run again, and must have no effects
        but those of its statements. Raises `ConfigurationError` on a store without a database.
        """
        # What `context()` and the log's actor go by comes along into that thread.
        context = copy_context()
        return await self.store.transact(
            lambda within: context.run(work, Transaction(self, within))
        )

    async def read(self, work: Callable[[Statements], T]) -> T:
        """Run `work`, which only reads; all its statements see the store at one moment."""
        return await self.store.read(work)

    async def tables(self, name: str, steps: Tables) -> None:
        """Make tables of yours in the store's database, or bring them up to date.

        Steps that were taken before are left out, however many processes start at once.
        """
        check_name("name of tables", name)
        await self.store.prepare(name, steps)


def joined(connection: Any) -> Any:
    """What a store knows a connection as: a `Transaction`'s own, or that inside one of Django."""
    if isinstance(connection, Transaction):
        return connection.within
    # Not imported: a program that passes such a connection has imported Django.
    if any(kind.__module__.partition(".")[0] == "django" for kind in type(connection).__mro__):
        return _of_django(connection)
    return connection


def _of_django(connection: Any) -> Any:
    """The driver's connection inside `django.db.connection`, or one of `connections`."""
    if not hasattr(connection, "autocommit"):
        raise ConfigurationError(
            "pass django.db.connection or one of django.db.connections as connection, not a "
            f"{type(connection).__name__}"
        )
    # Attributes, not get_autocommit(), which connects and is refused while an event loop runs.
    if connection.connection is None or connection.autocommit:
        raise ConfigurationError(
            "the Django connection is in autocommit mode: enqueue inside transaction.atomic()"
        )
    return connection.connection
