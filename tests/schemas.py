"""Empty schemas for the tests of a process, each used many times.

To create one takes a tenth of a second, to empty it a few milliseconds.
"""

from __future__ import annotations

import os
import re
import secrets
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from pathlib import Path

import pytest

from tests import postgres

# A test may hold several at once, some of them not opened yet: so many others are given out before
# one comes again.
_ROTATION = 6
# Tests that travel through time leave tables for each day, which cost more than a fresh schema.
_MANY_TABLES = 60
_USERS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
_TABLES = """
    SELECT
        format('%%I.%%I', nspname, relname), relkind, relispartition, relname = 'meta',
        relkind = 'S' OR relispartition OR relname = ANY (%s)
    FROM pg_class JOIN pg_namespace ON relnamespace = pg_namespace.oid
    WHERE nspname = %s AND relkind IN ('r', 'p', 'S') AND relname NOT IN ('stage', 'transition')
"""
_OWN = re.findall(
    r"^CREATE (?:UNLOGGED )?TABLE penstock\.\"?(\w+)",
    files("penstock.stores.postgres").joinpath("schema.sql").read_text("utf-8"),
    re.MULTILINE,
)
_ADVICE = (
    'PENSTOCK_TEST_POSTGRES=postgresql://... names a database to use; -k "not postgres" leaves out'
    " the tests that need one"
)


class Schemas:
    """Hands out the URLs of empty schemas of one database, in turn."""

    def __init__(self, url: str) -> None:
        import psycopg

        self.url = url
        self.connection = psycopg.connect(url, autocommit=True, connect_timeout=30)
        self.connection.execute("SET client_min_messages = 'warning'")  # not a line for each table
        # As the stores do: a table that was empty when the planner looked may have grown since.
        self.connection.execute("SET enable_seqscan = off; SET enable_hashjoin = off")
        self._made: list[str] = []
        self._rotation: deque[str] = deque()

    def take(self) -> str:
        """The URL of a schema that nobody uses, with an empty store in it or none at all."""
        schema = None
        if len(self._rotation) >= _ROTATION:
            schema = self._emptied(self._rotation.popleft())
        if schema is None:
            schema = f"t_{uuid.uuid4().hex[:16]}"
            self._made.append(schema)
        self._rotation.append(schema)
        return f"{postgres.within(self.url, schema)}&application_name={schema}"

    def _emptied(self, schema: str) -> str | None:
        """The schema, or None when it is not worth it or somebody still uses it."""
        from psycopg import errors

        [users] = self.connection.execute(_USERS, [schema]).fetchone() or [0]
        found = self.connection.execute(_TABLES, [_OWN, schema]).fetchall()
        # Without tables, somebody may be about to create them.
        is_whole = any(is_meta for _, _, _, is_meta, _ in found)
        has_others = not all(is_own for *_, is_own in found)
        if users or not is_whole or has_others or len(found) > _MANY_TABLES:
            return None
        statements, last = ["SET lock_timeout = '1s'"], []
        for name, kind, is_part, is_meta, _ in found:
            if kind == "S":
                statements.append(f"SELECT setval('{name}', 1, false)")
            elif is_meta:
                last.append(_fresh_meta(name))  # what triggers count is nothing then
            elif not is_part:
                statements.append(f"DELETE FROM {name}")  # noqa: S608 - quoted by the server
        try:
            self.connection.execute("; ".join(statements + last).encode())
        except errors.LockNotAvailable:
            return None
        return schema

    def close(self, *, drop: bool) -> None:
        with self.connection:
            for schema in self._made if drop else []:
                postgres.drop_schema(self.connection, schema)


def _fresh_meta(name: str) -> str:
    """What a new store has: another number for the store, and nothing counted or seen yet."""
    source = secrets.randbits(60)
    return (
        f"DELETE FROM {name} WHERE name = 'timeline' OR name LIKE 'tables:%'; "  # noqa: S608 - names of our own
        f"UPDATE {name} SET value = CASE name WHEN 'source' THEN {source} "
        "WHEN 'own_lines' THEN 32 ELSE 0 END WHERE name NOT IN ('schema', 'routines')"
    )


_open: Callable[[], Schemas] | None = None


def schemas() -> Schemas:
    """Those of this process; the first test that asks starts the server."""
    assert _open is not None, "no tests run"
    return _open()


@contextmanager
def offered(run: Path, stop: Callable[[str], None]) -> Iterator[None]:
    """Let tests ask for schemas: in the database that PENSTOCK_TEST_POSTGRES names, or on a server
    shared by all processes that pass the same folder. Without either, tell `stop` why.
    """
    global _open  # noqa: PLW0603 - plain code asks, too, not only fixtures
    with ExitStack() as stack:
        opened: list[Schemas | str] = []

        def once() -> Schemas:
            if not opened:
                opened.append(_opened(run, stack))
            if isinstance(opened[0], str):
                stop(opened[0])
                pytest.fail(opened[0], pytrace=False)
            return opened[0]

        _open = once
        yield
        _open = None


def _opened(run: Path, stack: ExitStack) -> Schemas | str:
    """The schemas of a database that is let go of in the end, or why there are none."""
    import psycopg

    named = os.environ.get("PENSTOCK_TEST_POSTGRES")
    try:
        url = named or stack.enter_context(postgres.share(run)).url
        found = Schemas(url)
    except postgres.PostgresUnavailable as error:
        return f"no PostgreSQL server for the tests: {error}\n{_ADVICE}"
    except psycopg.Error as error:
        return f"the database that PENSTOCK_TEST_POSTGRES names: {error}\n{_ADVICE}"
    stack.callback(found.close, drop=named is not None)
    return found
