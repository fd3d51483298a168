"""The runtime: how Penstock reaches the clock, randomness, threads, files and child processes.

Stores and workers get one `Runtime` at construction and use nothing else of the operating system.
The default, `SYSTEM`, hands out the functions of the standard library themselves, so it costs
nothing. A simulated runtime replaces them to run a whole system deterministically.
"""

import contextlib
import errno
import logging
import os
import queue
import random
import select
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from copy import copy
from typing import TYPE_CHECKING, Any, Self

from penstock.core.store import Clock
from penstock.forks import FORKS, Forks

if TYPE_CHECKING:
    import sqlite3
    import subprocess
    from asyncio import AbstractEventLoop

if sys.platform != "win32":
    import fcntl

StrPath = str | os.PathLike[str]

Step = Callable[[], float | None]
"""One round of background work. Returns the seconds until the next one is due, or None if the work
rests until it is woken."""


def system_clock() -> int:
    """Return the wall clock of the machine, in microseconds since 1970."""
    return time.time_ns() // 1000


def running_loop() -> "AbstractEventLoop | None":
    """Return the event loop that runs in this thread, if any.

    A program without one need not import asyncio, which takes as long as four starts of Python.
    """
    # The public function raises: 2 µs a call. Another thread may have imported half of the module;
    # then no loop runs yet.
    get_loop = getattr(sys.modules.get("asyncio.events"), "_get_running_loop", None)
    loop: AbstractEventLoop | None = None if get_loop is None else get_loop()
    return loop


_log = logging.getLogger(__name__)

_RUN, _STOP = True, False
# After a step that raised.
_RETRY_PAUSE = 1.0
_random = random.Random()  # noqa: S311 - for jitter and names, not for secrets
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_random.seed)


class Background:
    """Recurring work in a thread of its own: runs a step when woken or when its time has come.

    The thread starts with the first `wake`. Steps never overlap; wakes that arrive while a step
    runs are answered by one further step. If a step raises, the error is logged, and the step runs
    again after a second or when woken.
    """

    def __init__(self, step: Step, name: str) -> None:
        self._step = step
        self._name = name
        self._wakeups: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._paused = False
        self._closed = False

    def wake(self) -> None:
        """Run the step soon, in the background. Does nothing after `close`."""
        if self._thread is None:
            self._start()
        # A wake that nobody has taken yet starts a step that sees everything done before this one.
        if not self._closed and self._wakeups.empty():
            self._wakeups.put(_RUN)

    def close(self) -> None:
        """Wait for the step under way, then end the thread. The step never runs again.

        Wakes not yet answered are dropped. A step must not close its own `Background`.
        """
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._wakeups.put(_STOP)
            thread.join()

    def pause(self, deadline: float) -> bool:
        """Wait for the step under way, then end the thread until `resume`.

        Return False if the step has not ended by this time of `time.monotonic`. Wakes not yet
        answered may be dropped; later ones wait for `resume`.
        """
        with self._lock:
            self._paused = True
            thread = self._thread
        if thread is None:
            return True
        self._wakeups.put(_STOP)
        thread.join(max(0.0, deadline - time.monotonic()))
        return not thread.is_alive()

    def resume(self) -> None:
        """Undo `pause`: the thread starts with the next wake, or with one that has come since."""
        with self._lock:
            self._paused = False
        if not self._wakeups.empty():
            self._start()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed and not self._paused:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def _ends(self) -> bool:
        """Return whether the thread ends now; if not, it was resumed before it had paused."""
        with self._lock:
            if self._closed or self._paused:
                self._thread = None
                return True
        return False

    def _run(self) -> None:
        pause: float | None = None
        while self._wait(pause) or not self._ends():
            try:
                pause = self._step()
            except Exception:  # noqa: BLE001 - a thread that ended here would be missed by nobody
                _log.exception("background work %s failed, trying again", self._name)
                pause = _RETRY_PAUSE

    def _wait(self, pause: float | None) -> bool:
        """Wait for the next step; return False if there is none because of `close`."""
        try:
            running = self._wakeups.get(timeout=None if pause is None else max(pause, 0.0))
        except queue.Empty:
            return not (self._closed or self._paused)
        while running and not self._wakeups.empty():
            running = self._wakeups.get()
        return running


def _write_zeros(fd: int, offset: int, size: int) -> None:
    """Allocate disk space where the system has no call for it."""
    os.lseek(fd, offset, os.SEEK_SET)
    while size:
        size -= os.write(fd, bytes(min(size, 1_000_000)))


TRANSIENT = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE})
"""Errors of files that may pass: full or failing disks, too many open files."""


def _host() -> str:
    """Call `socket.gethostname`; it takes a while to import, and not every program needs it."""
    import socket

    return socket.gethostname()


def _open_sqlite(*args: Any, **options: Any) -> "sqlite3.Connection":
    """Call `sqlite3.connect`; programs on other stores do not import it."""
    import sqlite3

    connection: sqlite3.Connection = sqlite3.connect(*args, **options)
    return connection


