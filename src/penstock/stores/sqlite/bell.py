"""Tells waiting workers, in this process and in others, that something changed in the file.

Every listening process owns a named pipe in a folder beside the file; who commits writes a byte
into each. A byte that is lost costs no job: listeners also look at SQLite's change counter a few
times a second, which finds the commits of programs that do not know about the pipes.
"""

import contextlib
import errno
import logging
import os
import select
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from penstock.core.errors import StoreError
from penstock.stores.alarm import Alarm

_log = logging.getLogger(__name__)

# How often a listener looks at the change counter, in seconds; without pipes, more often.
_POLL = 0.1
_POLL_WITHOUT_PIPES = 0.02
# What changed this recently may have changed again within one tick of its timestamp; and a log that
# was written to need not be a commit yet.
_FRESH_NS = 250_000_000
# To ask SQLite takes longer than to see whether its log has changed. But that is not certain where
# timestamps are coarse: so often it is asked in any case, in seconds.
_ASK = 1.0


class Bell:
    """Rings in every process that listens to the same file."""

    def __init__(
        self,
        path: Path,
        change_counter: Callable[[], int],
        matters: Callable[[], bool] = lambda: True,
    ) -> None:
        """`matters` is asked whether anyone has to know of a commit that nobody rang for."""
        self._folder = path.with_name(path.name + "-bell")
        self._own = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._change_counter = change_counter
        self._matters = matters
        self.generation = 1
        self._waiters: list[Alarm] = []
        self._lock = threading.Lock()
        self._listener: threading.Thread | None = None
        self._pipe: int | None = None
        self._closed = False
        self._others: dict[str, int] = {}
        self._listed_at = -1
        self._log = f"{path}-wal"
        self._log_was: tuple[int, int] | None = None
        self._asked_at = 0.0

    def ring(self, *, others: bool) -> None:
        """Wake who waits here and, if asked for, in other processes. Never raises, never blocks."""
        self._notify()
        if others:
            with self._lock:
                try:
                    self._ring_others()
                except OSError:  # no folder: nobody listens, or they will look by themselves
                    return

    async def wait(self, seen: int, timeout: float) -> int:
        """Wait for a change after `seen`; see `Store.wait`."""
        alarm = Alarm()
        with self._lock:
            if self.generation != seen:
                return self.generation
            self._waiters.append(alarm)
        try:
            await alarm.wait(timeout)
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._waiters.remove(alarm)
        return self.generation

    def close(self) -> None:
        """Stop listening and remove the pipe."""
        self._closed = True
        with contextlib.suppress(OSError):
            (self._folder / self._own).unlink()
        if self._pipe is not None:
            with contextlib.suppress(BlockingIOError):  # full of rings: it wakes anyway
                os.write(self._pipe, b"\0")
        if self._listener is not None:
            self._listener.join()
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        with self._lock:
            for fd in self._others.values():
                os.close(fd)
            self._others.clear()
        with contextlib.suppress(OSError):
            self._folder.rmdir()
        self._notify()

    def _notify(self) -> None:
        with self._lock:
            self.generation += 1
            waiters, self._waiters = self._waiters, []
        for alarm in waiters:
            alarm.ring()

    def listen(self) -> int:
        """Hear what others do from now on; the generation so far."""
        with self._lock:
            if self._listener is None and not self._closed:
                self._start()
            return self.generation

    def _start(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # no pipes here: poll
            self._folder.mkdir(exist_ok=True)
            os.mkfifo(self._folder / self._own, 0o600)
            # Also open for writing: no end of file when the last ringer goes.
            self._pipe = os.open(self._folder / self._own, os.O_RDWR | os.O_NONBLOCK)
        counter = self._change_counter()
        self._matters()  # what was before does not
        self._listener = threading.Thread(
            target=self._listen_forever,
            args=(counter,),
            name="penstock-bell",
            daemon=True,
        )
        self._listener.start()

    def _listen_forever(self, counter: int) -> None:
        while not self._closed:
            rung = self._hear()
            if not rung and not self._may_have_changed():
                continue
            try:
                latest = self._change_counter()
                tell = rung or (latest != counter and self._matters())
            except StoreError as error:
                _log.warning("the store does not answer: %s", error)
                self._log_was = None
                time.sleep(_POLL)
                continue
            if tell:
                self._notify()
            counter = latest

    def _may_have_changed(self) -> bool:
        """Whether SQLite has to be asked if somebody has committed."""
        try:
            about = os.stat(self._log)  # noqa: PTH116 - many times a second
        except OSError:  # there is none while nobody has written
            return True
        log = about.st_mtime_ns, about.st_size
        if log == self._log_was and time.monotonic() - self._asked_at < _ASK:
            return False
        self._log_was = None if time.time_ns() - about.st_mtime_ns < _FRESH_NS else log
        self._asked_at = time.monotonic()
        return True

    def _hear(self) -> bool:
        """Whether someone rang, within the time between two looks."""
        if self._pipe is None:
            time.sleep(_POLL_WITHOUT_PIPES)
            return False
        # Not `select`, which cannot watch a file number over 1023.
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        if not poll.poll(_POLL * 1000):
            return False
        os.read(self._pipe, 65536)
        return True

    def _ring_others(self) -> None:
        self._refresh_others()
        for name, fd in list(self._others.items()):
            try:
                os.write(fd, b"\0")
            except BlockingIOError:
                pass  # full of unread rings: it will wake
            except OSError:
                self._forget(name)

    def _refresh_others(self) -> None:
        changed_at = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - with every commit
        if changed_at == self._listed_at:
            return
        if time.time_ns() - changed_at > _FRESH_NS:
            self._listed_at = changed_at
        names = {pipe.name for pipe in self._folder.iterdir()} - {self._own}
        for name in self._others.keys() - names:
            self._forget(name)
        for name in names - self._others.keys():
            try:
                self._others[name] = os.open(self._folder / name, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno == errno.ENXIO:  # its reader is gone
                    with contextlib.suppress(OSError):
                        (self._folder / name).unlink()

    def _forget(self, name: str) -> None:
        os.close(self._others.pop(name))
