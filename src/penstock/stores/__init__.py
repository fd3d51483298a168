"""The homes for jobs, and the one map from a URL to a store."""

import time
from collections.abc import Callable
from urllib.parse import unquote, urlsplit

from penstock.core.errors import ConfigurationError
from penstock.core.store import Clock, Store


def system_clock() -> int:
    """The machine's wall clock, in microseconds since 1970."""
    return time.time_ns() // 1000


def open_store(url: object, *, clock: Clock = system_clock, create: bool = True) -> Store:
    """Open the store that a URL names.

    `memory://`, `sqlite:///path/to/jobs.db`, `journal:///path/to/folder` or
    `postgresql://user@host/database`. A store that is not there yet is
    created, or refused with `create=False`. A clock that has a method `watch` is told of the
    store: one that jumps has to wake who waits for its time.
    """
    if not isinstance(url, str):
        raise ConfigurationError(f"a store URL is text, not {url!r:.80}")
    scheme = urlsplit(url).scheme
    if scheme not in _OPENERS:
        known = ", ".join(f"{name}://" for name in _OPENERS)
        raise ConfigurationError(f"unknown store URL {url!r}: expected one of {known}")
    store = _OPENERS[scheme](url, clock, create=create)
    if (watch := getattr(clock, "watch", None)) is not None:
        watch(store)
    return store


def is_private(url: str) -> bool:
    """Whether the store that a URL names belongs to the one process that has it open."""
    return url.startswith(("memory:", "journal:"))


def _open_memory(url: str, clock: Clock, *, create: bool) -> Store:
    from penstock.stores.memory.store import MemoryStore

    if url != "memory://":
        raise ConfigurationError(f"the in-memory store is just 'memory://', not {url!r}")
    if not create:
        raise ConfigurationError("an in-memory store lives inside the program that made it")
    return MemoryStore(clock)


def _open_sqlite(url: str, clock: Clock, *, create: bool) -> Store:
    from penstock.stores.sqlite.store import SqliteStore

    parts = urlsplit(url)
    path = unquote(parts.path[1:])
    if not url.startswith("sqlite:///") or not path or parts.query or parts.fragment:
        raise ConfigurationError(
            "a SQLite store is 'sqlite:///relative/path' or 'sqlite:////absolute/path', "
            f"not {url!r}"
        )
    if path == ":memory:":
        raise ConfigurationError("an in-memory store is 'memory://'")
    return SqliteStore(path, clock, create=create)


def _open_journal(url: str, clock: Clock, *, create: bool) -> Store:
    from penstock.stores.journal.store import JournalStore

    parts = urlsplit(url)
    path = unquote(parts.path[1:])
    if not url.startswith("journal:///") or not path or parts.fragment:
        raise ConfigurationError(
            "a journal is 'journal:///relative/folder' or 'journal:////absolute/folder', "
            f"not {url!r}"
        )
    if parts.query not in {"", "durability=disk", "durability=process"}:
        raise ConfigurationError(
            f"a journal has 'durability=disk' or 'durability=process', not {parts.query!r}"
        )
    return JournalStore(path, clock, create=create, syncs=parts.query != "durability=process")


def _open_postgres(url: str, clock: Clock, *, create: bool) -> Store:
    try:
        from penstock.stores.postgres.store import PostgresStore
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "psycopg":
            raise
        raise ConfigurationError(
            "a PostgreSQL store needs the driver: pip install 'penstock[postgres]'"
        ) from error
    # The database's clock decides, unless a test brings its own.
    return PostgresStore(url, None if clock is system_clock else clock, create=create)


_OPENERS: dict[str, Callable[..., Store]] = {
    "memory": _open_memory,
    "sqlite": _open_sqlite,
    "journal": _open_journal,
    "postgresql": _open_postgres,
    "postgres": _open_postgres,
}
