"""An open store, and what every part of `Penstock` stands on."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import NamedTuple, Self

from penstock.core.errors import StoreError
from penstock.core.job import NewJob
from penstock.core.redaction import redacted
from penstock.core.secrets import Secrets
from penstock.core.store import Clock, Store
from penstock.stores import open_store, system_clock

_acting: ContextVar[str | None] = ContextVar("penstock_actor", default=None)


class Caller(NamedTuple):
    """Somebody outside of the program, for whom it acts, and what they may do."""

    admit: Callable[[Sequence[NewJob]], None]
    """Raises if one of these jobs may not be stored for them."""
    replaces_all: bool
    """Whether a superseding job of theirs also replaces a job that somebody else enqueued."""


_caller: ContextVar[Caller | None] = ContextVar("penstock_caller", default=None)


@contextlib.contextmanager
def acting_for(caller: Caller) -> Iterator[None]:
    """Let a caller from outside store only what they may, inside the block."""
    before = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(before)


def admit(jobs: Sequence[NewJob]) -> None:
    """Raise if one of these jobs may not be stored for the caller; without one, all may be.

    Whatever stores jobs that are given to it, now or later, calls this first.
    """
    caller = _caller.get()
    if caller is not None:
        caller.admit(jobs)


def replaces_all() -> bool:
    """Whether a superseding job may replace one that somebody else enqueued."""
    caller = _caller.get()
    return caller is None or caller.replaces_all


@contextlib.contextmanager
def acting_as(actor: str) -> Iterator[None]:
    """Let the log name somebody else for what is done inside the block: whoever asked for it."""
    before = _acting.set(actor)
    try:
        yield
    finally:
        _acting.reset(before)


class _Process:
    """This process: asking the system which it is, with every call, would cost a microsecond."""

    pid = os.getpid()

    @classmethod
    def forked(cls) -> None:
        """Note that this is another one now."""
        cls.pid = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Process.forked)


class Opened:
    """A store that the first call opens which needs it; parts of `Penstock` stand on this."""

    def __init__(
        self,
        url: str,
        *,
        actor: str | None = None,
        clock: Clock = system_clock,
        create: bool = True,
        opener: Callable[..., Store] = open_store,
        secrets: Secrets | None = None,
    ) -> None:
        self.url = url
        self.secrets = secrets or Secrets()
        self._actor = actor or f"{socket.gethostname()}:{os.getpid()}"
        self._clock = clock
        self._create = create
        self._open = opener
        self._store: Store | None = None
        self._pid = 0
        self._opening = threading.Lock()

    @property
    def actor(self) -> str:
        """Who the log names for what is done here: see also `acting_as`."""
        return _acting.get() or self._actor

    @property
    def store(self) -> Store:
        """The open store. After a fork, the child cannot use the one its parent had opened."""
        if self._store is None:
            with self._opening:
                if self._store is None:
                    self._pid = _Process.pid
                    self._store = self._open(self.url, clock=self._clock, create=self._create)
        if self._pid != _Process.pid:
            raise StoreError(
                f"{redacted(self.url)} was opened before this process was forked, and cannot be "
                "shared with it; start processes first, or start them by 'spawn'"
            )
        return self._store

    async def close(self) -> None:
        """Let go of the store; what was acknowledged stays."""
        if self._store is not None and self._pid == _Process.pid:
            await self._store.close()
            self._store = None

    @property
    def clock(self) -> Clock:
        """What tells the time: the store, where that has a clock of its own."""
        clock: Clock = getattr(self._store, "clock", self._clock)
        return clock

    @contextlib.contextmanager
    def elsewhere(self, url: str, store: Store, clock: Clock) -> Iterator[None]:
        """Work on another store inside the block, and on its own again behind it; for tests.

        Who gives the store closes it. Its own stays as it is, open or not.
        """
        kept = self.url, self._clock, self._open, self._store, self._pid
        self.url, self._clock, self._open = url, clock, lambda *_, **__: store
        self._store = None
        try:
            yield
        finally:
            self.url, self._clock, self._open, self._store, self._pid = kept

    async def __aenter__(self) -> Self:
        """Open the store."""
        _ = self.store
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the store."""
        await self.close()
