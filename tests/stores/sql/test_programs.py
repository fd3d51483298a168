"""Programs of several schemas on one store: what they may do, and when the store switches."""

import asyncio
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from msgspec.structs import replace

from penstock import Penstock, Worker
from penstock.core.errors import SchemaMismatch
from penstock.core.job import Claim
from penstock.core.lifecycle import Done, State
from penstock.core.query import JobQuery
from penstock.core.store import Store
from penstock.stores import open_store
from penstock.stores.sql.schema import Migration, Scripts, Versions
from tests.contract.support import add, add_one, drive, new, settle, tables_of, take_one
from tests.environment import SOON
from tests.stores.sql.databases import Database, Postgres, Sqlite
from tests.versions import ADDED, SWITCHED, make_later_version, program

TOO_OLD = r"only be used by programs that know .*schema.* \(this one knows \d+\).*upgrade Penstock"


def newer(database: Database, *, switch: bool, by: int = 1) -> Scripts:
    """The scripts of a later version; its last migration adds a table."""
    scripts = database.scripts
    migrations = dict(scripts.migrations)
    for number in range(scripts.version + 1, scripts.version + by):
        migrations[number] = Migration("")
    last = Migration(ADDED[database.dialect])
    if switch:
        last = replace(last, switch="the novelty is used", switches=SWITCHED[database.dialect])
    migrations[scripts.version + by] = last
    return replace(scripts, migrations=migrations, routines_version=scripts.routines_version + 1)


def versions(database: Database) -> Versions:
    return Versions.of(dict(database.run(f"SELECT name, value FROM {database.prefix}meta")))  # noqa: S608 - ours


def switched(database: Database) -> list[tuple[int]]:
    return database.run(f"SELECT n FROM {database.prefix}novelty")  # noqa: S608 - ours


@contextmanager
def opened(database: Database) -> Iterator[Store]:
    store = open_store(database.url)
    yield store
    drive(store.close())


def work(store: Store) -> None:
    """Write and read in the ways that a program has."""
    drive(add_one(store))
    drive(add(store, new(key="k"), new(delay=timedelta(days=1))))
    done = drive(settle(store, drive(take_one(store)), Done("1")))
    assert done.state is State.DONE
    assert drive(store.find(JobQuery()))
    assert drive(tables_of(store).transact(lambda tx: tx.execute("SELECT 1").fetchone()[0])) == 1


# Programs that go on


def test_older_program_goes_on_after_a_migration(database: Database) -> None:
    with opened(database) as store:
        work(store)
        database.prepare(newer(database, switch=False))
        work(store)
    before = database.catalogue()
    with opened(database) as store:
        work(store)
    assert database.catalogue() == before, "nothing is taken back"
    assert versions(database).schema == database.scripts.version + 1
    assert versions(database).oldest_program == max(database.scripts.switches)


def test_older_program_may_open_the_store_between_migration_and_switch(database: Database) -> None:
    later = newer(database, switch=True)
    with opened(database) as holding:
        database.prepare(later)
        with opened(database) as store:
            work(store)
        work(holding)


def test_transactions_know_what_was_switched(database: Database) -> None:
    def oldest(store: Store) -> int:
        return drive(store.database.write(lambda tx, _: [tx.oldest_program], None))  # type: ignore[attr-defined,no-any-return] # it is on a database

    with opened(database) as store:
        assert oldest(store) == max(database.scripts.switches)
    database.prepare(newer(database, switch=False))
    with opened(database) as store:
        assert oldest(store) == max(database.scripts.switches)


# Switches


def test_new_store_has_nothing_left_to_switch(database: Database) -> None:
    later = newer(database, switch=True)
    database.prepare(replace(later, tables=later.tables + ADDED[database.dialect]))
    assert versions(database).oldest_program == later.version
    with pytest.raises(SchemaMismatch, match=TOO_OLD):
        open_store(database.url)


def test_switch_waits_for_an_older_program(database: Database) -> None:
    later = newer(database, switch=True)
    with opened(database) as store:
        database.prepare(later)
        assert switched(database) == []
        assert database.switch(later) == database.scripts.version, "the schema that holds it up"
        work(store)
    assert versions(database).oldest_program == max(database.scripts.switches)
    assert database.switch(later) is None
    assert switched(database) == [(1,)]
    assert versions(database).oldest_program == later.version
    assert database.switch(later) is None
    database.prepare(later)
    assert switched(database) == [(1,)], "once"


