"""Keeps the write-ahead log small, nearly without making writers wait for it."""

import logging
import queue
import sqlite3
import threading
import time
from pathlib import Path

from penstock.stores.sqlite.connection import connect
from penstock.stores.sqlite.gate import Gate

_log = logging.getLogger(__name__)

# At full speed this is some 10 MiB of new pages: few enough for a small file, many enough that
# a page that changes often is copied once.
_PAUSE = 0.1
# From here on the log is started anew, which keeps writers out for a moment.
_RESTART_FRAMES = 1_000
# From here on (24 MiB) writers have to wait for readers that stand in the way.
_INSIST_FRAMES = 6_000
_PATIENCE, _INSISTENCE = 0.02, 2.0
_LOOK_MS = 5
# While the log is longer than it is kept (see `connect`), writers look whether the gate is closed,
# which is not free. From the second length on they are faster than checkpoints, and wait for one.
_GATED, _LONG = 20 * 1024 * 1024, 40 * 1024 * 1024
# How long a reader that does not go is left alone, in seconds.
_TOLERANCE = 30.0
_GO_ON, _STOP = True, False


class Checkpointer:
    """Keeps the WAL small, from a thread and a connection of its own."""

    def __init__(self, path: Path, writers_lock: threading.Lock) -> None:
        self._path = path
        self._writers_lock = writers_lock
        self._gate = Gate(path)
        self._wakeups: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._coming = False
        self._insist_from = 0.0
        self._stop = threading.Event()
        self._rounds = 0
        self._round_over = threading.Condition()

    def consider(self) -> None:
        """Something was written: a checkpoint will follow; returns at once."""
        if self._coming:
            return
        self._coming = True
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run_forever, name="penstock-checkpoint", daemon=True
            )
            self._thread.start()
        self._wakeups.put(_GO_ON)

    def keep_pace(self) -> None:
        """Before a writer takes its lock: wait for a checkpoint if the log has become long."""
        size = self._gate.log_size()
        if size < _GATED:
            return
        self._gate.pass_through()
        if size < _LONG or not self._coming or self._tolerates():
            return
        with self._round_over:
            next_round = self._rounds + 1
            self._round_over.wait_for(lambda: self._rounds >= next_round, _INSISTENCE)

    def close(self) -> None:
        """Wait for a checkpoint that runs."""
        if self._thread is not None:
            self._stop.set()
            self._wakeups.put(_STOP)
            self._thread.join()
        self._gate.close()

    def _run_forever(self) -> None:
        connection: sqlite3.Connection | None = None
        while self._wakeups.get():
            if self._gate.log_size() < _LONG or self._tolerates():
                self._stop.wait(_PAUSE)
            self._coming = False
            try:
                connection = connection or connect(self._path, busy_timeout=_LOOK_MS / 1000)
                self._checkpoint(connection)
            except sqlite3.Error as error:
                _log.warning("checkpoint of %s failed: %s", self._path, error)
            with self._round_over:
                self._rounds += 1
                self._round_over.notify_all()
        if connection is not None:
            connection.close()

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        # Passive copies nearly all without stopping anyone; what was written meanwhile is
        # little, so that starting anew is short. The file keeps its length: a commit into it
        # is twice as fast as one that makes it longer.
        frames = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
        if frames > _RESTART_FRAMES:
            insists = frames > _INSIST_FRAMES and not self._tolerates()
            with self._writers_lock, self._gate.closed() as alone:
                if not alone or self._restarted(connection, _INSISTENCE if insists else _PATIENCE):
                    return
            if insists:  # someone reads for long: let the log grow, and writers write
                self._insist_from = time.monotonic() + _TOLERANCE

    def _tolerates(self) -> bool:
        return time.monotonic() < self._insist_from

    def _restarted(self, connection: sqlite3.Connection, within: float) -> bool:
        """Start the log anew; readers, and transactions that had begun, come to an end first."""
        deadline = time.monotonic() + within
        while connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0]:
            if time.monotonic() > deadline:
                return False
        return True
