"""Wakes who waits for a change: by LISTEN, and by looking from time to time."""

import asyncio
import logging
import os
import random
import select
import threading
import time
from typing import Any

import psycopg

from penstock.stores.postgres.connection import Address, connect

_log = logging.getLogger(__name__)

# How long who waits sleeps without a ring: with a listener, and without one.
POLL_LISTENING = 5.0
POLL_ALONE = 0.5
_RECONNECT = 0.5


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
        """How many changes there were so far; from the first call on, others are listened to."""
        with self._condition:
            if self._thread is None and self._where.notify and not self._closed:
                self._thread = threading.Thread(
                    target=self._listen, name="penstock-listener", daemon=True
                )
                self._thread.start()
            return self._changes

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
        timeout = min(timeout, poll * random.uniform(0.8, 1.0))  # noqa: S311
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

    def _listen(self) -> None:
        while not self._closed:
            try:
                with connect(self._where) as connection:
                    connection.execute(f"LISTEN {self._where.schema}")
                    self._listening = True
                    self.ring()  # whatever came before
                    self._hear(connection)
            except psycopg.Error as error:
                if not self._closed:
                    _log.warning("%s: listening again soon: %s", self._where.name, error)
            self._listening = False
            if not self._closed:
                select.select([self._wake_read], [], [], _RECONNECT * random.uniform(0.5, 1.5))  # noqa: S311

    def _hear(self, connection: "psycopg.Connection[Any]") -> None:
        checked = time.monotonic()
        while not self._closed:
            select.select([connection.fileno(), self._wake_read], [], [], 5.0)
            if self._closed:
                return
            connection.pgconn.consume_input()
            heard = False
            while (notify := connection.pgconn.notifies()) is not None:
                heard = heard or notify.extra != self.name.encode()
            if heard:
                self.ring()
            if time.monotonic() - checked > 5.0:
                connection.execute(b"SELECT 1")  # a server that is gone says nothing
                checked = time.monotonic()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