def test_next_newer_program_switches_after_the_last_older_one_has_ended(
    database: Database,
) -> None:
    later = newer(database, switch=True)
    with opened(database), opened(database):
        database.prepare(later)
    assert switched(database) == []
    database.prepare(later)
    assert switched(database) == [(1,)]


def test_switch_of_a_program_in_between_is_not_held_up_by_it(database: Database) -> None:
    """Only programs that do not know the migration hold up its switch."""
    first = newer(database, switch=True)
    second = replace(first, migrations={**first.migrations, first.version + 1: Migration("")})
    with opened(database) as store:
        work(store)
    database.prepare(second)
    assert versions(database).oldest_program == first.version
    database.prepare(first)
    assert versions(database).schema == second.version


def test_older_program_is_refused_after_the_switch(database: Database) -> None:
    later = newer(database, switch=True)
    with opened(database) as store:
        work(store)
        database.prepare(later)
        assert database.switch(later, force=True) is None
        before = database.run(f"SELECT count(*) FROM {database.prefix}log")  # noqa: S608 - ours
        for call in (
            lambda: drive(add_one(store)),
            lambda: drive(add(store, new(key="k"), new())),
            lambda: drive(store.claim(Claim(worker="w", limit=1))),
            lambda: drive(store.find(JobQuery())),
            lambda: drive(tables_of(store).transact(lambda tx: tx.execute("SELECT 1").fetchone())),
        ):
            with pytest.raises(SchemaMismatch, match=TOO_OLD):
                call()
        assert database.run(f"SELECT count(*) FROM {database.prefix}log") == before  # noqa: S608 - ours
    known, needed = database.scripts.version, later.version
    with pytest.raises(SchemaMismatch, match=rf"know schema {needed} \(this one knows {known}\)"):
        open_store(database.url)


def test_statement_of_a_caller_is_refused_after_the_switch(
    postgres_url: str, postgres_connection: "psycopg.Connection[object]"
) -> None:
    database = Postgres(postgres_url, postgres_connection)
    later = newer(database, switch=True)
    with opened(database) as store, psycopg.connect(database.server) as connection:
        drive(tables_of(store).add_within([new()], actor="me", connection=connection))
        connection.commit()
        database.prepare(later)
        database.switch(later, force=True)
        with pytest.raises((SchemaMismatch, psycopg.errors.UndefinedTable), match="schema"):
            drive(tables_of(store).add_within([new()], actor="me", connection=connection))


def test_switch_waits_for_transactions_of_older_programs(
    postgres_url: str, postgres_connection: "psycopg.Connection[object]"
) -> None:
    """What was begun before the switch has ended before it."""
    database = Postgres(postgres_url, postgres_connection)
    later = newer(database, switch=True)
    with opened(database) as store, ThreadPoolExecutor(1) as threads:
        with psycopg.connect(database.server) as connection:
            drive(tables_of(store).add_within([new()], actor="me", connection=connection))
            # A migration does not wait: it replaces no view that older programs read.
            threads.submit(database.prepare, replace(later, routines_version=0)).result(SOON)
            switch = threads.submit(database.switch, later, force=True)
            waiting = (
                "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
            )
            while not postgres_connection.execute(waiting, ["%VIEW%schema_%"]).fetchone():
                assert not switch.done()
            assert switched(database) == []
            connection.commit()
        assert switch.result(SOON) is None
    assert switched(database) == [(1,)]


def test_many_that_migrate_at_once_migrate_and_switch_once(database: Database) -> None:
    with opened(database):
        pass
    later = newer(database, switch=True)
    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(database.prepare, later) for _ in range(4)]:
            done.result(SOON)
    assert versions(database).schema == versions(database).oldest_program == later.version
    assert switched(database) == [(1,)]


# Processes


