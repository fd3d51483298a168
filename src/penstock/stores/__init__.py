"""The homes for jobs, and the one map from a URL to a store."""

import time
from collections.abc import Callable
from pathlib import Path, PurePath
from urllib.parse import SplitResult, unquote, urlsplit

from penstock.core.errors import ConfigurationError
from penstock.core.redaction import redacted
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
    scheme = url.partition(":")[0].strip().lower()
    if scheme not in _OPENERS:
        known = ", ".join(f"{name}://" for name in _OPENERS)
        raise ConfigurationError(f"unknown store URL {redacted(url)!r}: expected one of {known}")
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
        raise ConfigurationError(f"the in-memory store is just 'memory://', not {redacted(url)!r}")
    if not create:
        raise ConfigurationError("an in-memory store lives inside the program that made it")
    return MemoryStore(clock)


def _open_sqlite(url: str, clock: Clock, *, create: bool) -> Store:
    from penstock.stores.sqlite.store import SqliteStore

    parts = _parts(url)
    path = unquote(parts.path[1:])
    if not url.startswith("sqlite:///") or not path or parts.query or parts.fragment:
        raise ConfigurationError(
            "a SQLite store is 'sqlite:///relative/path' or 'sqlite:////absolute/path', "
            f"not {redacted(url)!r}"
        )
    if path == ":memory:":
        raise ConfigurationError("an in-memory store is 'memory://'")
    _refuse_missing_slash("sqlite", path)
    return SqliteStore(path, clock, create=create)


def _open_journal(url: str, clock: Clock, *, create: bool) -> Store:
    from penstock.stores.journal.store import JournalStore

    parts = _parts(url)
    path = unquote(parts.path[1:])
    if not url.startswith("journal:///") or not path or parts.fragment:
        raise ConfigurationError(
            "a journal is 'journal:///relative/folder' or 'journal:////absolute/folder', "
            f"not {redacted(url)!r}"
        )
    if parts.query not in {"", "durability=disk", "durability=process"}:
        raise ConfigurationError(
            "a journal has 'durability=disk' or 'durability=process', not what "
            f"{redacted(url)!r} asks for"
        )
    _refuse_missing_slash("journal", path)
    return JournalStore(path, clock, create=create, syncs=parts.query != "durability=process")


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:  # such as a bracket without its other half; says nothing of it
        raise ConfigurationError(f"{redacted(url)} is not a URL: {error}") from None


def _refuse_missing_slash(scheme: str, path: str) -> None:
    """Refuse a relative path that was most likely meant to be absolute.

    Three slashes name a path below the current directory, as in SQLAlchemy, and four an absolute
    one. Where `tmp` is a folder of the root directory and there is none of this name here,
    `journal:///tmp/jobs` would silently make a second `tmp` here.
    """
    first, *others = PurePath(path).parts
    if (
        others
        and first not in {"/", "//", ".."}
        and not path.startswith("./")
        and Path("/", first).is_dir()
        and not Path(first).exists()
    ):
        raise ConfigurationError(
            f"{scheme}:///{path} is a relative path, below {Path.cwd()}; for the absolute path "
            f"write {scheme}:////{path}, for the relative one {scheme}:///./{path}"
        )


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
