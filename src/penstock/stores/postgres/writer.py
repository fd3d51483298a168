"""Write transactions of one process: lock modes, retries, and commits in doubt.

A transaction knows its id before it commits. When the connection is lost at that very moment, the
next one asks the server for the outcome, so that nothing is ever written twice.

A transaction of one statement is sent in one round trip together with its commit, and so before its
id is known. It leaves a receipt instead, a number of the client's own. When the connection is lost
meanwhile, the transaction has committed if there is that receipt, and has not if there is none
after the server has ended its session.

A server that has crashed assigns ids again that it had not yet written to disk: what it then says
about an id may be about another transaction. Every run of the server has a number, too. When that
has changed, a commit is believed only if the log has its entries.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import count, groupby
from operator import attrgetter
from typing import Any, NamedTuple

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus

from penstock.core.errors import StoreUnavailable
from penstock.core.store import Clock
from penstock.runtime import Runtime
from penstock.stores.postgres import external_changes, pipeline, timeline
from penstock.stores.postgres.connection import DAY, SCRIPTS, Address, begin, translate
from penstock.stores.postgres.pipeline import Pipeline, Rows, Statement
from penstock.stores.postgres.presence import introduced
from penstock.stores.postgres.round_trips import RoundTrip
from penstock.stores.postgres.transaction import (
    Connection,
    LockMode,
    NeedsExclusive,
    PostgresTransaction,
)
from penstock.stores.sql.database import Verb
from penstock.stores.sql.group_commit import Request

_log = logging.getLogger(__name__)

# How often a transaction that collided with others is tried.
_ATTEMPTS = 10
_COLLISIONS = (errors.SerializationFailure, errors.DeadlockDetected)
# How long a verb that needed the exclusive lock asks for it at once, in seconds.
_EXCLUSIVE_FOR = 0.2
# How long to ask for the outcome of a transaction whose connection was lost at its commit.
_DOUBT = 30.0
_POLL = 0.1

_verb_of = attrgetter("verb")


class Session(NamedTuple):
    """A connection as the server knows it."""

    server_run: int
    """A number that changes when the server has crashed."""
    newest: int
    """A log entry that is older than all that will be written."""
    process: int
    began: datetime


_NO_SESSION = Session(0, 0, 0, datetime.min)  # noqa: DTZ901 - never compared


class InDoubt(StoreUnavailable):
    """The outcome of a commit is unknown: it must not be repeated automatically."""


class PostgresWriter:
    """Runs write verbs on one connection, which is reopened when it is lost.

    `modes` has the lock modes of verbs; verbs that are not in it take an exclusive lock.
    `round_trips` has those that may be sent in one round trip.
    `notification` is the channel and the message that wake other processes, None without
    notifications. Without a `clock`, the server's decides. `resumable` is shared by all
    transactions of the process: see `Reader`.
    """

    def __init__(
        self,
        where: Address,
        sql: Mapping[str, str],
        runtime: Runtime,
        *,
        clock: Clock | None,
        modes: Mapping[Verb[Any, Any], LockMode],
        round_trips: Mapping[Verb[Any, Any], RoundTrip],
        notification: tuple[str, str] | None,
        after_commit: Callable[[PostgresTransaction], None],
        resumable: set[int],
    ) -> None:
        self.resumable = resumable
        # By how much the server's clock is ahead of this machine's.
        self.ahead = 0
        self._where = where
        self._sql = sql
        self._runtime = runtime
        self._clock = clock
        self._modes = modes
        # Verbs that needed the exclusive lock a moment ago will need it again.
        self._exclusive_until: dict[Verb[Any, Any], float] = {}
        self._round_trips = {} if where.pooled or not pipeline.AVAILABLE else round_trips
        self._notification = notification
        self._after_commit = after_commit
        schema = where.schema.encode()
        # Behind a pooler, the server may become another one while the connection lasts.
        is_known = b"%s.is_timeline_known()" % schema if where.pooled else b"true"
        entered = (
            b"SELECT %s.enter(%%d), pg_current_xact_id(), oldest_program, %s FROM %s.schema_%d"
        )
        entered %= (schema, is_known, schema, SCRIPTS.version)
        self._begin_statement = begin(where) + entered
        self._is_following = False
        self.first: Connection | None = None
        """A connection that is open already, for the first use."""
        self._connection: Connection | None = None
        self._client = runtime.random.getrandbits(62)
        self._numbers = count(1)
        self._session = _NO_SESSION
        self._last_day = 0

    def close(self) -> None:
        """Close the connection."""
        for connection in (self._connection, self.first):
            if connection is not None:
                connection.close()
        self._connection = self.first = None

    def commit(self, requests: Sequence[Request]) -> None:
        """Run requests in as few transactions as it takes, and set their answers."""
        # One commit for what a worker asks at once, if one part of it needs a lock.
        for _, group in groupby(requests, key=self._takes_no_lock):
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

    def _commit_one(self, request: Request, mode: LockMode) -> None:
        try:
            self._commit([request], mode)
        except Exception as error:  # noqa: BLE001 - every caller must be answered
            request.answer = self._translated(error)

    def _mode(self, request: Request) -> LockMode:
        verb = request.verb
        if self._exclusive_until.get(verb, 0.0) > self._runtime.monotonic():
            return LockMode.EXCLUSIVE
        return self._modes.get(verb, LockMode.EXCLUSIVE)

    def _takes_no_lock(self, request: Request) -> bool:
        return self._mode(request) is LockMode.NONE

    def _translated(self, error: Exception) -> Exception:
        if isinstance(error, psycopg.Error):
            translation = translate(error, self._where.name)
            translation.__cause__ = error
            return translation
        return error

    def _commit(self, requests: Sequence[Request], mode: LockMode) -> None:
        """Run requests in one transaction, and try again as long as that may help."""
        for attempt in range(_ATTEMPTS):
            try:
                tx = self._attempt(requests, mode)
            except NeedsExclusive:
                mode = LockMode.EXCLUSIVE
                until = self._runtime.monotonic() + _EXCLUSIVE_FOR
                self._exclusive_until.update((request.verb, until) for request in requests)
            except psycopg.Error as error:
                if not self._may_retry(error, attempt):
                    raise
            else:
                if tx.written:
                    try:
                        self._after_commit(tx)
                    except Exception:  # noqa: BLE001 - it is no failure of the commit
                        _log.exception("after a commit to %s", self._where.name)
                return

    def _may_retry(self, error: psycopg.Error, attempt: int) -> bool:
        """Return whether to try a failed transaction again, after this many attempts."""
        if isinstance(error, _COLLISIONS):
            return attempt < _ATTEMPTS - 1
        if isinstance(error, errors.CheckViolation) and "no partition" in str(error):
            self._last_day = 0
            return attempt < _ATTEMPTS - 1
        if isinstance(error, errors.ReadOnlySqlTransaction) and self._connection is not None:
            # The server may have become a standby: another one may be the primary.
            self._connection.close()
        # A connection that was lost before the commit: all can be done again. The server ends that
        # of a process which was stopped inside a transaction; that is no OperationalError.
        return not self._is_alive() and attempt < 1

    def _is_alive(self) -> bool:
        """Return whether the connection can run another transaction; else close it."""
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
            connection, self.first = self.first or introduced(self._where), None
            try:
                self._session = Session(*connection.execute(self._sql["session"]).fetchall()[0])
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            self._pipeline = Pipeline(connection)
            self._follow_timeline(connection)
        return self._connection

    def _follow_timeline(self, connection: Connection) -> None:
        """Let ids continue higher up, before anything else, if another server was promoted."""
        try:
            found = timeline.current(connection, self._sql)
            if found is not None and not timeline.is_known(connection, self._sql, found):
                self._is_following = True
                self._attempt([Request(timeline.follow, None, None)], LockMode.EXCLUSIVE)
        except BaseException:
            connection.close()
            self._connection = None
            raise
        finally:
            self._is_following = False

    def _attempt(self, requests: Sequence[Request], mode: LockMode) -> PostgresTransaction:
        if len({request.verb for request in requests}) == 1 and mode is not LockMode.EXCLUSIVE:
            tx = self._in_one_round_trip(requests, self._round_trips.get(requests[0].verb))
            if tx is not None:
                return tx
        connection = self._open()
        tx, number = self._begin(connection, mode)
        try:
            if mode is LockMode.EXCLUSIVE and not self._is_following:  # they need ids
                external_changes.import_rows(tx)
                external_changes.handle(tx)
            for verb, group in groupby(requests, key=_verb_of):
                members = list(group)
                answers = verb(tx, [request.call for request in members])
                for request, answer in zip(members, answers, strict=True):
                    request.answer = answer
            if not tx.written:
                self._pipeline.roll_back()
        except BaseException:
            if not connection.closed and not connection.broken:
                self._pipeline.roll_back()
            raise
        if tx.written:
            self._end(connection, number, tx)
        return tx

    def _in_one_round_trip(
        self, requests: Sequence[Request], trip: RoundTrip | None
    ) -> PostgresTransaction | None:
        """Run requests in one round trip; None if they have to be run in another way."""
        if trip is None or self._today() >= self._last_day:
            return None
        connection = self._open()
        calls = [request.call for request in requests]
        number = next(self._numbers)
        now = None if self._clock is None else self._clock()
        prepared = trip.verb.prepare(calls, now, (self._client, number))
        if prepared is None:
            return None
        name, parameters = prepared
        session, is_lost, oldest_program = self._session, False, 0
        try:
            entered, found = self._pipeline.run([self._enter(trip), (self._sql[name], parameters)])
        except psycopg.Error:
            if self._is_alive():
                raise
            recovered = self._recovered(trip, number, session)
            if recovered is None:  # it has not committed: it can be run again
                return None
            connection, found, is_lost = self._open(), recovered, True
        else:
            at, newest, oldest_program = entered[0][:3]
            now = self._entered(at, newest)
        tx = PostgresTransaction(
            connection,
            self._sql,
            self._where,
            self.resumable,
            now=now or 0,
            mode=trip.mode,
            oldest_program=oldest_program,
        )
        answers = trip.verb.complete(tx, calls, found)
        if answers is None and is_lost:  # what it wrote was removed again meanwhile
            raise self._doubt()
        for request, answer in zip(requests, answers or (), strict=answers is not None):
            request.answer = answer
        return None if answers is None else tx

    def _enter(self, trip: RoundTrip) -> Statement:
        """Return the first statement of a round trip."""
        if trip.notifies and self._notification is not None:
            return self._sql["enter_notifying"], (int(trip.mode), *self._notification)
        return self._sql["enter"], (int(trip.mode),)

    def _entered(self, at: int, newest: int) -> int:
        """Record the result of a transaction's first statement; return its time."""
        self._session = self._session._replace(newest=newest)
        if self._clock is not None:
            return self._clock()
        self.ahead = at - self._runtime.clock()
        return at

    def _today(self) -> int:
        clock = self._clock or self._runtime.clock
        return (clock() + (0 if self._clock else self.ahead)) // DAY

    def _recovered(self, trip: RoundTrip, number: int, session: Session) -> Rows | None:
        """Return what a transaction wrote whose connection was lost; None if it was rolled back."""
        deadline = self._runtime.monotonic() + _DOUBT
        while True:
            with suppress(psycopg.Error):
                connection = self._open()
                gone = self._session.server_run != session.server_run
                parameters = (self._client, number, session.process, session.began)
                # Asked in this order: a session that has ended commits no more.
                for _ in range(2):
                    found = connection.execute(self._sql["outcome"], parameters).fetchall()
                    committed, running = found[0]
                    if committed is not None:
                        written = (session.newest, committed)
                        return connection.execute(
                            self._sql[trip.written], written, binary=True
                        ).fetchall()
                    if not gone and running:
                        break
                else:
                    return None
            if self._runtime.monotonic() > deadline:
                raise self._doubt()
            self._runtime.sleep(_POLL)

    def _begin(self, connection: Connection, mode: LockMode) -> tuple[PostgresTransaction, str]:
        cursor = connection.execute(self._begin_statement % mode, prepare=False)
        while cursor.nextset():
            pass
        at, number, oldest_program, is_timeline_known = cursor.fetchall()[0]
        if not is_timeline_known and not self._is_following:
            self._pipeline.roll_back()
            self._follow_timeline(connection)
            return self._begin(connection, mode)
        if self._clock is None:
            now = at
            self.ahead = at - self._runtime.clock()
        else:
            now = self._clock()
        if now // DAY >= self._last_day:
            self._pipeline.roll_back()
            self._add_partitions(connection, now // DAY)
            return self._begin(connection, mode)
        tx = PostgresTransaction(
            connection,
            self._sql,
            self._where,
            self.resumable,
            now=now,
            mode=mode,
            oldest_program=oldest_program,
        )
        return tx, number

    def _add_partitions(self, connection: Connection, day: int) -> None:
        """Have partitions for this day and the next; callers' transactions may pass midnight."""
        for one in (day, day + 1):
            connection.execute(self._sql["add_partitions"], (one,))
        self._last_day = day + 1

    def _end(self, connection: Connection, number: str, tx: PostgresTransaction) -> None:
        server_run = self._session.server_run
        try:
            connection.execute(self._notify_statement(tx) + b"COMMIT", prepare=False)
        except psycopg.Error:
            if self._is_alive():
                raise
            if not self._has_committed(number, server_run, tx):
                raise

    def _notify_statement(self, tx: PostgresTransaction) -> bytes:
        if self._notification is None or not tx.notify_others:
            return b""
        return "SELECT pg_notify('{}', '{}'); ".format(*self._notification).encode()

    def _has_committed(self, number: str, server_run: int, tx: PostgresTransaction) -> bool:
        """Return the outcome of a transaction whose connection was lost at its commit."""
        deadline = self._runtime.monotonic() + _DOUBT
        while True:
            try:
                answer = self._outcome(number, server_run, tx)
            except psycopg.Error:
                answer = None
            if answer is not None:
                return answer
            if self._runtime.monotonic() > deadline:
                raise self._doubt()
            self._runtime.sleep(_POLL)

    def _doubt(self) -> InDoubt:
        return InDoubt(
            f"{self._where.name}: the connection was lost at a commit, and its outcome is "
            "unknown; the changes may or may not be stored"
        )

    def _outcome(self, number: str, server_run: int, tx: PostgresTransaction) -> bool | None:
        """Return whether the server committed a transaction; None while it does not know."""
        connection = self._open()
        try:
            row = connection.execute("SELECT pg_xact_status($1::xid8)", (number,)).fetchone()
        except errors.InvalidParameterValue:  # an id that it has never assigned
            return False
        status = row[0] if row else None
        if status == "aborted":
            return False
        if self._session.server_run != server_run and status is not None:
            found = connection.execute(self._sql["has_logged"], (tx.now, number)).fetchone()
            if tx.has_foreign_writes and not (found and found[0]):
                raise self._doubt()  # an application may have written, and added no job
            return bool(found and found[0])
        return True if status == "committed" else None
