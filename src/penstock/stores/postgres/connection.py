"""The URL of a PostgreSQL store, its connections, and the errors of the driver."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, cast, get_args
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import RawCursor, errors

from penstock.core.errors import (
    ConfigurationError,
    StoreError,
    StoreUnavailable,
    TooManyQueues,
)
from penstock.core.redaction import redacted
from penstock.stores import Migrate
from penstock.stores.postgres.arrays import register
from penstock.stores.sql import load_queries
from penstock.stores.sql.schema import load_scripts, too_old

SCRIPTS = load_scripts("penstock.stores.postgres")
MINIMUM_SERVER = 140_000
DAY = 86_400_000_000

_PARAMETERS = re.compile(r"\?.*", re.DOTALL)
# A host that matches is the second half of a password with an unescaped character.
_NO_HOST = re.compile(r"[@?#\s]")
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,40}")
_OWN = {"schema", "notify", "pooler", "migrate"}
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)
_PART = re.compile(r"\{(_\w+)\}")
# Statements are planned once, and always to use indexes. The planner's estimates are wrong for a
# table that was empty a moment ago.
_SETTINGS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "client_min_messages": "warning",
    "idle_in_transaction_session_timeout": "60s",
    # Acknowledged writes survive a crash of the server, unless the URL overrides this.
    "synchronous_commit": "on",
}
# Detect a server that has disappeared within half a minute.
_KEEPALIVES = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}

_BROKEN = (
    errors.InvalidAuthorizationSpecification,
    errors.InvalidCatalogName,
    errors.InsufficientPrivilege,
)
_RETRYABLE = (
    errors.ReadOnlySqlTransaction,
    errors.TooManyConnections,
    errors.DiskFull,
    errors.OutOfMemory,
    errors.LockNotAvailable,
    errors.QueryCanceled,
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.IdleInTransactionSessionTimeout,
)

# The view of the schema that this program knows: the store has dropped it.
_NO_VIEW = re.compile(r'relation "\w+\.schema_(\d+)" does not exist')
# The code with which routines refuse a queue too many, and the limit in their message.
_TOO_MANY_QUEUES = "PS002"
_LIMIT = re.compile(r"limit of (\d+)")


class Address(NamedTuple):
    """The location of a store, and how to connect to its server."""

    conninfo: str
    schema: str
    notify: bool
    pooled: bool
    name: str
    """The name of the store in messages, without a password."""
    migrate: Migrate | None
    """Who migrates the store, if the URL says so."""


def address(url: str) -> Address:
    """Parse a URL such as `postgresql://user@host/database?schema=penstock&notify=on`.

    Raise `ConfigurationError` for a URL that the driver would misread: its own messages quote what
    it mistakes for a host or a port, which may be half of a password.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _unreadable(url) from None
    given = parse_qsl(parts.query, keep_blank_values=True)
    own = {name: value for name, value in given if name in _OWN}
    rest = [(name, value) for name, value in given if name not in _OWN]
    schema = own.get("schema", "penstock")
    if not _IDENTIFIER.fullmatch(schema):
        raise ConfigurationError(
            f"schema must consist of lowercase letters, digits and underscores, not {schema!r:.80}"
        )
    if own.get("notify", "on") not in {"on", "off"}:
        raise ConfigurationError(f"notify must be on or off, not {own['notify']!r:.80}")
    if own.get("pooler", "session") not in {"session", "transaction"}:
        raise ConfigurationError(
            f"pooler must be session or transaction, not {own['pooler']!r:.80}"
        )
    if own.get("migrate", "auto") not in get_args(Migrate):
        raise ConfigurationError(f"migrate must be auto or manual, not {own['migrate']!r:.80}")
    pooled = own.get("pooler") == "transaction"
    query = urlencode(rest, quote_via=quote)  # not + for a space
    conninfo = urlunsplit(parts._replace(query=query))
    if not parts.netloc and url.startswith(f"{parts.scheme}:///"):
        # Some versions of Python leave out the slashes before an empty host.
        conninfo = f"{parts.scheme}:///{conninfo.partition(':')[2].lstrip('/')}"
    _check_readable(conninfo, url)
    return Address(
        conninfo,
        schema,
        own.get("notify", "on") == "on" and not pooled,
        pooled,
        f"{_PARAMETERS.sub('', redacted(url))}, schema {schema}",
        cast("Migrate | None", own.get("migrate")),
    )


