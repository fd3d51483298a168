"""Checkpoints: keep the write-ahead log small, nearly without making writers wait."""

import logging
import sqlite3
import threading
from pathlib import Path

from penstock.runtime import Runtime
from penstock.stores.sqlite.checkpoint_lock import CheckpointLock
from penstock.stores.sqlite.connection import connect

_log = logging.getLogger(__name__)

# At full speed this is some 10 MiB of new pages: few enough for a small file, many enough that
# a page that changes often is copied once.
_PAUSE = 0.1
# From here on the log is restarted, which keeps writers out for a moment.
_RESTART_FRAMES = 1_000
# From here on (24 MiB) writers have to wait for readers that keep the log from restarting.
_INSIST_FRAMES = 6_000
_PATIENCE, _INSISTENCE = 0.02, 2.0
_BUSY_MS = 5
# While the log is longer than it is kept (see `connect`), writers check the checkpoint lock, which
# is not free. From the second length on they are faster than checkpoints, and wait for one.
_LOCKED, _LONG = 20 * 1024 * 1024, 40 * 1024 * 1024
# How long a reader that does not end is left alone, in seconds.
_TOLERANCE = 30.0


class Checkpointer:
    """Runs checkpoints in the background, on a connection of its own.

    With `restarts=False` no writer ever waits: the log is restarted by another program that reads
    it all the time, such as Litestream, or when nobody reads it.
    """

    def __init__(
        self, path: Path, runtime: Runtime, write_lock: threading.Lock, *, restarts: bool = True
    ) -> None:
        self._path = path
        self._runtime = runtime
        self._monotonic = runtime.monotonic
        self._write_lock = write_lock
        self._restarts = restarts
        self._background = runtime.background(self._step, "penstock-checkpoint")
        self._connection: sqlite3.Connection | None = None
        self._requested = False
        self._paused = False
        self._insist_from = 0.0
        self._rounds = 0
        self._round_over = threading.Condition()

    def open(self) -> None:
        """Open the files; to be called when the database is open."""
        self._lock = CheckpointLock(self._path, self._runtime)

    def request(self) -> None:
        """Run a checkpoint soon, in the background; returns at once."""
        if not self._requested:
            self._requested = True
            self._background.wake()

    def throttle(self) -> None:
        """Make a writer wait for a checkpoint if the log has become long.

        To be called before it takes the write lock.
        """
        size = self._lock.log_size()
        if size < _LOCKED or not self._restarts:
            return
        self._lock.wait()
        if size < _LONG or not self._requested or self._tolerates():
            return
        with self._round_over:
            next_round = self._rounds + 1
            self._round_over.wait_for(lambda: self._rounds >= next_round, _INSISTENCE)

    def close(self) -> None:
        """Finish a requested checkpoint."""
        self._background.close()
        if self._requested:
            self._run()
        self.close_files()

    def close_files(self) -> None:
        """Close the files and drop a requested checkpoint: the next commit requests another."""
        self._requested = self._paused = False
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._lock.close()

    def pause(self, deadline: float) -> bool:
        """End the thread; see `Background.pause`."""
        return self._background.pause(deadline)

    def resume(self) -> None:
        """Undo `pause`."""
        self._background.resume()
        if self._requested:
            self._background.wake()

    def _step(self) -> float | None:
        """Pause first, so that one checkpoint covers many commits, unless the log is long."""
        if not self._requested:
            return None
        if not self._paused and (self._lock.log_size() < _LONG or self._tolerates()):
            self._paused = True
            return _PAUSE
        self._paused = False
        self._run()
        return None

    def _run(self) -> None:
        self._requested = False
        try:
            if self._connection is None:
                self._connection = connect(
                    self._path, runtime=self._runtime, busy_timeout=_BUSY_MS / 1000
                )
            self._checkpoint(self._connection)
        except sqlite3.Error as error:
            _log.warning("checkpoint of %s failed: %s", self._path, error)
        with self._round_over:
            self._rounds += 1
            self._round_over.notify_all()

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        # A passive checkpoint copies nearly all without stopping anyone; what was written in the
        # meantime is little, so that restarting is short. The file keeps its length: a commit into
        # it is twice as fast as one that makes it longer.
        frames = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
        if frames > _RESTART_FRAMES and self._restarts:
            insists = frames > _INSIST_FRAMES and not self._tolerates()
            with self._write_lock, self._lock.held() as held:
                if not held or self._restart(connection, _INSISTENCE if insists else _PATIENCE):
                    return
            if insists:  # a long read is under way: let the log grow, and writers write
                self._insist_from = self._monotonic() + _TOLERANCE

    def _tolerates(self) -> bool:
        return self._monotonic() < self._insist_from

    def _restart(self, connection: sqlite3.Connection, within: float) -> bool:
        """Restart the log, after readers and transactions that had begun; return whether it did."""
        deadline = self._monotonic() + within
        while connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0]:
            if self._monotonic() > deadline:
                return False
        return True
