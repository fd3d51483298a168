"""One writer per process: group commit, and what to do when the server goes away.

A transaction knows its number before it commits. When the connection is lost at that very
moment, the next one asks the server what became of it: so nothing is ever written twice.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter

import psycopg
from psycopg import errors

from penstock.core.errors import StoreUnavailable
from penstock.core.store import Clock
from penstock.stores.postgres.arriving import link
from penstock.stores.postgres.connection import DAY, Address, connect, translate
from penstock.stores.postgres.transaction import Connection, Mode, NeedsAlone, PostgresTransaction
from penstock.stores.sql.writer import Request, Writer

_log = logging.getLogger(__name__)

# Transactions that met others in the wrong moment are tried again, this often.
_TRIES = 10
_COLLISIONS = (errors.SerializationFailure, errors.DeadlockDetected)
# How long to ask what became of a transaction, when the connection was lost at its commit.
_DOUBT = 30.0
_LOOK = 0.1


class PostgresWriter(Writer):
    """Runs write verbs on one connection, which is opened anew when it is lost."""

    def __init__(
        self,
        where: Address,
        sql: Mapping[str, str],
        clock: Clock | None,
        modes: Mapping[str, Mode],
        committed: Callable[[PostgresTransaction], None],
    ) -> None:
        super().__init__(where.name)
        self._where = where
        self._sql = sql
        self._clock = clock
        self._modes = modes
        self._committed = committed
        self._connection: Connection | None = None
        self._room = 0
        # How far the server's clock is ahead of this machine's.
        self.ahead = 0
        # What rings is told apart from what others ring: see `Bell`.
        self._ring = b""

    def rings_as(self, name: str) -> None:
        """Tell others of commits, under this name; without one, they have to look themselves."""
        self._ring = f"SELECT pg_notify('{self._where.schema}', '{name}'); ".encode()

    def _let_go(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _commit_all(self, requests: Sequence[Request]) -> None:
        for mode, group in groupby(requests, key=self._mode):
            members = list(group)
            try:
                self._commit(members, mode)
            except Exception as error:  # noqa: BLE001 - every caller must be answered
                if len(members) == 1:
                    members[0].answer = self._translated(error)
                else:  # one of them is the cause: let it fail alone
                    for request in members:
                        self._commit_one(request, mode)

    def _commit_one(self, request: Request, mode: Mode) -> None:
        try:
            self._commit([request], mode)
        except Exception as error:  # noqa: BLE001 - every caller must be answered
            request.answer = self._translated(error)

    def _mode(self, request: Request) -> Mode:
        return self._modes.get(request.verb.__name__, Mode.ALONE)

    def _translated(self, error: Exception) -> Exception:
        if isinstance(error, psycopg.Error):
            translation = translate(error, self.name)
            translation.__cause__ = error
            return translation
        return error

    def _commit(self, requests: Sequence[Request], mode: Mode) -> None:
        """Do these requests in one transaction, which is tried again as long as that may help."""
        for n in range(_TRIES):
            try:
                transaction = self._attempt(requests, mode)
            except NeedsAlone:
                mode = Mode.ALONE
            except psycopg.Error as error:
                if not self._may_help(error, n):
                    raise
            else:
                if transaction.written:
                    self._follow_up(transaction)
                return

    def _may_help(self, error: psycopg.Error, n: int) -> bool:
        """Whether to try a transaction again that came to nothing, for the n-th time."""
        if isinstance(error, _COLLISIONS):
            return n < _TRIES - 1
        if isinstance(error, errors.CheckViolation) and "no partition" in str(error):
            self._room = 0
            return n < _TRIES - 1
        # When the connection was lost before the commit, all of it can be done again.
        return isinstance(error, psycopg.OperationalError) and not self._is_alive() and n < 1

    def _is_alive(self) -> bool:
        if self._connection is None:
            return False
        if self._connection.broken or self._connection.closed:
            self._connection.close()
            self._connection = None
            return False
        return True

    def _open(self) -> Connection:
        if self._connection is None or not self._is_alive():
            self._connection = connect(self._where)
        return self._connection

    def _attempt(self, requests: Sequence[Request], mode: Mode) -> PostgresTransaction:
        connection = self._open()
        transaction, number = self._begin(connection, mode)
        try:
            if mode is Mode.ALONE:
                link(transaction)
            for verb, group in groupby(requests, key=attrgetter("verb")):
                members = list(group)
                answers = verb(transaction, [request.call for request in members])
                for request, answer in zip(members, answers, strict=True):
                    request.answer = answer
            if not transaction.written:
                connection.execute(b"ROLLBACK", prepare=False)
        except BaseException:
            if not connection.closed and not connection.broken:
                connection.execute(b"ROLLBACK", prepare=False)
            raise
        if transaction.written:
            self._end(connection, number, transaction)
        return transaction

    def _begin(self, connection: Connection, mode: Mode) -> tuple[PostgresTransaction, str]:
        cursor = connection.execute(
            b"BEGIN; SELECT %s.enter(%d), pg_current_xact_id()"
            % (self._where.schema.encode(), mode),
            prepare=False,
        )
        cursor.nextset()
        at, number = cursor.fetchall()[0]
        self.ahead = at - time.time_ns() // 1000
        now = at if self._clock is None else self._clock()
        if now // DAY >= self._room:
            connection.execute(b"ROLLBACK", prepare=False)
            self._make_room(connection, now // DAY)
            return self._begin(connection, mode)
        return PostgresTransaction(connection, self._sql, self._where.schema, now, mode), number

    def _make_room(self, connection: Connection, day: int) -> None:
        """Have tables for this day and the next; transactions of others may go on past midnight."""
        for one in (day, day + 1):
            connection.execute(self._sql["make_room"], (one,))
        self._room = day + 1

    def _end(self, connection: Connection, number: str, transaction: PostgresTransaction) -> None:
        ring = self._ring if transaction.ring_others else b""
        try:
            connection.execute(ring + b"COMMIT", prepare=False)
        except psycopg.OperationalError:
            if self._is_alive():
                raise
            if not self._has_committed(number):
                raise

    def _has_committed(self, number: str) -> bool:
        """What became of a transaction whose connection was lost at its commit."""
        deadline = time.monotonic() + _DOUBT
        while True:
            try:
                row = self._open().execute("SELECT pg_xact_status($1::xid8)", (number,)).fetchone()
            except psycopg.Error:
                status = None
            else:
                status = row[0] if row else None
                if status in {"committed", "aborted"}:
                    return bool(status == "committed")
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"{self.name}: the connection was lost at a commit, and nobody says what "
                    "became of it; what was asked for may or may not be stored"
                )
            time.sleep(_LOOK)

    def _follow_up(self, transaction: PostgresTransaction) -> None:
        """What follows a commit; it must not make a failure of it."""
        try:
            self._committed(transaction)
        except Exception:  # noqa: BLE001 - workers look by themselves
            _log.exception("after a commit to %s", self.name)
