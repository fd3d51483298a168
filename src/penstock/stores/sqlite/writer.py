"""One writer per process and file, with checkpoints off its path."""

import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from penstock.core.store import Clock
from penstock.stores.sql.transaction import Transaction
from penstock.stores.sql.writer import Request, Writer
from penstock.stores.sqlite.checkpoint import Checkpointer
from penstock.stores.sqlite.connection import BUSY_TIMEOUT, connect, translate
from penstock.stores.sqlite.transaction import SqliteTransaction, adopt

# How long to wait between two looks whether another process has ended its transaction.
_FIRST_LOOK, _LAST_LOOK = 0.000_1, 0.002
# Where it is crowded, all writers of ours keep out for so long every so often, by the clock that
# they share: other programs look ten times a second, and most give up after five seconds.
_CLEAR_EVERY, _CLEAR_FOR = 2.4, 0.11
# It is crowded when most of the last transactions had to wait: each counts for a tenth.
_CROWDED, _SHARE = 0.5, 0.1
# So many newcomers get their jobs in 0.1 seconds: other programs wait no longer than that.
_ADOPTED_AT_ONCE = 1_000

_verb_of = attrgetter("verb")
_log = logging.getLogger(__name__)


class SqliteWriter(Writer):
    """Runs write verbs on one connection to the file."""

    def __init__(self, path: Path, clock: Clock, committed: Callable[[Transaction], None]) -> None:
        super().__init__(str(path))
        self._path = path
        self._clock = clock
        self._committed = committed
        self._connection = connect(path, busy_timeout=0)
        self._checkpointer = Checkpointer(path, self._lock)
        self._crowding = 0.0

    def adopt(self, patience: float) -> None:
        """Make the jobs of newcomers, unless others keep the file for longer than this."""
        self._keep_pace()
        if not self._lock.acquire(timeout=patience):
            return
        try:
            self._begin(patience)
            self._follow_up(self._commit([]))
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                raise
        finally:
            self._lock.release()

    def _let_go(self) -> None:
        self._checkpointer.close()
        self._connection.close()

    def _keep_pace(self) -> None:
        self._keep_clear()  # a moment for checkpoints, too
        self._checkpointer.keep_pace()

    def _commit_all(self, requests: Sequence[Request]) -> None:
        for transaction in self._transactions(requests):
            if transaction.written:
                self._follow_up(transaction)

    def _transactions(self, requests: Sequence[Request]) -> list[Transaction]:
        try:
            self._begin()
        except sqlite3.Error as error:  # for none of them, however often it were tried
            for request in requests:
                request.answer = self._translated(error)
            return []
        try:
            return [self._commit(requests)]
        except Exception as error:  # noqa: BLE001 - every caller must be answered
            if len(requests) == 1:
                requests[0].answer = self._translated(error)
                return []
            # One of them is the cause: let it fail alone.
            return [done for request in requests for done in self._transactions([request])]

    def _follow_up(self, transaction: Transaction) -> None:
        """What follows a commit; it must not make a failure of it."""
        try:
            self._committed(transaction)
            self._checkpointer.consider()
        except Exception:  # noqa: BLE001 - workers look by themselves, the WAL grows for a while
            _log.exception("after a commit to %s", self._path)

    def _translated(self, error: Exception) -> Exception:
        if isinstance(error, sqlite3.Error):
            translation = translate(error, self._path)
            translation.__cause__ = error
            return translation
        return error

    def _commit(self, requests: Sequence[Request]) -> Transaction:
        """Do these requests in the transaction that was begun."""
        transaction = SqliteTransaction(self._connection, self._clock)
        try:
            self._adopt(transaction)
            for verb, group in groupby(requests, key=_verb_of):
                members = list(group)
                answers = verb(transaction, [request.call for request in members])
                for request, answer in zip(members, answers, strict=True):
                    request.answer = answer
            self._connection.execute("COMMIT" if transaction.written else "ROLLBACK")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        return transaction

    def _adopt(self, transaction: SqliteTransaction) -> None:
        """Make the jobs of newcomers first; where they are many, let others in between."""
        first, last = transaction.execute("newcomers").fetchone()
        if first is None:
            return
        for until in range(first + _ADOPTED_AT_ONCE - 1, last, _ADOPTED_AT_ONCE):
            transaction.execute("adopt", (until,))
            self._connection.execute("COMMIT")
            self._give_way()
            self._begin()
        adopt(transaction)

    def _give_way(self) -> None:
        """Let others write, and the log be copied."""
        self._checkpointer.consider()
        self._lock.release()
        try:
            self._keep_pace()
        finally:
            self._lock.acquire()

    def _begin(self, patience: float = BUSY_TIMEOUT) -> None:
        """Begin a transaction when it is this process's turn.

        SQLite's own waiting sleeps up to 100 ms between two looks, while writers that come later
        go first. Looking more often costs little and shortens the wait a hundredfold.
        """
        deadline = time.monotonic() + patience
        pause, waited = _FIRST_LOOK, False
        while True:
            self._keep_clear()
            try:
                self._connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise
                waited = True
                time.sleep(pause)
                pause = min(pause * 1.2, _LAST_LOOK)
            else:
                self._crowding += _SHARE * (waited - self._crowding)
                return

    def _keep_clear(self) -> None:
        """Where it is crowded, leave the file now and then to those who look more seldom."""
        if self._crowding > _CROWDED and (since := time.time() % _CLEAR_EVERY) < _CLEAR_FOR:
            time.sleep(_CLEAR_FOR - since)


def _is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