@pytest.fixture(scope="session")
def later_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a version with one more migration, which needs a switch."""
    return make_later_version(tmp_path_factory.mktemp("later"))


def until_switched(database: Database, later: Scripts) -> None:
    """Try until the server has noticed the end of a process."""
    while database.switch(later) is not None:
        pass
    assert switched(database) == [(1,)]


def test_process_that_was_killed_holds_up_nothing(database: Database) -> None:
    later = newer(database, switch=True)
    with program(database.url) as older:
        database.prepare(later)
        assert database.switch(later) == database.scripts.version
        assert older.tell("write") == "done"
        older.process.kill()
        older.process.wait(SOON)
        until_switched(database, later)


def test_process_that_is_stopped_holds_up_the_switch_and_is_refused_after_it(
    database: Database,
) -> None:
    later = newer(database, switch=True)
    with program(database.url) as older:
        older.process.send_signal(signal.SIGSTOP)
        database.prepare(later)
        assert database.switch(later) == database.scripts.version
        assert database.switch(later, force=True) is None
        older.process.send_signal(signal.SIGCONT)
        for _ in range(2):
            assert re.search(TOO_OLD, older.tell("write"))


def test_versions_share_a_store_until_the_old_one_has_ended(
    database: Database, later_version: Path
) -> None:
    with program(database.url) as older, program(database.url, later_version) as later:
        assert older.tell("write") == later.tell("write") == "done"
        assert later.tell("beat") == "done"
        assert switched(database) == []
        with program(database.url) as rolled_back:  # a deploy that is taken back
            assert rolled_back.tell("write") == "done"
        older.process.kill()
        older.process.wait(SOON)
        while not switched(database):
            assert later.tell("beat") == "done"
        assert later.tell("write") == "done"
    assert versions(database).oldest_program == database.scripts.version + 1
    with program(database.url, says="refused: ") as older:
        assert re.search(TOO_OLD, older.tell("write"))


def test_version_that_may_not_migrate_is_refused_by_an_older_store(
    database: Database, later_version: Path
) -> None:
    with program(database.url) as older:
        url = database.url.replace("&migrate=auto", "")
        manual = "migrate='manual'"
        with program(url, later_version, manual, says="refused: ") as later:
            assert "penstock migrate-schema --apply" in later.tell("write")
        assert versions(database).schema == database.scripts.version
        assert older.tell("write") == "done"


async def test_worker_ends_when_the_store_refuses_it(database: Database) -> None:
    """Trying again would not help. Its job is run again by another, with the same attempt."""
    began = asyncio.Event()
    app = Penstock(database.url)

    @app.task
    async def endless() -> None:
        began.set()
        await asyncio.Event().wait()

    later = newer(database, switch=True)
    job = await endless.enqueue()
    working = asyncio.create_task(Worker(app).run())
    async with asyncio.timeout(SOON):
        await began.wait()
        await asyncio.to_thread(database.prepare, later)
        await asyncio.to_thread(database.switch, later, force=True)
        with pytest.raises(SchemaMismatch, match=TOO_OLD):
            await working
    await app.close()
    found = database.run(f"SELECT stage, attempt FROM {database.prefix}job WHERE id = {job.id}")  # noqa: S608 - ours
    assert found == [(3, 1)]


# Who migrates


def test_manual_migration_refuses_and_changes_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(database):
        pass
    database.run(f"UPDATE {database.prefix}meta SET value = value - 1 WHERE name = 'routines'")  # noqa: S608 - ours
    before = database.catalogue()
    url = database.url.replace("&migrate=auto", "")
    with pytest.raises(SchemaMismatch, match="penstock migrate-schema --apply"):
        open_store(url, migrate="manual")
    assert database.catalogue() == before
    assert versions(database).routines == database.scripts.routines_version - 1
    drive(open_store(url, migrate="auto").close())
    assert versions(database).routines == database.scripts.routines_version


def test_default_is_manual_for_a_shared_store_only(make: Callable[[], Database]) -> None:
    database = make()
    url = database.url.replace("&migrate=auto", "")
    drive(open_store(url).close())  # a new one is created in any case
    database.run(f"UPDATE {database.prefix}meta SET value = value - 1 WHERE name = 'routines'")  # noqa: S608 - ours
    if isinstance(database, Sqlite):
        drive(open_store(url).close())
        return
    with pytest.raises(SchemaMismatch, match="penstock migrate-schema --apply"):
        open_store(url)
