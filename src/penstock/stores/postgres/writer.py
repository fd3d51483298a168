"""One writer per process: group commit, and what to do when the server goes away.

A transaction knows its number before it commits. When the connection is lost at that very
moment, the next one asks the server what became of it: so nothing is ever written twice.

A server that has crashed gives numbers out again that it had not yet written down: what it then
says of a number may be about another transaction. Each life of the server has a number, too. When
that has changed, a commit is believed only if the log has its entries.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus

from penstock.core.errors import StoreUnavailable
from penstock.core.store import Clock
from penstock.stores.postgres.arriving import link
from penstock.stores.postgres.connection import DAY, Address, begin, connect, translate
from penstock.stores.postgres.transaction import Connection, Mode, NeedsAlone, PostgresTransaction
from penstock.stores.sql.writer import Request, Verb, Writer

_log = logging.getLogger(__name__)

# Transactions that met others in the wrong moment are tried again, this often.
_TRIES = 10
_COLLISIONS = (errors.SerializationFailure, errors.DeadlockDetected)
_LONELY = 0.2
# How long to ask what became of a transaction, when the connection was lost at its commit.
_DOUBT = 30.0
_LOOK = 0.1


class InDoubt(StoreUnavailable):
    """Nobody says whether a transaction was committed: it must not be done again from here."""


class PostgresWriter(Writer):
    """Runs write verbs on one connection, which is opened anew when it is lost."""

    def __init__(
        self,
        where: Address,
        sql: Mapping[str, str],
        clock: Clock | None,
        modes: Mapping[Verb[Any, Any], Mode],
        committed: Callable[[PostgresTransaction], None],
    ) -> None:
        super().__init__(where.name)
        self._where = where
        self._sql = sql
        self._clock = clock
        self._modes = modes
        # Verbs that had to be alone a moment ago will have to be again.
        self._lonely: dict[Verb[Any, Any], float] = {}
        self._committed = committed
        self._beginning = begin(where) + b"SELECT %s.enter(" % where.schema.encode()
        self._connection: Connection | None = None
        self._life = 0
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
        # One commit for what a worker asks at once, if one part of it has to be alone.
        for _, group in groupby(requests, key=self._goes_beside):
            members = list(group)
            mode = max(map(self._mode, members))
            try:
                self._commit(members, mode)
            except InDoubt as error:
                for request in members:
                    request.answer = error
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
        verb = request.verb
        if self._lonely.get(verb, 0.0) > time.monotonic():
            return Mode.ALONE
        return self._modes.get(verb, Mode.ALONE)

    def _goes_beside(self, request: Request) -> bool:
        return self._mode(request) is Mode.BESIDE

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
                lonely = time.monotonic() + _LONELY
                self._lonely.update((request.verb, lonely) for request in requests)
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
        # When the connection was lost before the commit, all of it can be done again. The server
        # ends that of a process which stood still in a transaction: not an OperationalError.
        return not self._is_alive() and n < 1

    def _is_alive(self) -> bool:
        """Whether there is a connection for another transaction; lets go of one that is not."""
        if self._connection is None:
            return False
        # The driver may give up in the middle of a command and still call its connection open.
        if self._connection.pgconn.transaction_status != TransactionStatus.IDLE:
            self._connection.close()
            self._connection = None
            return False
        return True

    def _open(self) -> Connection:
        if self._connection is None or not self._is_alive():
            connection = connect(self._where)
            try:
                (self._life,) = connection.execute(self._sql["life"]).fetchone() or (0,)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
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
            self._beginning + b"%d), pg_current_xact_id()" % mode, prepare=False
        )
        while cursor.nextset():
            pass
        at, number = cursor.fetchall()[0]
        self.ahead = at - time.time_ns() // 1000
        now = at if self._clock is None else self._clock()
        if now // DAY >= self._room:
            connection.execute(b"ROLLBACK", prepare=False)
            self._make_room(connection, now // DAY)
            return self._begin(connection, mode)
        return PostgresTransaction(connection, self._sql, self._where, now, mode), number

    def _make_room(self, connection: Connection, day: int) -> None:
        """Have tables for this day and the next; transactions of others may go on past midnight."""
        for one in (day, day + 1):
            connection.execute(self._sql["make_room"], (one,))
        self._room = day + 1

    def _end(self, connection: Connection, number: str, transaction: PostgresTransaction) -> None:
        ring = self._ring if transaction.ring_others else b""
        life = self._life
        try:
            connection.execute(ring + b"COMMIT", prepare=False)
        except psycopg.Error:
            if self._is_alive():
                raise
            if not self._has_committed(number, life, transaction):
                raise

    def _has_committed(self, number: str, life: int, transaction: PostgresTransaction) -> bool:
        """What became of a transaction whose connection was lost at its commit."""
        deadline = time.monotonic() + _DOUBT
        while True:
            try:
                answer = self._ask(number, life, transaction)
            except psycopg.Error:
                answer = None
            if answer is not None:
                return answer
            if time.monotonic() > deadline:
                raise self._doubt()
            time.sleep(_LOOK)

    def _doubt(self) -> InDoubt:
        return InDoubt(
            f"{self.name}: the connection was lost at a commit, and nobody says what "
            "became of it; what was asked for may or may not be stored"
        )

    def _ask(self, number: str, life: int, transaction: PostgresTransaction) -> bool | None:
        """Whether a transaction was committed, as the server says; None while it does not know."""
        connection = self._open()
        try:
            row = connection.execute("SELECT pg_xact_status($1::xid8)", (number,)).fetchone()
        except errors.InvalidParameterValue:  # a number that it has never heard of
            return False
        status = row[0] if row else None
        if status == "aborted":
            return False
        if self._life != life and status is not None:
            logged = transaction.now(), number
            found = connection.execute(self._sql["has_logged"], logged).fetchone()
            if transaction.spoken and not (found and found[0]):
                raise self._doubt()  # an application may have written, and added no job
            return bool(found and found[0])
        return True if status == "committed" else None

    def _follow_up(self, transaction: PostgresTransaction) -> None:
        """What follows a commit; it must not make a failure of it."""
        try:
            self._committed(transaction)
        except Exception:  # noqa: BLE001 - workers look by themselves
            _log.exception("after a commit to %s", self.name)
