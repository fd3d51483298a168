"""Tables: `Penstock.tables`, an application's own tables in the database of the store."""

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.core.errors import ConfigurationError
from penstock.core.job import Job, JobId, NewJob
from penstock.core.tables import Cursor, Dialect, Mirror, Statements, Tables, Within
from penstock.engine.connection import Connection
from penstock.engine.limits import Limits
from penstock.engine.sync_calls import SyncTables
from penstock.engine.validation import check_identifier, check_name

if TYPE_CHECKING:
    from penstock.engine.penstock import Penstock

T = TypeVar("T")


class OwnTables:
    """The tables of an application, next to the jobs.

    All calls raise `ConfigurationError` on a store without a database.
    """

    def __init__(self, connection: Connection, limits: Limits) -> None:
        self._connection = connection
        self._limits = limits

    @property
    def sync(self) -> SyncTables:
        """The same calls from synchronous code, without `await`."""
        return SyncTables(self)

    async def prepare(self, name: str, steps: Tables) -> None:
        """Create tables of yours in the store's database, or bring them up to date.

        Each step is taken once, however many processes start at the same time.
        """
        check_name("name of tables", name)
        await self._connection.tables.prepare_tables(name, steps)
        if self._limits.reserving:
            await self._limits.store_reserved()

    async def read(self, work: Callable[[Statements], T]) -> T:
        """Run `work`, which only reads; all its statements see the store at one moment."""
        return await self._connection.tables.read(work)

    async def mirror(self, mirror: Mirror) -> None:
        """Update rows of yours with the jobs of a queue, in the transactions that change them.

        The mirror stays in the database, for every program that changes a job there, and replaces
        one of the same name. Existing jobs are mirrored with their next change.
        """
        check_identifier("mirror", mirror.name)
        check_name("queue", mirror.queue)
        await self._connection.tables.add_mirror(mirror)


class Transaction:
    """A transaction in the database of the store, for your own tables and for jobs.

    `Penstock.transaction` creates it. It can be passed as any `connection`.
    """

    def __init__(self, penstock: "Penstock", within: Within) -> None:
        self._penstock = penstock
        self.within = within

    @property
    def dialect(self) -> Dialect:
        """Which database it is: `sqlite` or `postgres`."""
        return self.within.dialect

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Cursor:
        """Execute a statement; `?` marks a parameter in either database."""
        return self.within.execute(sql, parameters)

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]]) -> None:
        """Execute a statement with each of these parameters."""
        self.within.executemany(sql, parameters)

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Job]:
        """Store jobs in this transaction; see `Penstock.enqueue_many`."""
        return _at_once(self._penstock.enqueue_many(jobs, connection=self))

    def supersede(self, job_id: int, *, by: int) -> bool:
        """Replace a pending job, which becomes superseded, by a job of this transaction.

        Jobs that depend on it depend on the other then. Returns False, and changes nothing, if it
        is no longer pending.
        """
        own = self._penstock.connection
        return _at_once(
            own.tables.supersede(JobId(job_id), JobId(by), actor=own.actor, connection=self.within)
        )


def _at_once(call: Coroutine[Any, Any, T]) -> T:
    """Return the answer to a call that never waits, because this is the thread that writes."""
    try:
        call.send(None)
    except StopIteration as answer:
        return answer.value  # type: ignore[no-any-return] # a coroutine's own result
    raise AssertionError("the call has waited")


def joined(connection: Any) -> Any:
    """Return the connection that a store knows: that of a `Transaction` or inside one of Django."""
    if isinstance(connection, Transaction):
        return connection.within
    # Not imported: a program that passes such a connection has imported Django.
    if any(kind.__module__.partition(".")[0] == "django" for kind in type(connection).__mro__):
        return _of_django(connection)
    return connection


def _of_django(connection: Any) -> Any:
    """Return the driver's connection inside `django.db.connection`, or one of `connections`."""
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
