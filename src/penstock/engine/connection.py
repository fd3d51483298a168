"""The connection of a `Penstock` to its store, which its parts share, and who calls through it."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Generic, NamedTuple, TypeVar

from penstock.core.errors import ConfigurationError, StoreError
from penstock.core.job import NewJob
from penstock.core.redaction import redacted
from penstock.core.secrets import Secrets
from penstock.core.store import Clock, Store, TableStore
from penstock.engine.results import ResultWatch
from penstock.engine.validation import PAYLOAD_LIMIT, JobValidator
from penstock.runtime import SYSTEM, Runtime
from penstock.stores import Migrate, is_private, open_store

T = TypeVar("T")

_acting: ContextVar[str | None] = ContextVar("penstock_actor", default=None)


class Caller(NamedTuple):
    """Somebody outside of the program on whose behalf it acts, and what they may do."""

    admit: Callable[[Sequence[NewJob]], None]
    """Raises an error if they may not store one of these jobs."""
    replaces_all: bool
    """Whether their superseding jobs may replace jobs that somebody else enqueued."""


_caller: ContextVar[Caller | None] = ContextVar("penstock_caller", default=None)


class _Set(Generic[T]):
    """Inside the block, a variable has another value.

    A class, because every request enters one: a generator would take three times as long.
    """

    __slots__ = ("_before", "_value", "_variable")

    def __init__(self, variable: ContextVar[T | None], value: T) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> None:
        self._before = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._before)


def acting_for(caller: Caller) -> AbstractContextManager[None]:
    """Inside the block, store only jobs that the caller may store."""
    return _Set(_caller, caller)


def acting_as(actor: str) -> AbstractContextManager[None]:
    """Inside the block, name this actor in the log."""
    return _Set(_acting, actor)


def admit(jobs: Sequence[NewJob]) -> None:
    """Raise an error if the caller may not store one of these jobs.

    Everything that stores the jobs of a caller, now or later, calls this first.
    """
    caller = _caller.get()
    if caller is not None:
        caller.admit(jobs)


def replaces_all() -> bool:
    """Return whether a superseding job may replace one that somebody else enqueued."""
    caller = _caller.get()
    return caller is None or caller.replaces_all


class _Process:
    """This process. Asking the system for its id in every call would cost a microsecond."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.pid = os.getpid()


class _UnannouncedProcess:
    """A process of uWSGI, which forks without calling Python's hooks unless it is told to."""

    @property
    def pid(self) -> int:
        return os.getpid()


_process = _UnannouncedProcess() if "uwsgi" in sys.modules else _Process()
# Stores that children have inherited. If they were collected, their connections would be closed.
_inherited: list[Store] = []


def _default_actor(runtime: Runtime) -> str:
    return f"{runtime.host()}:{runtime.process_id()}"


class Connection:
    """A store that is opened on first use, and the actor, runtime, secrets and checks around it.

    The parts of a `Penstock` hold nothing else in common.
    """

    def __init__(
        self,
        url: str,
        *,
        actor: str | None = None,
        payload_limit: int = PAYLOAD_LIMIT,
        runtime: Runtime = SYSTEM,
        create: bool = True,
        migrate: Migrate | None = None,
        opener: Callable[..., Store] = open_store,
        secrets: Secrets | None = None,
    ) -> None:
        self.url = url
        self.runtime = runtime
        self.secrets = secrets or Secrets()
        self.payload_limit = payload_limit
        validator = JobValidator(payload_limit)
        self.check = validator.check
        self.check_encoded = validator.check_encoded
        self.results = ResultWatch(self)
        self._given_actor = actor
        self._actor = actor or _default_actor(runtime)
        self.migrate = migrate
        self._create = create
        self._open = opener
        self._store: Store | None = None
        self._pid = 0
        self._opening = threading.Lock()
        self._held = False
        runtime.forks.join(self)

    @property
    def actor(self) -> str:
        """The name in the log for what is done here; see also `acting_as`."""
        return _acting.get() or self._actor

    @property
    def store(self) -> Store:
        """The open store. A forked child opens its own, or is refused one that is private."""
        if self._store is None:
            with self._opening:
                if self._store is None:
                    self._pid = _process.pid
                    self._store = self._open(
                        self.url, runtime=self.runtime, create=self._create, migrate=self.migrate
                    )
        if self._pid != _process.pid:
            raise StoreError(
                f"{redacted(self.url)} was opened before this process was forked, and cannot be "
                "shared with it; start processes first, or with the method 'spawn' (under uWSGI: "
                "lazy-apps, or py-call-uwsgi-fork-hooks)"
            )
        return self._store

    @property
    def tables(self) -> TableStore:
        """The part of the store for an application's own tables and transactions.

        Raises `ConfigurationError` if the store has no database.
        """
        tables = self.store.tables
        if tables is None:
            raise ConfigurationError(
                f"{redacted(self.url)} has no database for tables or transactions of your own; "
                "use a store that has one: sqlite:///FILE or postgresql://…"
            )
        return tables

    @property
    def clock(self) -> Clock:
        """The clock of the store if it has one of its own, else that of the runtime."""
        clock: Clock = getattr(self._store, "clock", self.runtime.clock)
        return clock

    async def close(self) -> None:
        """Close the store; everything acknowledged is durable."""
        if self._store is not None and self._pid == _process.pid:
            await self._store.close()
            self._store = None

    # Forks: see `Participant`

    def before_fork(self, deadline: float) -> None:
        """Wait until the store is open, if another thread is opening it."""
        left = deadline - self.runtime.monotonic()
        self._held = self._opening.acquire(timeout=max(0.0, left))

    def check_before_fork(self) -> None:
        """Do nothing: the store itself looks around."""

    def after_fork_in_parent(self) -> None:
        """Continue with the same store."""
        if self._held:
            self._held = False
            self._opening.release()

    def after_fork_in_child(self) -> None:
        """Open a store of this process when it is needed, unless the parent's was private."""
        self._opening, self._held = threading.Lock(), False
        self._actor = self._given_actor or _default_actor(self.runtime)
        self.results = ResultWatch(self)
        if self._store is not None and not is_private(self.url):
            _inherited.append(self._store)
            self._store = None

    @contextlib.contextmanager
    def elsewhere(
        self, url: str, store: Store, runtime: Runtime, actor: str | None = None
    ) -> Iterator[None]:
        """Inside the block, use another store, and afterwards the own one again; for tests.

        The caller closes the other store. The own one stays as it is, open or not.
        """
        kept = self.url, self.runtime, self._open, self._store, self._pid, self._actor
        self.url, self.runtime, self._actor = url, runtime, actor or self._actor
        self._open = lambda *_, **__: store
        self._store = None
        try:
            yield
        finally:
            self.url, self.runtime, self._open, self._store, self._pid, self._actor = kept
