"""What only the SQLite store has: where rows lie, and what the caller's transaction sees."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.core.job import Retention
from penstock.core.lifecycle import Done, advance
from penstock.core.transition import Change
from penstock.stores.sql import claims
from penstock.stores.sql.database import Transaction
from penstock.stores.sql.store import SqlStore
from tests.contract.support import HOUR, ManualClock, add, add_one, drive, new, settle, take
from tests.stores.support import writing_connection

LARGE = '{"a":"' + "x" * 100_000 + '"}'


async def test_arguments_stand_apart_from_what_changes(
    store: SqlStore, look: sqlite3.Connection
) -> None:
    """Every transition rewrites the job's row: it has to stay short, however large they are."""
    job = await add_one(store, payload=LARGE)
    [running] = await take(store)
    await settle(store, running, Done())
    columns = [row[1] for row in look.execute("PRAGMA table_info (penstock_job)")]
    lengths = " + ".join(f"ifnull(length({column}), 0)" for column in columns)
    [length] = look.execute(f"SELECT {lengths} FROM penstock_job").fetchone()  # noqa: S608 - names of our own
    assert length < 1_000
    assert look.execute("SELECT job_id, body FROM penstock_payload").fetchall() == [(job.id, LARGE)]


async def test_arguments_are_removed_with_their_job(
    store: SqlStore, look: sqlite3.Connection, clock: ManualClock
) -> None:
    gone, kept = await add(store, new(payload=LARGE), new(payload=LARGE))
    [running] = await take(store, limit=1)
    assert running.id == gone.id
    await settle(store, running, Done())
    clock.advance(48 * HOUR)
    assert await store.prune(Retention(), 10) == 1
    found = look.execute("SELECT job_id FROM penstock_payload").fetchall()
    assert found == [(kept.id,)]


async def test_nothing_of_a_removed_job_is_left(
    store: SqlStore, look: sqlite3.Connection, clock: ManualClock
) -> None:
    await add_one(store, payload=LARGE, tags=("a", "b"), key="k", dedupe="d")
    for running in await take(store):
        await settle(store, running, Done())
    clock.advance(48 * HOUR)
    await store.prune(Retention(), 10)
    for table in ("job", "payload", "tag", "ready_tag", "log"):
        found = look.execute(f"SELECT count(*) FROM penstock_{table}").fetchone()  # noqa: S608 - names of our own
        assert found == (0,), table


async def test_entries_of_a_job_are_chained_without_a_gap(
    store: SqlStore, look: sqlite3.Connection
) -> None:
    job = await add_one(store)
    [running] = await take(store)
    await settle(store, running, Done())
    chain = look.execute(
        "SELECT id, previous FROM penstock_log WHERE job_id = ? ORDER BY id", (job.id,)
    ).fetchall()
    assert [previous for _, previous in chain] == [None, *(entry for entry, _ in chain[:-1])]


@pytest.mark.parametrize("readers", [1, 5])
def test_reads_of_many_threads_need_no_turn(store: SqlStore, readers: int) -> None:
    job = drive(add_one(store))
    with ThreadPoolExecutor(readers) as pool:
        found = list(pool.map(lambda _: drive(store.get([job.id])), range(50)))
    assert found == [[job]] * 50


def test_dedupe_is_enforced_by_the_database(store: SqlStore, look: sqlite3.Connection) -> None:
    """Not by checking first: writes that bypass our code are refused as well."""
    drive(add_one(store, dedupe="d"))
    columns = [row[1] for row in look.execute("PRAGMA table_info (penstock_job)")]
    copied = ", ".join("id + 1" if column == "id" else column for column in columns)
    with pytest.raises(sqlite3.IntegrityError):
        look.execute(f"INSERT INTO penstock_job SELECT {copied} FROM penstock_job")  # noqa: S608 - names of our own


async def test_details_cost_no_statement_more(store: SqlStore) -> None:
    """However many jobs are settled at once, each with its own."""

    async def statements(outcomes: list[Done]) -> int:
        await add(store, *[new()] * len(outcomes))
        jobs = await take(store)
        changes = [Change(job, advance(job, one)) for job, one in zip(jobs, outcomes, strict=True)]
        done: list[str] = []
        writing_connection(store).set_trace_callback(done.append)
        await store.transition(changes, actor="w")
        writing_connection(store).set_trace_callback(None)
        return len(done)

    plain = await statements([Done()] * 50)
    assert plain == await statements([Done(detail=f"[{n}]") for n in range(50)])


async def test_ready_tags_are_only_read_while_nothing_is_due(
    store: SqlStore, clock: ManualClock
) -> None:
    await add(store, new(tags=("a",)), new(tags=("b",), delay=HOUR))
    done: list[str] = []
    writing_connection(store).set_trace_callback(done.append)
    assert await store.ready_tags("default") == ["a"]
    assert done == []
    clock.advance(HOUR)
    assert await store.ready_tags("default") == ["a", "b"]
    assert done.count("COMMIT") == 1
    assert await store.ready_tags("default") == ["a", "b"]
    assert done.count("COMMIT") == 1
    writing_connection(store).set_trace_callback(None)


async def test_what_falls_due_meanwhile_keeps_nobody_from_an_answer(
    store: SqlStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(store, *(new(tags=(f"{n}",), delay=n * HOUR) for n in range(1, 9)))
    clock.advance(HOUR)
    promote, promoted = claims.promote_due, []

    def slow(tx: Transaction, now: int) -> bool:
        clock.advance(HOUR)  # the next one is due before this one is promoted
        promoted.append(now)
        return promote(tx, now)

    monkeypatch.setattr(claims, "promote_due", slow)
    assert await store.ready_tags("default") == ["1"]
    assert len(promoted) == 1
