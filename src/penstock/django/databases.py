"""The databases of a Django project as stores, one `Penstock` per database and process."""

import contextlib
import functools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.backends.base.creation import BaseDatabaseCreation

from penstock.core.errors import SchemaMismatch, StoreMissing
from penstock.core.secrets import DEFAULT_FIELDS
from penstock.engine.penstock import Penstock, run_sync
from penstock.stores import schemas

VENDORS = ("sqlite", "postgresql")
# Parameters of Django's connections that are objects for the driver, not settings of the server.
_OF_THE_DRIVER = {"context", "cursor_factory", "prepare_threshold", "client_encoding"}

_opened: dict[str, Penstock] = {}
_opening = threading.Lock()


def penstock_of(alias: str) -> Penstock:
    """Return the queue in a database of the project, by its alias in `DATABASES`.

    The threads of a process share it. Its tables have to exist: `manage.py migrate` makes them.
    """
    url = url_of(connections[alias])
    found = _opened.get(url)
    if found is None:
        with _opening:
            found = _opened.setdefault(url, unshared(url))
    return found


def unshared(url: str) -> Penstock:
    """Return a queue that the caller closes, such as that of a worker."""
    return Penstock(url, create=False, migrate="manual", secret_fields=DEFAULT_FIELDS)


def url_of(connection: Any) -> str:
    """Return the URL of the store in the database of a Django connection.

    Raises `ImproperlyConfigured` for a database that cannot hold jobs.
    """
    if (obstacle := obstacle_of(connection)) is not None:
        raise ImproperlyConfigured(obstacle)
    if connection.vendor == "sqlite":
        path = Path(connection.settings_dict["NAME"]).absolute()
        return f"sqlite:///{quote(str(path))}"
    return _postgres_url(connection)


def obstacle_of(connection: Any) -> str | None:
    """Return why the database of a connection cannot hold jobs; None if it can."""
    where = f'DATABASES["{connection.alias}"]'
    if connection.vendor not in VENDORS:
        return f"{where} is {connection.display_name}; jobs need SQLite or PostgreSQL"
    if is_in_memory(connection):
        return (
            f"{where} is a SQLite database in memory, which workers cannot open. In tests, give "
            f'{where}["TEST"]["NAME"] a file name, or use the dummy or immediate backend of '
            "Django's Tasks framework"
        )
    if connection.vendor == "postgresql" and connection.Database.__name__ != "psycopg":
        return f"{where} uses psycopg2; install psycopg 3: penstock[django,postgres]"
    return None


def is_in_memory(connection: Any) -> bool:
    """Return whether this is a SQLite database without a file."""
    return connection.vendor == "sqlite" and bool(connection.is_in_memory_db())


def _postgres_url(connection: Any) -> str:
    given = {
        name: str(value)
        for name, value in connection.get_connection_params().items()
        if name not in _OF_THE_DRIVER and value is not None
    }
    user, password = given.pop("user", ""), given.pop("password", "")
    secret = f":{quote(password, safe='')}" if password else ""
    # In this place, messages and logs hide the password.
    place = f"{quote(user, safe='')}{secret}@" if user or secret else ""
    database = quote(given.pop("dbname", ""), safe="")
    # Documented for projects behind a pooler that hands out connections per transaction.
    if connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
        given["pooler"] = "transaction"
    query = urlencode(given, quote_via=quote)
    return f"postgresql://{place}/{database}" + (f"?{query}" if query else "")


def migrate(connection: Any) -> None:
    """Create the tables of the queue, or bring them up to date; every call may repeat.

    Does nothing in a database that cannot hold jobs, such as that of tests in memory: a project
    may migrate all its databases. `enqueue` refuses it with the reason.
    """
    if obstacle_of(connection) is None:
        schemas.migrate(url_of(connection), lambda _: None)


@contextlib.contextmanager
def advised() -> Iterator[None]:
    """Add to an error about missing or outdated tables which command mends it."""
    try:
        yield
    except (StoreMissing, SchemaMismatch) as error:
        error.add_note("run: manage.py migrate")
        raise


def close(url: str) -> None:
    """Close the queue at a URL, if it is open; the next call opens it again."""
    found = _opened.pop(url, None)
    if found is not None:
        run_sync(found.close())


def close_before_test_databases_are_destroyed() -> None:
    """Close the queue in a test database first: PostgreSQL drops no database that is in use.

    Django has no signal for that moment.
    """
    original = BaseDatabaseCreation.destroy_test_db
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def destroy(self: Any, *args: Any, **kwargs: Any) -> Any:
        if obstacle_of(self.connection) is None:
            close(url_of(self.connection))
        return original(self, *args, **kwargs)

    BaseDatabaseCreation.destroy_test_db = destroy
