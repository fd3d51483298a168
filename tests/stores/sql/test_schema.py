"""Schemas: new stores, stores of earlier schemas, and routines that are replaced."""

import json
import re
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from penstock import Penstock
from penstock.core.errors import SchemaMismatch, StoreError, StoreMoved
from penstock.core.lifecycle import TRANSITIONS, Done, Event, State, allowed_moves
from penstock.core.migration_lock import MigrationLock, MigrationPhase
from penstock.core.query import JobQuery
from penstock.core.store import Store
from penstock.runtime import Runtime
from penstock.stores import open_store
from penstock.stores.sql.schema import (
    Migration,
    Scripts,
    Versions,
    load_scripts,
    parse_migration,
)
from tests.contract.support import (
    SECOND,
    ManualClock,
    add_one,
    drive,
    history,
    look,
    settle,
    tables_of,
    take_one,
)
from tests.environment import SOON
from tests.stores.filled import (
    FOLDER,
    answered,
    fill,
    insert_page,
)
from tests.stores.sql.databases import Database, Postgres

SHOWN_AT = 20 * SECOND
"""How long after the clock's start the answers of the fixtures were recorded."""

RESERVED = [
    {"kind": "reserved", "name": name, "concurrency": 0}
    for name in ("entries", "entries-operations", "events", "indexing", "ingest", "notebooks")
]
"""The marks that stores of the earlier schema did not have: workers knew the names."""


@pytest.fixture
def earlier(database: Database) -> Database:
    """A database with the store of the fixture in it."""
    database.load(fixture(database, "sql"))
    return database


@pytest.fixture
def shown(clock: ManualClock) -> ManualClock:
    """The time at which the answers of the fixtures were recorded."""
    clock.advance(SHOWN_AT)
    return clock


def fixture(database: Database, kind: str) -> str:
    return (FOLDER / f"{database.dialect}-{database.before}.{kind}").read_text()


@contextmanager
def opened(database: Database, clock: ManualClock) -> Iterator[Store]:
    store = open_store(database.url, runtime=Runtime(clock))
    yield store
    drive(store.close())


# Stores of an earlier schema


def test_store_of_the_earlier_schema_is_upgraded_and_loses_nothing(
    earlier: Database, shown: ManualClock
) -> None:
    expected = json.loads(fixture(earlier, "json"))
    expected["limits"] = sorted(expected["limits"] + RESERVED, key=itemgetter("kind", "name"))
    holders = (*expected["records"], *expected["schedules"])
    for job in (*expected["jobs"], *(holder["job"] for holder in holders)):
        job["task_version"] = 1  # that of jobs from before there were versions
    found = answered(earlier.url, shown)
    assert found.keys() == expected.keys()
    for question, answer in expected.items():
        assert found[question] == answer, question
    assert answered(earlier.url, shown) == expected, "opened once more"


def test_upgraded_store_works(earlier: Database, shown: ManualClock) -> None:
    with opened(earlier, shown) as store:
        [needed, waiting] = drive(store.find(JobQuery(queue="bounded", limit=2)))[::-1]
        assert needed.state is State.CANCELLED
        new = drive(add_one(store, queue="fresh"))
        claimed = drive(take_one(store, queues=("fresh",)))
        assert drive(settle(store, claimed, Done("7"))).result_json == "7"
        events = [entry.event for entry in drive(history(store, new))]
        assert events == [Event.ENQUEUED, Event.CLAIMED, Event.DONE]
        # What a program had done in SQL before the upgrade is carried on.
        assert drive(look(store, waiting)).state is State.CANCELLED
        drive(tables_of(store).transact(lambda tx: insert_page(tx, 3, shown())))
        # Pages 1 and 2 were inserted before the upgrade, by a program.
        page = drive(take_one(store, queues=("pages",)))
        assert json.loads(page.payload) == {"page": "1"}
        drive(settle(store, page, Done()))
        assert json.loads(drive(take_one(store, queues=("pages",))).payload) == {"page": "2"}
        found = drive(
            tables_of(store).read(
                lambda tx: tx.execute("SELECT stage FROM page ORDER BY id").fetchall()
            )
        )
        assert [stage for (stage,) in found] == [4, 3, None], "the third has not changed yet"


async def test_upgrade_reserves_the_queues_of_applications(earlier: Database) -> None:
    """A worker without `queues` may start before any application has registered."""
    async with Penstock(earlier.url) as app:
        assert await app.limits.reserved() == {str(one["name"]) for one in RESERVED}


