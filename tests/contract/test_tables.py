"""Tables of an application, in the database of the store."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from penstock import (
    ConfigurationError,
    JobNotFound,
    JobQuery,
    LeaseLost,
    Penstock,
    QueueFull,
    State,
    StoreError,
    Worker,
    context,
    run_sync,
)
from penstock.engine.connection import acting_as
from penstock.tables import Statements, Tables, Transaction
from tests.contract.support import STORES, new

_ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL UNIQUE);"
ORDERS = Tables(sqlite=(_ORDERS,), postgres=(_ORDERS,))
STATED = (*ORDERS.sqlite, "ALTER TABLE orders ADD COLUMN state TEXT NOT NULL DEFAULT '?';")


def insert(item: str, tx: Transaction, number: int | None = None) -> None:
    number = number or tx.execute("SELECT count(*) + 1 FROM orders").fetchone()[0]
    tx.execute("INSERT INTO orders (id, item) VALUES (?, ?)", (number, item))


def items(tx: Statements) -> list[str]:
    return [item for (item,) in tx.execute("SELECT item FROM orders ORDER BY id")]


@pytest.fixture
async def app(shared_url: str) -> AsyncIterator[Penstock]:
    async with Penstock(shared_url) as app:
        await app.tables.prepare("shop", ORDERS)
        yield app


async def test_row_and_job_are_stored_together(app: Penstock) -> None:
    def buy(tx: Transaction) -> int:
        insert("tea", tx)
        (job,) = tx.enqueue([new(key="tea", tags=("hot",))])
        return job.id

    job_id = await app.transaction(buy)
    assert await app.tables.read(items) == ["tea"]
    found = await app.get(job_id)
    assert (found.key, found.tags, found.state) == ("tea", ("hot",), State.PENDING)


async def test_error_undoes_rows_and_jobs_of_its_own_work_only(app: Penstock) -> None:
    def fail(tx: Transaction) -> None:
        insert("milk", tx)
        tx.enqueue([new()])
        raise LookupError("no milk")

    def buy(item: str, tx: Transaction) -> None:
        tx.enqueue([new()])
        insert(item, tx)

    works: list[Callable[[Transaction], None]]
    works = [partial(buy, "tea"), fail, partial(buy, "bread"), partial(buy, "tea")]
    answers = await asyncio.gather(
        *(app.transaction(work) for work in works), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [type(None), LookupError, type(None), StoreError]
    assert "refuses a statement" in str(answers[3])
    assert sorted(await app.tables.read(items)) == ["bread", "tea"]
    assert len(await app.find(JobQuery())) == 2


@pytest.mark.parametrize("options", [{}, {"key": "k"}, {"dedupe": "d"}])
async def test_swallowed_refusal_does_not_store_one_without_the_other(
    app: Penstock, options: dict[str, str]
) -> None:
    await app.limits.queue("default", 0)

    def buy(tx: Transaction) -> bool:
        insert("tea", tx)
        try:
            tx.enqueue([new(**options)])
        except QueueFull:
            return False
        return True

    assert await app.transaction(buy) is False
    assert await app.tables.read(items) == ["tea"]
    assert await app.find() == []


async def test_job_can_wait_for_one_of_the_same_transaction(app: Penstock) -> None:
    def work(tx: Transaction) -> tuple[int, int]:
        (first,) = tx.enqueue([new()])
        (second,) = tx.enqueue([new(after=(first.id,))])
        return first.id, second.id

    first, second = await app.transaction(work)
    assert (await app.explain(second)).blocked_by == first
    with pytest.raises(JobNotFound):
        await app.transaction(lambda tx: tx.enqueue([new(after=(second + 100,))]))


async def test_log_names_the_caller(app: Penstock) -> None:
    with acting_as("ada"):
        (job,) = await app.transaction(lambda tx: tx.enqueue([new()]))
    (entry,) = await app.log(job.id)
    assert entry.actor == "ada"


async def test_reading_sees_one_moment(app: Penstock) -> None:
    def look(tx: Statements) -> tuple[list[str], list[str]]:
        before = items(tx)
        run_sync(other.transaction(lambda tx: insert("tea", tx)))
        return before, items(tx)

    other = Penstock(app.url)
    await app.tables.read(items)
    assert await app.tables.read(look) == ([], [])
    assert await app.tables.read(items) == ["tea"]
    await other.close()


async def test_reading_cannot_write(app: Penstock) -> None:
    with pytest.raises(StoreError):
        await app.tables.read(lambda tx: tx.execute("INSERT INTO orders VALUES (1, 'tea')"))
    assert await app.tables.read(items) == []


async def test_question_marks_in_texts_are_no_parameters(app: Penstock) -> None:
    query = """SELECT '?', "item" -- or?
    FROM orders WHERE item = ? AND id < ?"""
    await app.transaction(lambda tx: insert("tea", tx))
    found = await app.tables.read(lambda tx: tx.execute(query, ("tea", 9)).fetchall())
    assert found == [("?", "tea")]


async def test_statement_runs_with_each(app: Penstock) -> None:
    rows = [(n, f"item {n}") for n in range(100)]
    insertion = "INSERT INTO orders (id, item) VALUES (?, ?)"
    await app.transaction(lambda tx: tx.executemany(insertion, rows))
    assert await app.tables.read(items) == [item for _, item in rows]


async def test_steps_are_taken_once_and_in_their_order(app: Penstock) -> None:
    await app.transaction(lambda tx: insert("tea", tx))
    more = Tables(sqlite=STATED, postgres=STATED)
    apps = [Penstock(app.url) for _ in range(3)]
    await asyncio.gather(*(one.tables.prepare("shop", more) for one in apps))
    assert await app.tables.read(lambda tx: tx.execute("SELECT * FROM orders").fetchall()) == [
        (1, "tea", "?")
    ]
    with pytest.raises(StoreError, match="newer Penstock"):
        await app.tables.prepare("shop", ORDERS)
    for one in apps:
        await one.close()


async def test_failed_step_leaves_nothing(app: Penstock) -> None:
    steps = ("CREATE TABLE bills (id INTEGER);", "CREATE TABLE orders (id INTEGER);")
    with pytest.raises(StoreError):
        await app.tables.prepare("bills", Tables(sqlite=steps, postgres=steps))
    await app.tables.prepare("bills", Tables(sqlite=steps[:1], postgres=steps[:1]))


async def test_run_ends_with_what_it_has_written(app: Penstock) -> None:
    @app.task
    async def book(item: str) -> str:
        run = context()

        def work(tx: Transaction) -> None:
            insert(item, tx)
            run.finish({"booked": item}, connection=tx)

        await app.transaction(work)
        raise LookupError  # does not count any more

    job = await book.enqueue("tea")
    await Worker(app).run(until_empty=True)
    assert (await app.get(job.id)).returned == {"booked": "tea"}
    assert await app.tables.read(items) == ["tea"]


async def test_lost_lease_undoes_what_was_written(app: Penstock) -> None:
    await app.enqueue_many([new()])
    (job,) = await app.leases.claim(worker="w")
    await app.reset(job.id)

    async def finish(tx: Transaction) -> None:
        await app.leases.finish(job, connection=tx)

    def work(tx: Transaction) -> None:
        insert("tea", tx)
        run_sync(finish(tx))

    with pytest.raises(LeaseLost):
        await app.transaction(work)
    assert await app.tables.read(items) == []


def test_it_goes_without_an_event_loop(shared_url: str) -> None:
    app = Penstock(shared_url)
    run_sync(app.tables.prepare("shop", ORDERS))
    (job,) = run_sync(app.transaction(lambda tx: tx.enqueue([new()])))
    assert run_sync(app.find())[0].id == job.id
    run_sync(app.close())


@pytest.fixture(params=["memory", "journal"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Penstock]:
    app = Penstock(STORES[request.param](tmp_path))
    yield app
    run_sync(app.close())


async def test_stores_without_a_database_say_so(elsewhere: Penstock) -> None:
    def nothing(_: object) -> None: ...

    for call in (
        elsewhere.transaction(nothing),
        elsewhere.tables.read(nothing),
        elsewhere.tables.prepare("shop", ORDERS),
    ):
        with pytest.raises(ConfigurationError, match="has no database"):
            await call


async def test_work_that_catches_everything_cannot_lose_its_job(app: Penstock) -> None:
    def buy(tx: Transaction) -> None:
        insert("tea", tx)
        with suppress(Exception):
            tx.enqueue([new(key="tea")])

    await app.transaction(buy)
    assert await app.tables.read(items) == ["tea"]
    assert [job.key for job in await app.find()] == ["tea"]


async def test_job_of_a_transaction_takes_the_place_of_a_pending_one(app: Penstock) -> None:
    (old,) = await app.enqueue_many([new()])
    (waiting,) = await app.enqueue_many([new(after=(old.id,))])

    def replace(tx: Transaction) -> int:
        (newer,) = tx.enqueue([new()])
        assert tx.supersede(old.id, by=newer.id)
        return newer.id

    newer = await app.transaction(replace)
    assert (await app.get(old.id)).state is State.SUPERSEDED
    assert (await app.log(old.id))[-1].reason == f"superseded by job {newer}"
    assert [(edge.needed, edge.job_id) for edge in await app.edges([newer])] == [
        (newer, waiting.id)
    ]


async def test_job_that_is_not_pending_any_more_keeps_its_place(app: Penstock) -> None:
    (old,) = await app.enqueue_many([new()])
    await app.leases.claim(worker="w")

    def replace(tx: Transaction) -> bool:
        (newer,) = tx.enqueue([new()])
        return tx.supersede(old.id, by=newer.id)

    assert not await app.transaction(replace)
    assert (await app.get(old.id)).state is State.RUNNING
    assert not await app.transaction(lambda tx: tx.supersede(12345, by=old.id))
