"""Wakes who waits for a change: by LISTEN, and by looking from time to time."""

import asyncio
import contextlib
import logging
import os
import random
import select
import threading
import time
from typing import Any

import psycopg

from penstock.stores.postgres.connection import Address, connect

Connection = psycopg.Connection[Any]

_log = logging.getLogger(__name__)

# How long who waits sleeps without a ring: with a listener, and without one.
POLL_LISTENING = 5.0
POLL_ALONE = 0.5
_RECONNECT = 0.5
# How often to ask whether the server is still there.
_CHECK = 10.0


class Bell:
    """One listener per process; whoever waits here hears what it hears."""

    def __init__(self, where: Address) -> None:
        self.name = f"{os.getpid()}-{random.getrandbits(48):x}"
        self._where = where
        self._changes = 1
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._listening = False
        self._wake_read, self._wake_write = os.pipe()

    def seen(self) -> int:
        """How many changes there were so far."""
        return self._changes

    @property
    def listens(self) -> bool:
        """Whether others are listened to, or will be as soon as they can be reached."""
        return self._thread is not None or not self._where.notify

    def listen(self) -> None:
        """Listen to others from now on."""
        with self._condition:
            if self.listens or self._closed:
                return
            first: Connection | None = None
            with contextlib.suppress(psycopg.Error):
                first = self._opened()
            self._thread = threading.Thread(
                target=self._listen, args=(first,), name="penstock-listener", daemon=True
            )
            self._thread.start()

    def ring(self) -> None:
        """Wake all who wait in this process."""
        with self._condition:
            self._changes += 1
            waiting, self._waiting = self._waiting, []
            self._condition.notify_all()
        for loop, future in waiting:
            try:
                loop.call_soon_threadsafe(_set, future)
            except RuntimeError:  # that loop was closed meanwhile
                continue

    async def wait(self, seen: int, timeout: float) -> int:
        """Return after a change since `seen`, or after this time."""
        poll = POLL_LISTENING if self._listening else POLL_ALONE
        # Apart from other processes, which would all look at the same moment.
        timeout = min(timeout, poll * random.uniform(0.8, 1.0))  # noqa: S311 - no secret
        loop = asyncio._get_running_loop()  # noqa: SLF001 - the public one raises
        if loop is None:
            with self._condition:
                self._condition.wait_for(lambda: self._changes != seen, timeout)
                return self._changes
        future = loop.create_future()
        with self._condition:
            if self._changes != seen:
                return self._changes
            self._waiting.append((loop, future))
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            pass
        finally:
            with self._condition:
                self._waiting = [one for one in self._waiting if one[1] is not future]
        return self._changes

    def close(self) -> None:
        """End the listener and wake who waits."""
        with self._condition:
            self._closed = True
            thread = self._thread
        os.write(self._wake_write, b"\0")
        if thread is not None:
            thread.join()
        self.ring()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _opened(self) -> Connection:
        connection = connect(self._where)
        connection.execute(f"LISTEN {self._where.schema}")
        self._listening = True
        return connection

    def _listen(self, connection: Connection | None) -> None:
        while not self._closed:
            try:
                if connection is None:
                    connection = self._opened()
                    self.ring()  # whatever came before
                with connection:
                    self._hear(connection)
            except psycopg.Error as error:
                if not self._is_closed():
                    _log.warning("%s: listening again soon: %s", self._where.name, error)
            connection, self._listening = None, False
            if not self._is_closed():
                select.select([self._wake_read], [], [], _RECONNECT * random.uniform(0.5, 1.5))  # noqa: S311 - no secret

    def _is_closed(self) -> bool:
        return self._closed

    def _hear(self, connection: Connection) -> None:
        checked = time.monotonic()
        while True:
            select.select([connection.fileno(), self._wake_read], [], [], _CHECK)
            if self._closed:
                return
            connection.pgconn.consume_input()
            heard = False
            while (notify := connection.pgconn.notifies()) is not None:
                heard = heard or notify.extra != self.name.encode()
            if time.monotonic() - checked > _CHECK:
                connection.execute(b"SELECT 1")  # a server that is gone says nothing
                heard, checked = True, time.monotonic()
            if heard:
                self.ring()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
