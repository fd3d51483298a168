"""The schema of a store, by its URL: what it needs, and its migration."""

from penstock.core.errors import ConfigurationError
from penstock.core.redaction import redacted
from penstock.runtime import SYSTEM, Runtime
from penstock.stores import sqlite_path
from penstock.stores.sql.schema import Progress, SchemaStatus
from penstock.stores.sqlite import schema as sqlite
from penstock.stores.sqlite.connection import translated as translated_sqlite


def status(url: str, *, runtime: Runtime = SYSTEM) -> SchemaStatus | None:
    """Return what the store at a URL needs, and change nothing; None if it has no schema."""
    if url.startswith("sqlite:"):
        path = sqlite_path(url)
        with translated_sqlite(path):
            return sqlite.status(path, runtime=runtime)
    if url.startswith("postgres"):
        from penstock.stores.postgres import schema as postgres
        from penstock.stores.postgres.connection import address, translated

        where = address(url)
        with translated(where.name):
            return postgres.status(where)
    _check_known(url)
    return None


def migrate(
    url: str, progress: Progress, *, force: bool = False, runtime: Runtime = SYSTEM
) -> None:
    """Migrate or create the store at a URL, and switch what no older program holds up.

    With `force`, switch in any case: older programs are refused from now on.
    """
    if url.startswith("sqlite:"):
        path = sqlite_path(url)
        with translated_sqlite(path):
            sqlite.apply(path, progress, force=force, runtime=runtime)
    elif url.startswith("postgres"):
        from penstock.stores.postgres import schema as postgres
        from penstock.stores.postgres.connection import address, translated

        where = address(url)
        with translated(where.name):
            postgres.apply(where, progress, force=force)
    else:
        _check_known(url)


def _check_known(url: str) -> None:
    if not url.startswith("journal:"):
        raise ConfigurationError(f"{redacted(url)} is not the URL of a store with a schema")
