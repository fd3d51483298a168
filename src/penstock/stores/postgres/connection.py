"""Reads the URL, opens connections, keeps the schema current, translates the driver's errors."""

import contextlib
import re
import time
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import RawCursor, errors

from penstock.core.errors import (
    ConfigurationError,
    StoreError,
    StoreMissing,
    StoreUnavailable,
    TooManyQueues,
)
from penstock.core.redaction import redacted
from penstock.stores.postgres.arrays import register
from penstock.stores.sql import load_migrations, load_queries

MINIMUM_SERVER = 140_000
MIGRATIONS = load_migrations("penstock.stores.postgres")
SCHEMA = MIGRATIONS[-1][0]
DAY = 86_400_000_000

_PARAMETERS = re.compile(r"\?.*", re.DOTALL)
# Such a host is the second half of a password with an unescaped character in it.
_NO_HOST = re.compile(r"[@?#\s]")
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,40}")
_OWN = {"schema", "notify", "pooler"}
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)
_PART = re.compile(r"\{(_\w+)\}")
# Statements are planned once, and always by their indexes: what the planner would guess from the
# size of a table that was empty a moment ago is wrong.
_SETTINGS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "client_min_messages": "warning",
    "idle_in_transaction_session_timeout": "60s",
    # What was acknowledged outlives a crash of the server, unless the URL says otherwise.
    "synchronous_commit": "on",
}
# A server that vanished without a word is noticed within half a minute.
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

_TOO_MANY_QUEUES = re.compile(r"as many queues as its limit of (\d+) allows")


class Address(NamedTuple):
    """Where the store is, and how to speak to the server there."""

    conninfo: str
    schema: str
    notify: bool
    pooled: bool
    name: str
    """How messages call it; without a password."""


def address(url: str) -> Address:
    """Read a URL such as `postgresql://user@host/database?schema=penstock&notify=on`.

    Raises `ConfigurationError` for one that the driver would misread. Its own errors quote what it
    took for a host or a port, which may be half of a password.
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
            f"schema is a name of small letters, digits and underscores, not {schema!r:.80}"
        )
    if own.get("notify", "on") not in {"on", "off"}:
        raise ConfigurationError(f"notify is on or off, not {own['notify']!r:.80}")
    if own.get("pooler", "session") not in {"session", "transaction"}:
        raise ConfigurationError(f"pooler is session or transaction, not {own['pooler']!r:.80}")
    pooled = own.get("pooler") == "transaction"
    conninfo = urlunsplit(
        parts._replace(query=urlencode(rest, quote_via=quote))
    )  # not + for a space
    _check_readable(conninfo, url)
    return Address(
        conninfo,
        schema,
        own.get("notify", "on") == "on" and not pooled,
        pooled,
        f"{_PARAMETERS.sub('', redacted(url))}, schema {schema}",
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
    """The queries, each whole, for this schema."""
    found = {
        name: _COMMENT.sub("", text).strip()
        for name, text in load_queries("penstock.stores.postgres").items()
    }

    def whole(text: str) -> str:
        while _PART.search(text):
            text = _PART.sub(lambda part: found[part[1]], text)
        return renamed(text, schema).rstrip(";")

    return {name: whole(text) for name, text in found.items() if not name.startswith("_")}


def renamed(text: str, schema: str) -> str:
    """This SQL for a schema with another name."""
    return text if schema == "penstock" else text.replace("penstock.", f"{schema}.")


@contextlib.contextmanager
def translated(name: str) -> Iterator[None]:
    """Turn the driver's errors into ours, with what to do next."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, name) from error


def translate(error: psycopg.Error, name: str) -> StoreError | TooManyQueues:  # noqa: PLR0911 - a list of cases
    """The error of ours that says what the driver's means for this store."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    if (found := _TOO_MANY_QUEUES.search(text)) is not None:
        return TooManyQueues(int(found[1]))
    if isinstance(error, _BROKEN) or "authentication failed" in text:
        return StoreError(f"{name} cannot be used: {text}")
    if isinstance(error, _RETRYABLE):
        return StoreUnavailable(f"{name}: {text}; nothing was changed, try again")
    if isinstance(error, psycopg.IntegrityError):
        return StoreError(f"{name} refuses a statement: {text}")
    if "unsupported startup parameter" in text:
        return StoreError(f"{name} is behind a pooler: say so in its URL, pooler=transaction")
    if isinstance(error, psycopg.OperationalError):
        return StoreUnavailable(f"{name} does not answer: {text}; try again")
    return StoreError(f"{name} cannot be used: {text}")


def begin(where: Address) -> bytes:
    """How a transaction begins."""
    return f"BEGIN; {local_settings(where)}".encode()


def local_settings(where: Address) -> str:
    """What a transaction behind a pooler brings along, and else a session has."""
    if not where.pooled:
        return ""
    settings = [f"SET LOCAL {name} = '{value}'; " for name, value in _SETTINGS.items()]
    return "".join([*settings, f"SET LOCAL search_path = {_search_path(where)}; "])


def _search_path(where: Address) -> str:
    """Where tables of applications are made and found."""
    return f"{where.schema},public"


def connect(where: Address) -> "psycopg.Connection[Any]":
    """A connection in autocommit mode, set up for durable writes."""
    settings: dict[str, Any] = {"application_name": "penstock", **_KEEPALIVES}
    if not where.pooled:
        session = {**_SETTINGS, "search_path": _search_path(where)}
        settings["options"] = " ".join(f"-c {name}={value}" for name, value in session.items())
    given = psycopg.conninfo.conninfo_to_dict(where.conninfo)
    if "options" in given and "options" in settings:
        settings["options"] += f" {given['options']}"
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


def prepare(where: Address, *, create: bool) -> int:
    """Make sure that the schema is there and current; safe when many start at once.

    Returns how far the server's clock is ahead of this machine's, in microseconds.
    """
    with connect(where) as connection:
        found = _version(connection, where.schema)
        if not found and not create:
            raise StoreMissing(f"there is no store at {where.name}")
        if found != SCHEMA:
            _migrate(connection, where)
        now = connection.execute(f"SELECT {where.schema}.now()").fetchall()[0][0]
        return int(now) - time.time_ns() // 1000


def _migrate(connection: "psycopg.Connection[Any]", where: Address) -> None:
    with connection.transaction():
        lock = zlib.crc32(f"penstock {where.schema}".encode()) - 2**31
        connection.execute("SELECT pg_advisory_xact_lock($1)", (lock,))
        found = _version(connection, where.schema)
        if found > SCHEMA:
            raise StoreError(
                f"{where.name} was written by a newer Penstock (schema {found}, this one knows "
                f"{SCHEMA}); upgrade Penstock"
            )
        if not found:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {where.schema}")
        for number, script in MIGRATIONS:
            if number > found:
                connection.execute(renamed(script, where.schema).encode(), prepare=False)
        connection.execute(
            f"INSERT INTO {where.schema}.meta (name, value) VALUES ('schema', $1) "  # noqa: S608 - checked
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (SCHEMA,),
        )


def _version(connection: "psycopg.Connection[Any]", schema: str) -> int:
    found = connection.execute("SELECT to_regclass($1)", (f"{schema}.meta",)).fetchone()
    if found is None or found[0] is None:
        return 0
    row = connection.execute(
        f"SELECT value FROM {schema}.meta WHERE name = 'schema'"  # noqa: S608 - checked
    ).fetchone()
    return int(row[0]) if row else 0
