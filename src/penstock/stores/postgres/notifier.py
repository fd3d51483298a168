"""Notifies waiting workers: through LISTEN and NOTIFY, with polling as a fallback."""

import contextlib
import logging
import threading
from typing import Any

import psycopg

from penstock.runtime import Runtime
from penstock.stores.postgres.connection import Address, connect
from penstock.stores.sql.waiters import Waiters

Connection = psycopg.Connection[Any]

_log = logging.getLogger(__name__)

# How long a waiter sleeps without a notification: with a listener, and without one.
POLL_LISTENING = 5.0
POLL_ALONE = 0.5
_RECONNECT = 0.5
# How often to check whether the server is still there.
_CHECK = 10.0


class PostgresNotifier:
    """One listener per process, which wakes all waiters of the process."""

    def __init__(self, where: Address, runtime: Runtime) -> None:
        self.waiters = Waiters()
        self.name = f"{runtime.process_id()}-{runtime.random.getrandbits(48):x}"
        self._where = where
        self._runtime = runtime
        self._lock = threading.Lock()
        self._listener = runtime.background(self._listen, "penstock-notifier")
        self._started = False
        self._closed = False
        self._connection: Connection | None = None
        self._checked_at = 0.0
        self._wake_read, self._wake_write = runtime.files.pipe()

    @property
    def listens(self) -> bool:
        """Whether it listens to others, or will as soon as the server can be reached."""
        return self._started or not self._where.notify

    def listen(self) -> None:
        """Listen to other processes from now on."""
        with self._lock:
            if self.listens or self._closed:
                return
            with contextlib.suppress(psycopg.Error):
                if self._connection is None:
                    self._connect()
            self._started = True
        self._listener.wake()

    async def wait(self, seen: int, timeout: float) -> int:
        """See `Database.wait`."""
        poll = POLL_ALONE if self._connection is None else POLL_LISTENING
        # Scattered, so that processes do not all look at the same moment.
        timeout = min(timeout, poll * self._runtime.random.uniform(0.8, 1.0))
        return await self.waiters.wait(seen, timeout)

    def close(self) -> None:
        """End the listener and wake all waiters."""
        with self._lock:
            self._closed = True
        self._runtime.files.write(self._wake_write, b"\0")
        self._listener.close()
        self.close_connection()
        self.waiters.wake()
        self._runtime.files.close(self._wake_read)
        self._runtime.files.close(self._wake_write)

    def pause(self, deadline: float) -> bool:
        """End the thread; see `Background.pause`."""
        with self._lock:
            self._started = False
        self._runtime.files.write(self._wake_write, b"\0")
        ended = self._listener.pause(deadline)
        self._runtime.files.read(self._wake_read, 4096)
        return ended

    def resume(self) -> None:
        """Undo `pause`; whoever waits looks once, and listens again."""
        self._listener.resume()
        self.waiters.wake()

    def close_connection(self) -> None:
        """Close the connection, until `listen` opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> Connection:
        connection = connect(self._where)
        connection.execute(f"LISTEN {self._where.schema}")
        self._checked_at = self._runtime.monotonic()
        self._connection = connection
        return connection

    def _listen(self) -> float | None:
        """Wait for a notification; return when to do so again."""
        if self._closed or not self._started:
            return None
        try:
            if self._connection is None:
                self._connect()
                self.waiters.wake()  # for whatever happened before
            elif self._was_notified(self._connection):
                self.waiters.wake()
        except psycopg.Error as error:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            _log.warning("%s: listening again soon: %s", self._where.name, error)
            return _RECONNECT * self._runtime.random.uniform(0.5, 1.5)
        return 0.0

    def _was_notified(self, connection: Connection) -> bool:
        descriptors = [connection.fileno(), self._wake_read]
        self._runtime.files.wait_readable(descriptors, _CHECK)
        if self._closed or not self._started:
            return False
        connection.pgconn.consume_input()
        notified = False
        while (notification := connection.pgconn.notifies()) is not None:
            notified = notified or notification.extra != self.name.encode()
        if self._runtime.monotonic() - self._checked_at > _CHECK:
            connection.execute(b"SELECT 1")  # a server that is gone does not say so
            notified, self._checked_at = True, self._runtime.monotonic()
        return notified