def test_upgraded_store_keeps_its_migration_lock(earlier: Database, shown: ManualClock) -> None:
    earlier.run(f"DELETE FROM {earlier.prefix}newcomer")  # noqa: S608 - ours
    earlier.run(f"INSERT INTO {earlier.prefix}seal VALUES ('leaving', 5, 'sqlite:///b.db')")  # noqa: S608 - ours
    lock = MigrationLock(phase=MigrationPhase.LEAVING, peer=5, place="sqlite:///b.db")
    with opened(earlier, shown) as store:
        assert drive(store.migration_lock()) == lock
        with pytest.raises(StoreMoved):
            drive(add_one(store))
        assert drive(store.set_migration_lock(None, expected=lock))
        drive(add_one(store))


def test_upgraded_schema_is_that_of_a_new_store(
    make: Callable[[], Database], shown: ManualClock
) -> None:
    made, upgraded = make(), make()
    upgraded.load(fixture(upgraded, "sql"))
    for database in (made, upgraded):
        with opened(database, shown):
            pass
    assert made.catalogue() == upgraded.catalogue()


def test_schema_that_was_never_released_is_refused(database: Database, clock: ManualClock) -> None:
    with opened(database, clock):
        pass
    set_version(database, "schema", database.before - 1)
    before = database.catalogue()
    expected = f"schema {database.before - 1}, which was never released.*export its jobs"
    with pytest.raises(StoreError, match=expected):
        open_store(database.url)
    assert database.catalogue() == before


def test_schema_of_a_newer_version_is_refused(database: Database, clock: ManualClock) -> None:
    with opened(database, clock):
        pass
    set_version(database, "schema", 99)
    set_version(database, "oldest_program", 99)
    known = database.scripts.version
    expected = rf"programs that know schema 99 \(this one knows {known}\).*upgrade Penstock"
    with pytest.raises(SchemaMismatch, match=expected):
        open_store(database.url)


def test_what_fills_a_fixture_fills_every_table(database: Database, clock: ManualClock) -> None:
    """What a fixture leaves out is not shown to survive."""
    with opened(database, clock) as store:
        drive(fill(store, clock))
    empty = {name for name in database.tables() if not database.run(f'SELECT 1 FROM "{name}"')}  # noqa: S608 - from the catalogue
    assert {name.removeprefix("penstock_") for name in empty} <= {"seal", "receipt"}


def set_version(database: Database, name: str, value: int) -> None:
    database.run(f"UPDATE {database.prefix}meta SET value = {value} WHERE name = '{name}'")  # noqa: S608 - ours


def versions(database: Database) -> Versions:
    return Versions.of(dict(database.run(f"SELECT name, value FROM {database.prefix}meta")))  # noqa: S608 - ours


# Routines


def raised(scripts: Scripts, by: int = 1, more: str = "") -> Scripts:
    """The scripts with routines of a higher version, and some more of them."""
    version = scripts.routines_version + by
    return replace(scripts, routines=scripts.routines + more, routines_version=version)


EXTRA = {
    "sqlite": "CREATE VIEW penstock_extra (n) AS SELECT 7;\n",
    "postgres": "CREATE OR REPLACE FUNCTION penstock.extra() RETURNS integer LANGUAGE sql AS "
    "$$ SELECT 7 $$;\n"
    "CREATE OR REPLACE TRIGGER extra AFTER INSERT ON penstock.job_active "
    "FOR EACH ROW WHEN (false) EXECUTE FUNCTION penstock.follow_tags();\n",
}
"""Routines that ours do not have."""
READ_EXTRA = {"sqlite": "SELECT n FROM penstock_extra", "postgres": "SELECT extra()"}


def test_routines_are_replaced_when_their_version_rises(
    database: Database, clock: ManualClock
) -> None:
    with opened(database, clock):
        before = database.catalogue()
    kind = "trigger penstock_queue_removed" if database.dialect == "sqlite" else "now()"
    changed = raised(database.scripts, more=EXTRA[database.dialect])
    database.prepare(changed)
    assert database.run(READ_EXTRA[database.dialect]) == [(7,)]
    assert {*before} < {*database.catalogue()}
    assert versions(database).routines == changed.routines_version
    # A version without the extra ones leaves nothing of them.
    database.prepare(raised(database.scripts, 2))
    assert database.catalogue() == before
    assert any(kind in name for name in before)