def _check_readable(conninfo: str, url: str) -> None:
    try:
        given = psycopg.conninfo.conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError:
        raise _unreadable(url) from None
    hosts, ports = str(given.get("host", "")), str(given.get("port", ""))
    if _NO_HOST.search(hosts) or not all(
        not port or (port.isascii() and port.isdecimal()) for port in ports.split(",")
    ):
        raise _unreadable(url)


def _unreadable(url: str) -> ConfigurationError:
    return ConfigurationError(
        f"{redacted(url)} cannot be read as the URL of a PostgreSQL database; write special "
        "characters of the user and the password as % and two digits: / as %2F, @ as %40, "
        ": as %3A, % as %25, # as %23, ? as %3F, a space as %20"
    )


def queries(schema: str) -> dict[str, str]:
    """Return the queries for this schema, with their parts inserted."""
    found = {
        name: _COMMENT.sub("", text).strip()
        for name, text in load_queries("penstock.stores.postgres", schema=SCRIPTS.version).items()
    }

    def whole(text: str) -> str:
        while _PART.search(text):
            text = _PART.sub(lambda part: found[part[1]], text)
        return renamed(text, schema).rstrip(";")

    return {name: whole(text) for name, text in found.items() if not name.startswith("_")}


def renamed(text: str, schema: str) -> str:
    """Return this SQL for another schema."""
    return text if schema == "penstock" else text.replace("penstock.", f"{schema}.")


@contextlib.contextmanager
def translated(name: str) -> Iterator[None]:
    """Raise an error of Penstock that says what to do, in place of an error of the driver."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, name) from error


def translate(error: psycopg.Error, name: str) -> StoreError | TooManyQueues:  # noqa: PLR0911 - a list of cases
    """Return the error of Penstock for an error of the driver."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    if error.sqlstate == _TOO_MANY_QUEUES and (limit := _LIMIT.search(text)) is not None:
        return TooManyQueues(int(limit[1]))
    if isinstance(error, errors.UndefinedTable) and (view := _NO_VIEW.search(text)) is not None:
        return too_old(name, int(view[1]))
    if isinstance(error, _BROKEN) or "authentication failed" in text:
        return StoreError(f"{name} cannot be used: {text}")
    if isinstance(error, _RETRYABLE):
        return StoreUnavailable(f"{name}: {text}; nothing was changed, try again")
    if isinstance(error, psycopg.IntegrityError):
        return StoreError(f"{name} refuses a statement: {text}")
    if "unsupported startup parameter" in text:
        return StoreError(
            f"{name} is behind a connection pooler: add pooler=transaction to its URL"
        )
    if isinstance(error, psycopg.OperationalError):
        return StoreUnavailable(f"{name} does not answer: {text}; try again")
    return StoreError(f"{name} cannot be used: {text}")


def begin(where: Address) -> bytes:
    """Return the statements that begin a transaction."""
    return f"BEGIN; {local_settings(where)}".encode()


def local_settings(where: Address) -> str:
    """Return the settings of a transaction behind a pooler; other sessions have them already."""
    if not where.pooled:
        return ""
    settings = [f"SET LOCAL {name} = '{value}'; " for name, value in _SETTINGS.items()]
    return "".join([*settings, f"SET LOCAL search_path = {_search_path(where)}; "])


def _search_path(where: Address) -> str:
    """Return the schemas in which tables of applications are created and looked up."""
    return f"{where.schema},public"


def connect(where: Address) -> "psycopg.Connection[Any]":
    """Open a connection in autocommit mode, with durable writes."""
    settings: dict[str, Any] = {"application_name": "penstock", **_KEEPALIVES}
    if not where.pooled:
        session = {**_SETTINGS, "search_path": _search_path(where)}
        settings["options"] = " ".join(f"-c {name}={value}" for name, value in session.items())
    given = psycopg.conninfo.conninfo_to_dict(where.conninfo)
    if "options" in given and "options" in settings:
        settings["options"] += f" {given['options']}"
    if "," in str(given.get("host", "")):  # only the primary can be written to
        settings["target_session_attrs"] = "read-write"
    settings = {k: v for k, v in settings.items() if k == "options" or k not in given}
    connection = psycopg.connect(
        where.conninfo,
        autocommit=True,
        cursor_factory=RawCursor,
        prepare_threshold=None if where.pooled else 0,
        **settings,
    )
    connection.prepared_max = 500
    register(connection)
    found = connection.info.server_version
    if found < MINIMUM_SERVER:
        connection.close()
        needed = MINIMUM_SERVER // 10_000
        raise StoreError(
            f"{where.name}: PostgreSQL {needed} or newer is needed, not {found // 10_000}"
        )
    return connection
