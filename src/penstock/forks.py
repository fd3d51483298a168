"""Forks: what holds connections, threads or locks prepares for a fork of this process.

A forked child has the memory of its parent and only one of its threads. Connections that both use,
and locks that another thread held, break it. So before a fork, everything that has joined here ends
the calls under way and closes what it has open; afterwards, parent and child open their own.
"""

import concurrent.futures.thread  # noqa: F401 - registers first, see below
import itertools
import logging
import os
import threading
import time
from collections import Counter
from concurrent.futures import Executor
from typing import Protocol
from weakref import WeakValueDictionary

from penstock.core.errors import StoreError

_log = logging.getLogger(__name__)

# How long a fork waits for calls under way, in seconds. Then what they use stays open, and the
# child is refused.
_PATIENCE = 10.0
_POLL = 0.000_5


File = tuple[int, int, int]
"""The process that opened a file, and the file's device and number."""


class Participant(Protocol):
    """Something that prepares for forks; none of its methods may raise."""

    def before_fork(self, deadline: float) -> None:
        """Prepare, by this time of `time.monotonic`."""
        ...

    def check_before_fork(self) -> None:
        """Look around when all have prepared."""
        ...

    def after_fork_in_parent(self) -> None:
        """Continue."""
        ...

    def after_fork_in_child(self) -> None:
        """Leave to the parent what belongs to it."""
        ...


class Forks:
    """The forks of a process: everything that has joined prepares for each of them."""

    def __init__(self) -> None:
        self.open_files: Counter[File] = Counter()
        """How often files are open that a child must not share."""
        self._participants: WeakValueDictionary[int, Participant] = WeakValueDictionary()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._preparing: list[Participant] = []

    def join(self, participant: Participant) -> None:
        """Prepare this for every fork, as long as it exists, after those that joined before."""
        with self._lock:
            self._participants[next(self._numbers)] = participant

    def prepare(self) -> None:
        """Prepare all; of two threads that fork, one waits for the other until its fork is over."""
        self._lock.acquire()
        self._preparing[:] = self._participants.values()
        deadline = time.monotonic() + _PATIENCE
        for participant in self._preparing:
            participant.before_fork(deadline)
        for participant in self._preparing:
            participant.check_before_fork()

    def continue_in_parent(self) -> None:
        """End a fork in the process that forked."""
        for participant in reversed(self._preparing):
            participant.after_fork_in_parent()
        self._preparing.clear()
        self._lock.release()

    def continue_in_child(self) -> None:
        """End a fork in the new process."""
        for participant in self._preparing:
            participant.after_fork_in_child()
        self._preparing.clear()
        self._lock.release()


FORKS = Forks()
"""The forks of this process."""

if hasattr(os, "register_at_fork"):
    # The last one to register prepares first. `concurrent.futures.thread` then takes the lock of
    # all executors, without which calls under way do not end: so it is imported above.
    os.register_at_fork(
        before=FORKS.prepare,
        after_in_parent=FORKS.continue_in_parent,
        after_in_child=FORKS.continue_in_child,
    )


class Forkable(Protocol):
    """The connections and threads of a store, which a `ForkGuard` closes and opens."""

    def open_connections(self) -> None:
        """Open what was closed, on the first use after a fork."""
        ...

    def close_connections(self) -> None:
        """Close everything that a child must not share. Nobody uses it."""
        ...

    def pause_threads(self, deadline: float) -> bool:
        """End background threads; return False if they do not end by this time."""
        ...

    def resume_threads(self) -> None:
        """Let background threads start again, when there is something to do."""
        ...

    def check_before_fork(self) -> None:
        """Look around when everybody has closed their connections."""
        ...

    def after_fork_in_child(self) -> None:
        """Take note that this process is a child, which cannot use this store."""
        ...


class ForkGuard:
    """Keeps count of the threads that use a store's connections, and closes these for a fork.

    Every use is a `with` block, which opens the connections again if a fork has closed them. A
    thread may enter a block inside of another one, but not fork there: then nothing is closed.
    The first block opens them. To be joined when its owner is complete.
    """

    def __init__(self, name: str, owner: Forkable) -> None:
        self.forked = False
        """Whether this process is a child of the one that opened the store."""
        self._name = name
        self._owner = owner
        self._is_open = False
        self._users: dict[int, int] = {}  # by thread: how many blocks it is in
        self._entry = threading.Lock()
        self._held = False
        self._closed = False

    def __enter__(self) -> None:
        me = threading.get_ident()
        if me in self._users:
            self._users[me] += 1
            return
        if self.forked:
            raise self.refusal()
        with self._entry:
            if not self._is_open:
                if self._closed:
                    raise StoreError(f"{self._name} was closed")
                self._owner.open_connections()
                self._is_open = True
            self._users[me] = 1

    def __exit__(self, *_: object) -> None:
        me = threading.get_ident()
        blocks = self._users[me] - 1
        if blocks:
            self._users[me] = blocks
        else:
            del self._users[me]

    def refusal(self) -> StoreError:
        """Return the error for a child that uses a store of its parent."""
        return StoreError(
            f"{self._name} was opened before this process was forked, and cannot be shared with "
            "it; open it again here"
        )

    def close(self) -> None:
        """Take note that the connections are closed for good."""
        self._is_open, self._closed = False, True

    def before_fork(self, deadline: float) -> None:
        """See `Participant.before_fork`."""
        try:
            self._hold(deadline)
        except Exception:  # noqa: BLE001 - a fork cannot be stopped
            _log.exception("%s could not be closed before a fork", self._name)

    def _hold(self, deadline: float) -> None:
        if self._closed or threading.get_ident() in self._users:
            return
        if not self._owner.pause_threads(deadline):
            self._owner.resume_threads()
            self._warn()
            return
        entered = self._entry.acquire(timeout=max(0.0, deadline - time.monotonic()))
        while entered and self._users and time.monotonic() < deadline:
            time.sleep(_POLL)
        if not entered or self._users:
            if entered:
                self._entry.release()
            self._owner.resume_threads()
            self._warn()
            return
        self._held = True
        if self._is_open:
            self._is_open = False
            self._owner.close_connections()

    def _warn(self) -> None:
        _log.warning(
            "this process forks while calls of %s are under way; the child cannot use it",
            self._name,
        )

    def check_before_fork(self) -> None:
        """See `Participant.check_before_fork`."""
        if self._held:
            try:
                self._owner.check_before_fork()
            except Exception:  # noqa: BLE001 - a fork cannot be stopped
                _log.exception("before a fork, %s could not be examined", self._name)

    def after_fork_in_parent(self) -> None:
        """See `Participant.after_fork_in_parent`."""
        if self._held:
            self._held = False
            self._entry.release()
            self._owner.resume_threads()

    def after_fork_in_child(self) -> None:
        """See `Participant.after_fork_in_child`."""
        self.forked = True
        self._users.clear()
        self._owner.after_fork_in_child()


def end_threads(executor: Executor, deadline: float) -> bool:
    """Shut an executor down after the work it has; return False if that takes too long."""
    executor.shutdown(wait=False)
    threads: set[threading.Thread] = getattr(executor, "_threads", set())
    for thread in list(threads):
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)
