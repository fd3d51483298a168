"""Notifies waiting workers, in this process and in others, that something changed in the file.

Every listening process owns a named pipe in a folder next to the file; a process that commits
writes a byte into each. A lost byte costs no job: listeners also check SQLite's change counter a
few times a second, which finds commits of programs that do not know the pipes.
"""

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from penstock.core.errors import StoreError
from penstock.runtime import Runtime
from penstock.stores.sql.waiters import Waiters

_log = logging.getLogger(__name__)

# How often a listener checks the change counter, in seconds; without pipes, more often.
_POLL = 0.1
_POLL_WITHOUT_PIPES = 0.02
# What changed this recently may change again within one tick of its timestamp, and a log that was
# written to need not be a commit yet.
_FRESH_NS = 250_000_000
# Asking SQLite takes longer than checking whether its log has changed. But that check is not
# certain where timestamps are coarse, so SQLite is asked this often in any case, in seconds.
_ASK = 1.0


class SqliteNotifier:
    """Wakes waiters in every process that has the same file open.

    `counter` returns SQLite's change counter. `matters` says whether a commit that came without a
    notification concerns anyone.
    """

    def __init__(
        self,
        path: Path,
        runtime: Runtime,
        counter: Callable[[], int],
        matters: Callable[[], bool] = lambda: True,
    ) -> None:
        self.waiters = Waiters()
        # Processes of other versions know the folder by this name.
        self._folder = path.with_name(path.name + "-bell")
        self._folder_name = str(self._folder)
        self._own = f"{runtime.process_id()}-{runtime.random.getrandbits(32):08x}"
        self._runtime = runtime
        self._files = runtime.files
        self._counter = counter
        self._matters = matters
        self._listener = runtime.background(self._listen, "penstock-notifier")
        self._listening = False
        self._pipe: int | None = None
        self._counted = 0
        self._closed = False
        self._lock = threading.Lock()
        self._others: dict[str, int] = {}
        self._listed_at = -1
        self._log = f"{path}-wal"
        self._log_was: tuple[int, int] | None = None
        self._asked_at = 0.0

    def listen(self) -> int:
        """Listen to other processes from now on; return the current generation."""
        with self._lock:
            if not self._listening and not self._closed:
                self._listening = True
                try:
                    self._start()
                except BaseException:
                    self._listening = False
                    raise
            return self.waiters.generation

    def notify_others(self) -> None:
        """Wake waiters of other processes; never raises, never blocks."""
        if not self._files.exists(self._folder_name):  # nobody listens, or all poll
            return
        with self._lock, contextlib.suppress(OSError):  # it may have been removed meanwhile
            self._refresh_others()
            for name, descriptor in list(self._others.items()):
                try:
                    self._files.write(descriptor, b"\0")
                except BlockingIOError:
                    pass  # full of unread bytes: it will wake
                except OSError:
                    self._forget(name)

    def close(self) -> None:
        """Stop listening and remove the pipe."""
        with self._lock:
            self._closed = True
        with contextlib.suppress(OSError):
            self._files.unlink(self._folder / self._own)
        self._wake_listener()
        self._listener.close()
        self.close_pipes()
        self.waiters.wake()

    def pause(self, deadline: float) -> bool:
        """End the thread; see `Background.pause`."""
        self._wake_listener()
        return self._listener.pause(deadline)

    def resume(self) -> None:
        """Undo `pause`; whoever waits looks once, and listens again."""
        self._listener.resume()
        self.waiters.wake()

    def close_pipes(self) -> None:
        """Remove the own pipe and close those of others, until `listen` opens them again."""
        with self._lock:
            self._listening = False
            with contextlib.suppress(OSError):
                self._files.unlink(self._folder / self._own)
            if self._pipe is not None:
                self._files.close(self._pipe)
                self._pipe = None
            for descriptor in self._others.values():
                self._files.close(descriptor)
            self._others.clear()
            self._listed_at = -1
        with contextlib.suppress(OSError):
            self._files.rmdir(self._folder)

    def _wake_listener(self) -> None:
        if self._pipe is not None:
            with contextlib.suppress(BlockingIOError):  # full of unread bytes: it wakes anyway
                self._files.write(self._pipe, b"\0")

    def _start(self) -> None:
        with contextlib.suppress(OSError):  # no pipes here: poll
            with contextlib.suppress(FileExistsError):
                self._files.mkdir(self._folder)
            self._files.make_pipe(self._folder / self._own)
            # Also open for writing: no end of file when the last other process closes it.
            self._pipe = self._files.open(self._folder / self._own, os.O_RDWR | os.O_NONBLOCK)
        self._counted = self._counter()
        self._matters()  # what happened before does not
        self._listener.wake()

    def _listen(self) -> float | None:
        """Wait for a notification and check the counter; return when to do so again."""
        if self._closed or not self._listening:
            return None
        if self._pipe is None:
            pause, notified = _POLL_WITHOUT_PIPES, False
        else:
            pause, notified = 0.0, self._was_notified(self._pipe)
        if not (notified or self._may_have_changed()):
            return pause
        if notified:  # before SQLite is asked: a worker may be about to claim
            self.waiters.wake()
        try:
            latest = self._counter()
            tell = not notified and latest != self._counted and self._matters()
        except StoreError as error:
            _log.warning("the store does not answer: %s", error)
            self._log_was = None
            return _POLL
        if tell:
            self.waiters.wake()
        self._counted = latest
        return pause

    def _was_notified(self, pipe: int) -> bool:
        """Return whether a byte came within the time between two checks."""
        if not self._files.wait_readable([pipe], _POLL):
            return False
        self._files.read(pipe, 65536)
        return True

    def _may_have_changed(self) -> bool:
        """Return whether SQLite has to be asked if there was a commit."""
        try:
            about = self._files.stat(self._log)
        except OSError:  # there is none while nobody has written
            return True
        log = about.st_mtime_ns, about.st_size
        now = self._runtime.monotonic()
        if log == self._log_was and now - self._asked_at < _ASK:
            return False
        fresh = self._runtime.file_time() - about.st_mtime_ns < _FRESH_NS
        self._log_was = None if fresh else log
        self._asked_at = now
        return True

    def _refresh_others(self) -> None:
        changed_at = self._files.stat(self._folder_name).st_mtime_ns
        if changed_at == self._listed_at:
            return
        if self._runtime.file_time() - changed_at > _FRESH_NS:
            self._listed_at = changed_at
        names = {*self._files.list(self._folder)} - {self._own}
        for name in self._others.keys() - names:
            self._forget(name)
        for name in names - self._others.keys():
            path = self._folder / name
            try:
                self._others[name] = self._files.open(path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno == errno.ENXIO:  # its reader is gone
                    with contextlib.suppress(OSError):
                        self._files.unlink(path)

    def _forget(self, name: str) -> None:
        self._files.close(self._others.pop(name))
