"""The databases that have a schema, as tests of schemas use them."""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import psycopg

from penstock.stores.postgres import schema as postgres
from penstock.stores.postgres.connection import SCRIPTS as POSTGRES
from penstock.stores.postgres.connection import address, connect
from penstock.stores.sql.schema import Scripts
from penstock.stores.sqlite import schema as sqlite
from tests.stores.filled import load_postgres, load_sqlite


class Database(Protocol):
    """One of the databases that have a schema."""

    dialect: str
    scripts: Scripts
    before: int
    """The schema of the fixture."""
    url: str
    prefix: str
    """What the names of tables begin with."""

    def load(self, script: str) -> None:
        """Make the store that a fixture describes."""

    def prepare(self, scripts: Scripts) -> None:
        """Open the store with other scripts than ours."""

    def switch(self, scripts: Scripts, *, force: bool = False) -> int | None:
        """Switch what can be switched, with other scripts than ours."""

    def run(self, sql: str) -> list[Any]:
        """Run a statement as another program does."""

    def tables(self) -> list[str]:
        """The names of our tables."""

    def catalogue(self) -> dict[str, Any]:
        """Every table, index, trigger, view and function of ours in the store."""


class Sqlite:
    dialect = "sqlite"
    scripts = sqlite.SCRIPTS
    before = 18
    prefix = "penstock_"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"

    def load(self, script: str) -> None:
        load_sqlite(script, self.path)

    def prepare(self, scripts: Scripts) -> None:
        with closing(sqlite.prepared(self.path, create=True, scripts=scripts)) as connection:
            presence, _ = sqlite.enter(connection, self.path, scripts=scripts)
            presence.close()

    def switch(self, scripts: Scripts, *, force: bool = False) -> int | None:
        with closing(sqlite3.connect(self.path, isolation_level=None, timeout=60)) as connection:
            return sqlite.switch(connection, self.path, force=force, scripts=scripts)

    def run(self, sql: str) -> list[Any]:
        with closing(sqlite3.connect(self.path, isolation_level=None, timeout=60)) as connection:
            return connection.execute(sql).fetchall()

    def tables(self) -> list[str]:
        return [name.split()[1] for name in self.catalogue() if name.startswith("table")]

    def catalogue(self) -> dict[str, Any]:
        found = self.run(
            "SELECT type || ' ' || name, sql FROM sqlite_schema WHERE sql IS NOT NULL "
            "AND name LIKE 'penstock%' AND name NOT LIKE 'penstock_mirror%'"
        )
        return {name: self._normalised(text) for name, text in found}

    def _normalised(self, sql: str) -> str:
        words = re.sub(r"\s+", " ", re.sub(r"--.*", "", sql))
        return re.sub(r" ?([(),]) ?", r"\1", words).strip()


CATALOGUE = """
    WITH ours AS (
        SELECT c.* FROM pg_class AS c WHERE c.relnamespace = %(schema)s::regnamespace
        AND relname !~ '(job|log)_[0-9]+' AND relname !~ '^page'
    )
    SELECT 'relation ' || relname, relkind::text, relpersistence::text, reloptions::text,
        pg_get_expr(relpartbound, oid), pg_get_partkeydef(oid)
    FROM ours
    UNION ALL
    SELECT
        format('column %%s %%s', relname, row_number() OVER (PARTITION BY o.oid ORDER BY attnum)),
        attname::text, format_type(atttypid, atttypmod),
        concat(attnotnull, attidentity, attcollation), pg_get_expr(adbin, adrelid), NULL
    FROM ours AS o JOIN pg_attribute ON attrelid = o.oid
    LEFT JOIN pg_attrdef ON adrelid = o.oid AND adnum = attnum
    WHERE attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT 'constraint ' || conname, relname::text, pg_get_constraintdef(c.oid), NULL, NULL, NULL
    FROM ours AS o JOIN pg_constraint AS c ON conrelid = o.oid
    UNION ALL
    SELECT 'index ' || relname, pg_get_indexdef(o.oid), NULL, NULL, NULL, NULL
    FROM ours AS o WHERE relkind IN ('i', 'I')
    UNION ALL
    SELECT format('trigger %%s %%s', relname, tgname), pg_get_triggerdef(t.oid),
        NULL, NULL, NULL, NULL
    FROM ours AS o JOIN pg_trigger AS t ON tgrelid = o.oid
    WHERE NOT tgisinternal AND tgname !~ '^(page|mirror)_'
    UNION ALL
    SELECT 'function ' || oid::regprocedure, pg_get_functiondef(oid),
        obj_description(oid, 'pg_proc'), NULL, NULL, NULL
    FROM pg_proc WHERE pronamespace = %(schema)s::regnamespace AND proname !~ '^(page|mirror)_'
"""


class Postgres:
    dialect = "postgres"
    scripts = POSTGRES
    before = 8

    def __init__(self, url: str, connection: "psycopg.Connection[Any]") -> None:
        self.url = url
        self.server = url.partition("?")[0]
        self.schema = address(url).schema
        self.prefix = f"{self.schema}."
        self.connection = connection

    def load(self, script: str) -> None:
        load_postgres(script, self.server, self.schema)

    def prepare(self, scripts: Scripts) -> None:
        where = address(self.url)
        postgres.prepare(where, create=True, migrate="auto", scripts=scripts).connection.close()

    def switch(self, scripts: Scripts, *, force: bool = False) -> int | None:
        where = address(self.url)
        with connect(where) as connection:
            return postgres.switch(connection, where, force=force, scripts=scripts)

    def run(self, sql: str) -> list[Any]:
        with psycopg.connect(self.server, autocommit=True) as connection:
            connection.execute(f"SET search_path = {self.schema}, public".encode())
            found = connection.execute(sql.encode())
            return found.fetchall() if found.description else []

    def tables(self) -> list[str]:
        kinds = {name: about[0] for name, about in self.catalogue().items() if "relation" in name}
        return [name.split()[1] for name, kind in kinds.items() if kind in ("r", "p")]

    def catalogue(self) -> dict[str, Any]:
        found = self.connection.execute(CATALOGUE.encode(), {"schema": self.schema}).fetchall()
        return json.loads(json.dumps({row[0]: row[1:] for row in found}).replace(self.schema, ""))  # type: ignore[no-any-return] # made here