class Files:
    """Operations on files, by paths and descriptors.

    `read_at`, `write_at` and `lock` do not exist on Windows. `sync_data` makes a file's content
    durable; `allocate` reserves disk space, filled with zeros.
    """

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    read = staticmethod(os.read)
    write = staticmethod(os.write)
    if sys.platform != "win32":
        read_at = staticmethod(os.pread)
        write_at = staticmethod(os.pwrite)
        lock = staticmethod(fcntl.flock)
    seek = staticmethod(os.lseek)
    truncate = staticmethod(os.ftruncate)
    sync = staticmethod(os.fsync)
    sync_data = staticmethod(getattr(os, "fdatasync", os.fsync))
    allocate = staticmethod(getattr(os, "posix_fallocate", None) or _write_zeros)
    stat = staticmethod(os.stat)
    size = staticmethod(os.fstat)
    replace = staticmethod(os.replace)
    unlink = staticmethod(os.unlink)
    mkdir = staticmethod(os.mkdir)
    rmdir = staticmethod(os.rmdir)
    list = staticmethod(os.listdir)
    pipe = staticmethod(os.pipe)

    @staticmethod
    def exists(path: StrPath) -> bool:
        """Return whether there is a file of this name, in half the time of a `stat` that fails."""
        return os.access(path, os.F_OK)

    @staticmethod
    def make_pipe(path: StrPath) -> None:
        """Make a named pipe that only this user may open; raises OSError where there are none."""
        if sys.platform == "win32":
            raise OSError("there are no named pipes")
        os.mkfifo(path, 0o600)

    @staticmethod
    def wait_readable(descriptors: Sequence[int], timeout: float) -> Sequence[int]:
        """Wait until one of these can be read, or for this time; return those that can."""
        if sys.platform == "win32":
            return select.select(descriptors, [], [], timeout)[0]
        poll = select.poll()  # not `select`, which cannot watch a descriptor over 1023
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        return [descriptor for descriptor, _ in poll.poll(timeout * 1000)]

    @staticmethod
    def try_lock(descriptor: int, *, exclusive: bool) -> bool:
        """Lock an open file unless others hold it; without such locks, succeed."""
        if sys.platform == "win32":
            return True
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    @staticmethod
    def unlock(descriptor: int) -> None:
        """Release the lock of an open file."""
        if sys.platform != "win32":
            fcntl.flock(descriptor, fcntl.LOCK_UN)


class Runtime:
    """What stores and workers use of the operating system.

    `clock` is the wall clock, in microseconds since 1970. `monotonic` returns seconds for measuring
    intervals, and `sleep` blocks the calling thread. `file_time` is the clock of file timestamps,
    in nanoseconds since 1970, even where a test sets `clock`. `random` is a source of randomness
    for jitter and names, not for secrets. `host` returns the name of this machine, `process_id`
    the id of this process, and `forks` is joined by what has to prepare for its forks. `sqlite`
    opens a SQLite file, with the arguments of `sqlite3.connect`.
    """

    def __init__(self, clock: Clock = system_clock) -> None:
        self.clock = clock
        self.monotonic: Callable[[], float] = time.monotonic
        self.sleep: Callable[[float], None] = time.sleep
        self.file_time: Callable[[], int] = time.time_ns
        self.random: random.Random = _random
        self.host: Callable[[], str] = _host
        self.process_id: Callable[[], int] = os.getpid
        self.forks: Forks = FORKS
        self.files: Files = Files()
        self.sqlite: Callable[..., sqlite3.Connection] = _open_sqlite

    def with_clock(self, clock: Clock) -> Self:
        """Return the same runtime with another clock."""
        other = copy(self)
        other.clock = clock
        return other

    def background(self, step: Step, name: str) -> Background:
        """Return background work that runs `step` when woken; `name` identifies it in logs."""
        return Background(step, name)

    def executor(self, threads: int, name: str) -> Executor:
        """Return an executor that calls functions in up to `threads` threads."""
        return ThreadPoolExecutor(threads, name)

    def spawn(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
        """Start a child process; the options are those of `subprocess.Popen`."""
        import subprocess

        return subprocess.Popen(command, **options)  # noqa: S603 - callers pass fixed commands

    def wait_for_exit(self, process: "subprocess.Popen[bytes]") -> None:
        """Block until a child process has exited, without reaping it.

        Until `process.wait` reaps it, the system does not reuse its process ID.
        """
        with contextlib.suppress(ChildProcessError):  # already reaped
            if hasattr(os, "waitid"):
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            else:  # macOS before Python 3.13
                process.wait()

    def signal_group(self, process: "subprocess.Popen[bytes]", number: int) -> None:
        """Send a signal to the process group that a child process leads, unless it was reaped."""
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)


SYSTEM = Runtime()
"""The runtime of the operating system."""
