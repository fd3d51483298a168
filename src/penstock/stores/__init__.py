"""Stores, and the one map from a URL to a store."""

from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Literal, cast, get_args
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from penstock.core.errors import ConfigurationError
from penstock.core.redaction import redacted
from penstock.core.store import Store
from penstock.runtime import SYSTEM, Runtime

Migrate = Literal["auto", "manual"]
"""Who migrates a store: whichever program opens it, or only `penstock migrate-schema`."""

_SQLITE_PARAMETERS = {"checkpoints": ("active", "passive"), "migrate": get_args(Migrate)}


def open_store(
    url: object, *, runtime: Runtime = SYSTEM, create: bool = True, migrate: Migrate | None = None
) -> Store:
    """Open the store at a URL.

    `memory://`, `sqlite:///path/to/jobs.db`, `journal:///path/to/folder` or
    `postgresql://user@host/database`. A store that does not exist yet is created, or refused with
    `create=False`. A store of an earlier schema is migrated with `migrate="auto"`, the default for
    SQLite, and refused with `migrate="manual"`, the default for PostgreSQL; the same parameter of
    the URL takes precedence. If the runtime's clock has a method `watch`, it is called with the
    store: a clock that jumps has to wake waiters.
    """
    if not isinstance(url, str):
        raise ConfigurationError(f"a store URL must be a string, not {url!r:.80}")
    scheme = url.partition(":")[0].strip().lower()
    if scheme not in _OPENERS:
        known = ", ".join(f"{name}://" for name in _OPENERS)
        raise ConfigurationError(f"unknown store URL {redacted(url)!r}: expected one of {known}")
    if migrate not in (None, *get_args(Migrate)):
        raise ConfigurationError(f"migrate must be auto or manual, not {migrate!r:.80}")
    store = _OPENERS[scheme](url, runtime, create=create, migrate=migrate)
    if (watch := getattr(runtime.clock, "watch", None)) is not None:
        watch(store)
    return store


def is_private(url: str) -> bool:
    """Return whether the store at a URL belongs to the one process that has it open."""
    return url.startswith(("memory:", "journal:"))


def _open_memory(url: str, runtime: Runtime, *, create: bool, migrate: Migrate | None) -> Store:  # noqa: ARG001 - it has no schema
    from penstock.stores.memory.store import MemoryStore

    if url != "memory://":
        raise ConfigurationError(f"the in-memory store is just 'memory://', not {redacted(url)!r}")
    if not create:
        raise ConfigurationError(
            "an in-memory store exists only inside the program that created it"
        )
    return MemoryStore(runtime)


def _open_sqlite(url: str, runtime: Runtime, *, create: bool, migrate: Migrate | None) -> Store:
    from penstock.stores.sql.store import SqlStore
    from penstock.stores.sqlite.database import SqliteDatabase

    path, given = sqlite_path(url), dict(parse_qsl(_parts(url).query))
    restarts = given.get("checkpoints") != "passive"
    chosen = sqlite_migrate(url, migrate)
    return SqlStore(
        SqliteDatabase(path, runtime, create=create, migrate=chosen, restarts_log=restarts)
    )


def sqlite_migrate(url: str, migrate: Migrate | None) -> Migrate:
    """Return who migrates a SQLite store: as its URL says, or a setting, or automatically."""
    given = dict(parse_qsl(_parts(url).query))
    return cast("Migrate", given.get("migrate") or migrate or "auto")


def sqlite_path(url: str) -> Path:
    """Return the file that the URL of a SQLite store names."""
    parts = _parts(url)
    path = unquote(parts.path[1:])
    given = parse_qsl(parts.query, keep_blank_values=True)
    known = all(value in _SQLITE_PARAMETERS.get(name, ()) for name, value in given)
    if not url.startswith("sqlite:///") or not path or not known or parts.fragment:
        raise ConfigurationError(
            "a SQLite store is 'sqlite:///relative/path' or 'sqlite:////absolute/path', "
            f"not {redacted(url)!r}"
        )
    if path == ":memory:":
        raise ConfigurationError("an in-memory store is 'memory://'")
    _refuse_missing_slash("sqlite", path)
    return Path(path)


def _open_journal(url: str, runtime: Runtime, *, create: bool, migrate: Migrate | None) -> Store:  # noqa: ARG001 - it has no schema
    from penstock.stores.journal.store import JournalStore

    path, syncs = journal_path(url), _parts(url).query != "durability=process"
    return JournalStore(path, runtime, create=create, syncs=syncs)


def journal_path(url: str) -> Path:
    """Return the folder that the URL of a journal names."""
    parts = _parts(url)
    path = unquote(parts.path[1:])
    if not url.startswith("journal:///") or not path or parts.fragment:
        raise ConfigurationError(
            "a journal is 'journal:///relative/folder' or 'journal:////absolute/folder', "
            f"not {redacted(url)!r}"
        )
    if parts.query not in {"", "durability=disk", "durability=process"}:
        raise ConfigurationError(
            "the only parameters of a journal are 'durability=disk' and 'durability=process', "
            f"unlike in {redacted(url)!r}"
        )
    _refuse_missing_slash("journal", path)
    return Path(path)


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:  # such as an unmatched bracket; the message does not quote the URL
        raise ConfigurationError(f"{redacted(url)} is not a URL: {error}") from None


def _refuse_missing_slash(scheme: str, path: str) -> None:
    """Refuse a relative path that was most likely meant to be absolute.

    Three slashes name a path below the current directory, as in SQLAlchemy, and four an absolute
    one. If `tmp` is a folder of the root directory and does not exist here, `journal:///tmp/jobs`
    would silently create a second `tmp` here.
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
            f"{scheme}:///{path} is a relative path, below {Path.cwd()}; write "
            f"{scheme}:////{path} for the absolute path, {scheme}:///./{path} for the relative one"
        )


def _open_postgres(url: str, runtime: Runtime, *, create: bool, migrate: Migrate | None) -> Store:
    try:
        from penstock.stores.postgres.database import PostgresDatabase
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "psycopg":
            raise
        raise ConfigurationError(
            "a PostgreSQL store needs the driver: pip install 'penstock[postgres]'"
        ) from error
    from penstock.stores.sql.store import SqlStore

    return SqlStore(PostgresDatabase(url, runtime, create=create, migrate=migrate))


_OPENERS: dict[str, Callable[..., Store]] = {
    "memory": _open_memory,
    "sqlite": _open_sqlite,
    "journal": _open_journal,
    "postgresql": _open_postgres,
    "postgres": _open_postgres,
}
