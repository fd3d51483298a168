"""Queues that go while a transaction of somebody else adds to them."""

import psycopg

from penstock.core.job import Retention
from penstock.core.lifecycle import Done, cancel
from penstock.engine import Penstock
from tests.contract.support import HOUR, add_one, ids, move, new, settle, take


async def names(app: Penstock) -> list[str]:
    return [queue.name for queue in await app.queues()]


async def test_queue_stays_for_a_job_that_is_not_committed_yet(
    postgres_url: str, postgres_server: str
) -> None:
    app = Penstock(postgres_url)
    last = await add_one(app.store, queue="q")
    with psycopg.connect(postgres_server) as own:
        [job] = await app.enqueue_many([new(queue="q")], connection=own)
        await app.store.delete([await move(app.store, last, cancel(last))])
        assert await names(app) == ["q"]
        own.commit()
    assert ids(await take(app.store)) == [job.id]
    await app.close()


async def test_queue_comes_back_in_a_transaction_of_somebody_else(
    postgres_url: str, postgres_server: str
) -> None:
    app = Penstock(postgres_url)
    with psycopg.connect(postgres_server) as own:
        [job] = await app.enqueue_many([new(queue="q")], connection=own)
        own.commit()
        [first] = await take(app.store)
        await settle(app.store, first, Done())
        await app.delete(job.id)
        assert await names(app) == []
        [again] = await app.enqueue_many([new(queue="q")], connection=own)
        own.commit()
    assert await names(app) == ["q"]
    assert ids(await take(app.store)) == [again.id]
    await app.close()


async def test_upkeep_removes_what_two_at_the_same_time_have_left(
    postgres_url: str, postgres_server: str
) -> None:
    app = Penstock(postgres_url)
    await add_one(app.store, queue="q")
    schema = postgres_url.partition("schema=")[2].partition("&")[0]
    with psycopg.connect(postgres_server, autocommit=True) as own:
        own.execute(f"INSERT INTO {schema}.queue (name) VALUES ('left')".encode())  # noqa: S608 - our own name
    assert await names(app) == ["left", "q"]
    await app.store.prune(Retention(finished=HOUR, failed=HOUR), 10, whole_days=True)
    assert await names(app) == ["q"]
    await app.close()