def test_routines_of_a_newer_version_stay(database: Database, clock: ManualClock) -> None:
    database.prepare(raised(database.scripts, more=EXTRA[database.dialect]))
    with opened(database, clock) as store:
        drive(add_one(store))
    assert database.run(READ_EXTRA[database.dialect]) == [(7,)]
    assert versions(database).routines == database.scripts.routines_version + 1


def test_routines_of_applications_stay(earlier: Database, shown: ManualClock) -> None:
    with opened(earlier, shown):
        pass
    kept = _of_applications(earlier)
    earlier.prepare(raised(earlier.scripts))
    assert _of_applications(earlier) == kept
    assert len(kept) == {"sqlite": 4, "postgres": 3}[earlier.dialect]


def _of_applications(database: Database) -> list[Any]:
    if database.dialect == "sqlite":
        return database.run(
            "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' "
            "AND (name LIKE 'page%' OR name LIKE 'penstock_mirror%') ORDER BY name"
        )
    return database.run(
        "SELECT proname, prosrc FROM pg_proc WHERE proname ~ '^(page|mirror)_' "
        "AND pronamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'meta'::regclass) "
        "ORDER BY proname"
    )


def test_many_that_open_at_once_replace_the_routines_once(
    database: Database, clock: ManualClock
) -> None:
    with opened(database, clock):
        pass
    count = (
        f"INSERT INTO {database.prefix}meta VALUES ('replaced', 1) "  # noqa: S608 - ours
        f"ON CONFLICT (name) DO UPDATE SET value = {database.prefix}meta.value + 1;\n"
    )
    changed = raised(database.scripts, more=count)
    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(database.prepare, changed) for _ in range(8)]:
            done.result()
    found = f"SELECT value FROM {database.prefix}meta WHERE name = 'replaced'"  # noqa: S608 - ours
    assert database.run(found) == [(1,)]


def test_external_inserts_go_on_while_routines_are_replaced(
    earlier: Database, shown: ManualClock
) -> None:
    """Other programs insert rows all the time, and none of them fails or is lost."""
    with opened(earlier, shown):
        pass
    stop = threading.Event()
    inserted = [threading.Semaphore(0), threading.Semaphore(0)]

    def insert(program: int) -> int:
        n = 0
        while not stop.is_set():
            page = 10 + 2 * n + program
            earlier.run(f"INSERT INTO page (id, at) VALUES ({page}, {shown()})")  # noqa: S608 - numbers
            n += 1
            inserted[program].release()
        return n

    with ThreadPoolExecutor(2) as threads:
        inserting = [threads.submit(insert, program) for program in (0, 1)]
        try:
            for rise in range(1, 11):
                earlier.prepare(raised(earlier.scripts, rise))
                # SQLite lets a statement meet one change of the schema, not two.
                assert all(one.acquire(timeout=SOON) for one in inserted for _ in range(2))
        finally:
            stop.set()
        total = sum(done.result() for done in inserting)
    assert versions(earlier).routines == earlier.scripts.routines_version + 10
    with opened(earlier, shown) as store:
        counts = drive(store.count(["pages"]))
    assert sum(counts.values()) == total + 2


def test_upgrade_gives_way_to_a_transaction_that_waits_for_it(
    postgres_url: str, postgres_connection: "psycopg.Connection[Any]", clock: ManualClock
) -> None:
    """The server would end the other one as a deadlock."""
    database = Postgres(postgres_url, postgres_connection)
    with opened(database, clock) as store:
        drive(add_one(store))
    add = 'SELECT call_add(\'{"queue": "%s", "task": "t", "body": "{}", "priority": 5, '
    add += "\"lease_time\": 1000000}', 'sql')"
    with psycopg.connect(database.server) as other, ThreadPoolExecutor(1) as threads:
        other.execute(f"SET search_path = {database.schema}".encode())
        other.execute((add % "default").encode())
        upgrade = threads.submit(database.prepare, raised(database.scripts))
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
        while not postgres_connection.execute(waiting, ["%FUNCTION%follow_tags%"]).fetchone():
            assert not upgrade.done()
        other.execute((add % "another").encode())  # needs a table that the upgrade has locked
        other.commit()
        upgrade.result()
    with opened(database, clock) as store:
        assert sum(drive(store.count()).values()) == 3


