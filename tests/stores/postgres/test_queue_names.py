"""Queues that go, or get a line of their own, while a transaction of somebody else adds to them."""

from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import psycopg
import pytest

from penstock.core.job import Job, Retention
from penstock.core.lifecycle import Done, cancel
from penstock.core.limits import Limit
from penstock.core.queue import QueueSettings
from penstock.core.store import Store
from penstock.engine.penstock import Penstock
from penstock.stores import open_store
from tests.contract.support import (
    HOUR,
    add,
    add_one,
    drive,
    give_no_lines,
    ids,
    move,
    new,
    settle,
    tables_of,
    take,
    take_one,
)
from tests.environment import SOON

T = TypeVar("T")


class Processes(NamedTuple):
    """Two stores on one schema, and a program with a transaction of its own."""

    one: Store
    other: Store
    own: "psycopg.Connection[Any]"

    def add_within(self, **options: Any) -> Job:
        """Add a job in that transaction, which stays open."""
        [job] = drive(
            tables_of(self.one).add_within([new(**options)], actor="p", connection=self.own)
        )
        return job

    def at_once(self, verb: Coroutine[Any, Any, T]) -> T:
        """What the other store does now; it does not wait for the transaction to end."""
        with ThreadPoolExecutor(1) as threads:
            doing = threads.submit(drive, verb)
            try:
                return doing.result(SOON)
            finally:
                if not doing.done():
                    self.own.rollback()


@pytest.fixture
def processes(postgres_url: str, postgres_server: str) -> Iterator[Processes]:
    """On a schema whose queues begin without a line of their own."""
    one, other = open_store(postgres_url), open_store(postgres_url)
    drive(tables_of(one).transact(give_no_lines))
    with psycopg.connect(postgres_server) as own:
        yield Processes(one, other, own)
    drive(one.close())
    drive(other.close())


async def names(app: Penstock) -> list[str]:
    return [queue.name for queue in await app.queues.list()]


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


def test_producer_waits_for_no_transaction_that_adds_to_a_new_queue(processes: Processes) -> None:
    within = processes.add_within(queue="q")
    added = processes.at_once(add_one(processes.other, queue="q"))
    processes.own.commit()
    assert sorted(ids(drive(take(processes.other)))) == ids([within, added])


def test_producer_waits_for_no_transaction_that_adds_to_a_queue_that_went(
    processes: Processes,
) -> None:
    """What a process has made once may be gone."""
    processes.add_within(queue="q")
    processes.own.commit()
    ended = drive(settle(processes.one, drive(take_one(processes.one)), Done()))
    drive(processes.other.delete([ended]))
    assert drive(processes.one.queues()) == []
    within = processes.add_within(queue="q")
    added = processes.at_once(add_one(processes.other, queue="q"))
    assert ids(processes.at_once(take(processes.other))) == [added.id]
    processes.own.commit()
    assert ids(drive(take(processes.other))) == [within.id]


def test_producer_of_a_tenant_waits_for_no_transaction_of_another(processes: Processes) -> None:
    first = drive(add_one(processes.other, queue="q"))
    within = processes.add_within(queue="q", tenant="a")
    added = processes.at_once(add_one(processes.other, queue="q", tenant="b"))
    processes.own.commit()
    found = drive(take(processes.other))
    assert sorted(ids(found)) == ids([first, within, added])


@pytest.mark.parametrize("wanted", [{"queues": ("q",)}, {"except_queues": frozenset({"other"})}])
def test_claim_waits_for_no_transaction_that_adds_a_job_of_a_tenant(
    wanted: dict[str, Any], processes: Processes
) -> None:
    drive(processes.other.limit(Limit(kind="task", name="t", concurrency=10)))
    first, _ = drive(add(processes.other, new(queue="q"), new(queue="other", task="u")))
    within = processes.add_within(queue="q", tenant="a")
    assert ids(processes.at_once(take(processes.other, limit=1, **wanted))) == [first.id]
    processes.own.commit()
    assert ids(drive(take(processes.other, **wanted))) == [within.id]


def test_claim_that_leaves_out_a_queue_waits_for_no_transaction_that_adds_to_it(
    processes: Processes,
) -> None:
    _, wanted = drive(add(processes.other, new(queue="q"), new(queue="r")))
    processes.add_within(queue="q", tenant="a")
    found = processes.at_once(take(processes.other, except_queues=frozenset({"q"})))
    assert ids(found) == [wanted.id]


def test_tenants_of_a_transaction_take_turns_with_others(processes: Processes) -> None:
    drive(add_one(processes.other, queue="other", task="u", delay=HOUR))
    for tenant in "aaabb":
        processes.add_within(queue="q", tenant=tenant)
    processes.own.commit()
    turns = [job.tenant for job in drive(take(processes.other))]
    assert {*turns[:2]} == {*turns[2:4]} == {"a", "b"}


def test_job_of_a_transaction_runs_although_its_queue_got_a_line_meanwhile(
    processes: Processes,
) -> None:
    store = processes.other
    drive(store.limit(Limit(kind="task", name="t", concurrency=1)))
    drive(add_one(store, queue="q"))
    running = drive(take_one(store))
    late = processes.add_within(queue="q")
    processes.at_once(store.configure(QueueSettings(name="q", concurrency=9)))
    assert processes.at_once(take(store)) == []
    processes.own.commit()
    assert drive(take(store)) == []  # the limit holds it
    drive(settle(store, running, Done()))
    found = [job for _ in range(3) for job in drive(take(store))]
    assert ids(found) == [late.id]