# Allowed moves


def transitions(database: Database) -> set[tuple[str, str, str]]:
    return {*database.run(f"SELECT state, event, next FROM {database.prefix}transition")}  # noqa: S608 - ours


def test_table_of_transitions_is_that_of_the_core(
    make: Callable[[], Database], shown: ManualClock
) -> None:
    expected = {
        (before, event, after)
        for (before, event), states in TRANSITIONS.items()
        for after in states
    }
    made, upgraded = make(), make()
    upgraded.load(fixture(upgraded, "sql"))
    for database in (made, upgraded):
        with opened(database, shown):
            pass
        assert transitions(database) == expected
        stages = database.run(f"SELECT stage, state FROM {database.prefix}stage ORDER BY stage")  # noqa: S608 - ours
        states = ["pending"] * 3 + ["running", "done", "failed", "cancelled", "superseded"]
        assert stages == list(enumerate(states))


def test_table_follows_the_core_when_the_version_of_routines_rises(
    database: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(database, clock):
        before = transitions(database)
    added = (State.DONE, Event.RESET)
    monkeypatch.setitem(TRANSITIONS, added, frozenset({State.PENDING}))
    database.prepare(database.scripts)
    assert transitions(database) == before, "stores of the present version stay as they are"
    database.prepare(raised(database.scripts))
    assert transitions(database) == before | {("done", "reset", "pending")}


DIGESTS = {"sqlite": 3570665652, "postgres": 2681231022}
"""Of the routines of the present version and the transitions written with them."""


def test_version_of_routines_rises_with_every_change(database: Database) -> None:
    digest = zlib.crc32(f"{database.scripts.routines}{sorted(allowed_moves())}".encode())
    assert digest == DIGESTS[database.dialect], (
        "routines.sql or TRANSITIONS has changed: raise the version at the head of routines.sql of "
        f"both databases, then put {digest} here"
    )


# Scripts


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that holds SQL."""
    folder = tmp_path / "some_store"
    (folder / "migrations").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "schema.sql").write_text("-- tables")
    (folder / "routines.sql").write_text("-- version: 12\n-- ö")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "some_store", raising=False)
    return folder


def test_migrations_come_by_number_and_nothing_else_counts(package: Path) -> None:
    for name in ("0010_later.sql", "0002_second.sql", "0003_third.sql", "README.md", "x.sql"):
        (package / "migrations" / name).write_text(f"{name}\n-- no switch\n")
    scripts = load_scripts("some_store")
    assert [*scripts.migrations] == [2, 3, 10]
    assert (scripts.version, scripts.routines_version, scripts.tables) == (10, 12, "-- tables")
    assert scripts.steps_from(Versions()) == {
        "tables": "-- tables",
        "routines": "-- version: 12\n-- ö",
    }
    assert scripts.steps_from(Versions(2, 12)) == {
        "migration 3 (third)": "0003_third.sql\n",
        "migration 10 (later)": "0010_later.sql\n",
    }
    assert [*scripts.steps_from(Versions(10, 3))] == ["routines"]
    assert scripts.is_current(Versions(10, 12))
    assert scripts.is_current(Versions(10, 13))
    assert not scripts.is_current(Versions(10, 11))


def test_two_migrations_of_one_number_are_refused(package: Path) -> None:
    for name in ("0002_second.sql", "0002_other.sql"):
        (package / "migrations" / name).write_text("-- no switch")
    with pytest.raises(ValueError, match="two migrations of the number 0002"):
        load_scripts("some_store")


def test_routines_without_a_version_are_refused(package: Path) -> None:
    (package / "routines.sql").write_text("-- tables")
    with pytest.raises(ValueError, match="does not begin with its version"):
        load_scripts("some_store")


@pytest.mark.parametrize("name", ["sqlite", "postgres"])
def test_migrations_leave_no_number_out(name: str) -> None:
    found = load_scripts(f"penstock.stores.{name}").migrations
    assert [*found] == list(range(min(found), max(found) + 1))


# Migrations only add

RESTRICTED = r"\b(UNIQUE|PRIMARY|REFERENCES|CHECK|GENERATED)\b"
ALLOWED = (
    r"CREATE TABLE \S+ \(.*\)[^()]*(\([^()]*\))?",
    r"CREATE SEQUENCE \S+",
    r"CREATE INDEX \S+ ON .+",
    rf"ALTER TABLE \S+ ADD COLUMN (?!.*{RESTRICTED})((?!.*\bNOT NULL\b).*|.*\bDEFAULT\b.*)",
    r"INSERT INTO (?!.*\bDO UPDATE\b).+",
)
"""What programs that know the schema before can live with: they go on writing."""


def subtractions(script: str) -> list[str]:
    """The statements of a migration that do more than add."""
    text = re.sub(r"--[^\n]*", "", script)
    found = [" ".join(statement.split()) for statement in text.split(";")]
    own = "|".join(map(re.escape, re.findall(r"CREATE TABLE (\S+)", text)))
    allowed = (*ALLOWED, rf"CREATE UNIQUE INDEX \S+ ON ({own}) .+")
    return [one for one in found if one and not any(re.fullmatch(each, one) for each in allowed)]


@pytest.mark.parametrize("name", ["sqlite", "postgres"])
def test_migrations_only_add(name: str) -> None:
    for number, migration in load_scripts(f"penstock.stores.{name}").migrations.items():
        assert subtractions(migration.adds) == [], f"migration {number} of {name} does not only add"


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE penstock_line",
        "DROP INDEX penstock_job_ready",
        "ALTER TABLE penstock_job RENAME COLUMN stage TO state",
        "ALTER TABLE penstock_job DROP COLUMN held",
        "ALTER TABLE penstock_job ADD COLUMN version INTEGER NOT NULL",
        "ALTER TABLE penstock_job ADD COLUMN name TEXT UNIQUE",
        "ALTER TABLE penstock.job ALTER COLUMN held TYPE bigint",
        "ALTER TABLE penstock.job ADD CONSTRAINT c CHECK (stage < 8)",
        "UPDATE penstock_job SET stage = 8 WHERE stage = 2",
        "DELETE FROM penstock_line",
        "CREATE UNIQUE INDEX penstock_once ON penstock_job (task)",
        "CREATE TRIGGER t AFTER INSERT ON penstock_job BEGIN SELECT 1",
        "CREATE VIEW v AS SELECT 1",
        "INSERT OR REPLACE INTO penstock_meta VALUES ('a', 1)",
        "INSERT INTO penstock_meta VALUES ('a', 1) ON CONFLICT DO UPDATE SET value = 2",
        "TRUNCATE penstock.line",
    ],
)
def test_migration_that_takes_something_away_is_noticed(statement: str) -> None:
    assert subtractions(f"CREATE TABLE penstock_new (n INTEGER);\n{statement};\n") == [statement]


def test_migration_may_add() -> None:
    script = """
    CREATE TABLE penstock_new (n INTEGER PRIMARY KEY, t TEXT CHECK (t <> '')) WITHOUT ROWID;
    CREATE TABLE penstock.receipt (client bigint PRIMARY KEY) WITH (fillfactor = 50);
    CREATE UNIQUE INDEX penstock_new_t ON penstock_new (t);
    CREATE INDEX penstock_job_new ON penstock_job (task) WHERE stage = 0; -- DROP nothing;
    ALTER TABLE penstock_job ADD COLUMN version INTEGER;
    ALTER TABLE penstock_job ADD COLUMN kind INTEGER NOT NULL DEFAULT 0;
    INSERT INTO penstock_meta VALUES ('a', 1) ON CONFLICT DO NOTHING;
    """
    assert subtractions(script) == []


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("A;\n-- no switch\n", Migration("A;\n", "name")),
        ("A;\n-- no switch", Migration("A;\n", "name")),
        ("A;\n-- switch: b is used\n", Migration("A;\n", "name", "b is used")),
        ("A;\n-- switch: b is used\nB;\n", Migration("A;\n", "name", "b is used", "B;\n")),
    ],
)
def test_migration_says_whether_it_needs_a_switch(script: str, expected: Migration) -> None:
    assert parse_migration(script, "0002_name.sql", "name") == expected


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("A;\n", "0002_name.sql must have one line"),
        ("A;\n-- switch: \n", "must have one line"),
        ("A;\n-- no switch\n-- switch: b\n", "must have one line"),
        ("A;\n-- no switch\nB;\n", "0002_name.sql must end with its line"),
    ],
)
def test_migration_that_does_not_say_so_is_refused(script: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_migration(script, "0002_name.sql", "name")
