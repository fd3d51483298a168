"""Opening and closing the store, the actor, and forks."""

import asyncio
import contextlib
import multiprocessing
import os
import sqlite3
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    ConfigurationError,
    Job,
    JobQuery,
    Penstock,
    StoreError,
    forks,
    run_sync,
)
from penstock.errors import StoreMissing
from penstock.leases import Done
from tests.contract.support import SHARED, STORES, ManualClock, new
from tests.engine.support import add_one
from tests.environment import SOON
from tests.forking import ended_well, fork

# Opening and closing


def test_nothing_is_opened_before_it_is_needed(path: Path) -> None:
    app = Penstock(f"sqlite:///{path}")
    app.task("t", lambda: None)
    assert not path.exists()
    run_sync(app.count())
    assert path.exists()
    run_sync(app.close())


def test_wrong_url_is_reported_by_the_first_call() -> None:
    app = Penstock("redis://localhost")
    with pytest.raises(ConfigurationError, match="redis://localhost"):
        run_sync(app.count())


async def test_closed_penstock_opens_again_with_what_was_acknowledged(file_app: Penstock) -> None:
    job = await add_one(file_app)
    await file_app.close()
    assert await file_app.get(job.id) == job


async def test_close_can_be_repeated_and_come_first(file_app: Penstock) -> None:
    await file_app.close()
    await add_one(file_app)
    await file_app.close()
    await file_app.close()


async def test_context_manager_opens_and_closes(path: Path) -> None:
    async with Penstock(f"sqlite:///{path}") as app:
        store = app.store
        job = await add_one(app)
    with pytest.raises(StoreError, match="closed"):
        await store.get([job.id])
    with pytest.raises(StoreError, match="closed"):
        await store.add([new()], actor="late")


async def test_memory_store_forgets_when_it_is_closed() -> None:
    app = Penstock("memory://")
    await add_one(app)
    await app.close()
    assert await app.find() == []


def test_two_threads_that_open_at_once_open_one_store(path: Path) -> None:
    app = Penstock(f"sqlite:///{path}")
    together = threading.Barrier(8, timeout=SOON)

    def open_it(_: int) -> int:
        together.wait()
        return id(app.store)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(open_it, range(8)))) == 1
    run_sync(app.close())


async def test_log_names_the_actor(app: Penstock) -> None:
    job = await add_one(app)
    await app.cancel(job.id)
    assert [entry.actor for entry in await app.log(job.id)] == ["tester", "tester"]


def test_actor_is_host_and_process_unless_given() -> None:
    assert str(os.getpid()) in Penstock("memory://").connection.actor


# After a fork


def test_child_forked_before_the_store_was_opened_uses_it_like_any_process(
    file_app: Penstock,
) -> None:
    def check() -> None:
        job = run_sync(add_one(file_app, task="child"))
        assert run_sync(file_app.get(job.id)) == job
        run_sync(file_app.close())

    children = [fork(check) for _ in range(3)]
    run_sync(add_one(file_app))
    for child in children:
        ended_well(child)
    assert len(run_sync(file_app.find())) == 4


def test_child_forked_after_the_store_was_closed_uses_it_like_any_process(
    file_app: Penstock,
) -> None:
    run_sync(add_one(file_app))
    run_sync(file_app.close())

    def check() -> None:
        run_sync(add_one(file_app))

    ended_well(fork(check))
    assert len(run_sync(file_app.find())) == 2


@pytest.fixture(params=SHARED)
def shared_app(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> Iterator[Penstock]:
    """A Penstock on a store that several processes can open."""
    penstock = Penstock(STORES[request.param](tmp_path), clock=clock)
    yield penstock
    run_sync(penstock.close())


def test_child_forked_while_the_store_was_open_opens_its_own(shared_app: Penstock) -> None:
    parent = run_sync(add_one(shared_app))
    store = shared_app.store

    def check() -> None:
        assert run_sync(shared_app.get(parent.id)) == parent
        job = run_sync(add_one(shared_app))
        assert str(os.getpid()) in run_sync(shared_app.log(job.id))[0].actor
        assert shared_app.store is not store
        with pytest.raises(StoreError, match="before this process was forked"):
            run_sync(store.get([parent.id]))
        with pytest.raises(StoreError, match="before this process was forked"):
            run_sync(store.add([new()], actor="late"))
        run_sync(store.close())  # does nothing
        run_sync(shared_app.close())

    for _ in range(3):
        ended_well(fork(check))
    assert shared_app.store is store
    run_sync(add_one(shared_app))
    assert len(run_sync(shared_app.leases.claim(worker="parent", limit=9))) == 5


def test_child_works_after_the_parent_has_closed_its_last_connection(file_app: Penstock) -> None:
    """With a shared record of locks, the parent would remove the write-ahead log under the child.

    What the child was told is stored would be gone with it.
    """
    run_sync(add_one(file_app))
    go_on, proceed = os.pipe()

    def check() -> None:
        run_sync(add_one(file_app))
        os.read(go_on, 1)  # until the parent has closed
        for _ in range(20):
            run_sync(add_one(file_app))
        assert len(run_sync(file_app.find())) == 22

    child = fork(check)
    while len(run_sync(file_app.find())) < 2:
        pass
    run_sync(file_app.close())
    os.write(proceed, b"!")
    ended_well(child)
    os.close(go_on)
    os.close(proceed)
    assert len(run_sync(file_app.find())) == 22


def test_nothing_is_lost_when_other_threads_write_while_a_process_forks(
    shared_app: Penstock,
) -> None:
    over = threading.Event()
    stored: list[int] = []

    def write() -> None:
        while not over.is_set():
            stored.append(run_sync(add_one(shared_app)).id)

    async def write_together() -> None:
        while not over.is_set():
            jobs = await asyncio.gather(*(add_one(shared_app) for _ in range(5)))
            stored.extend(job.id for job in jobs)
            assert await shared_app.get(jobs[0].id) == jobs[0]

    def check() -> None:
        run_sync(add_one(shared_app, task="child"))
        run_sync(shared_app.close())

    run_sync(add_one(shared_app, task="child"))
    threads = [
        threading.Thread(target=write),
        threading.Thread(target=lambda: asyncio.run(write_together())),
    ]
    with warnings.catch_warnings():  # newer versions of Python warn of the threads of this test
        warnings.simplefilter("ignore", DeprecationWarning)
        for thread in threads:
            thread.start()
        try:
            children = [fork(check) for _ in range(10)]
        finally:
            over.set()
            for thread in threads:
                thread.join()
    for child in children:
        ended_well(child)
    found = run_sync(shared_app.find(JobQuery(limit=100_000)))
    assert sorted(job.id for job in found if job.task != "child") == sorted(stored)
    assert sum(job.task == "child" for job in found) == 11


async def test_calls_of_an_event_loop_that_forks_are_answered(shared_app: Penstock) -> None:
    calls = [asyncio.ensure_future(add_one(shared_app)) for _ in range(20)]
    reads = [asyncio.ensure_future(shared_app.find()) for _ in range(3)]
    await asyncio.sleep(0)

    def check() -> None:
        assert shared_app.connection._store is None

    ended_well(fork(check))
    assert len({job.id for job in await asyncio.gather(*calls)}) == 20
    await asyncio.gather(*reads)
    assert len(await shared_app.find()) == 20


def test_no_thread_of_an_idle_store_is_left_for_a_fork(shared_app: Penstock) -> None:
    """Newer versions of Python warn of a fork in a process with threads."""

    async def use() -> None:
        await add_one(shared_app)
        await shared_app.find()
        await shared_app.store.wait(0, 0)

    asyncio.run(use())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ended_well(fork(lambda: None))
    assert not [one.name for one in threading.enumerate() if one.name.startswith("penstock")]
    asyncio.run(use())


def test_waiter_in_the_parent_is_woken_by_others_after_a_fork(shared_app: Penstock) -> None:
    other = Penstock(shared_app.url)
    run_sync(add_one(other))
    seen = run_sync(shared_app.store.wait(0, 0))
    woken: list[int] = []

    def wait() -> None:
        """Until there are two jobs, as a worker would."""
        generation = seen
        while len(run_sync(shared_app.find())) < 2:
            generation = run_sync(shared_app.store.wait(generation, SOON))
        woken.append(generation)

    waiting = threading.Thread(target=wait)
    waiting.start()
    with warnings.catch_warnings():  # of the thread of this test
        warnings.simplefilter("ignore", DeprecationWarning)
        ended_well(fork(lambda: None))
    run_sync(add_one(other))
    waiting.join(SOON)
    assert woken
    run_sync(other.close())


def test_child_waits_for_results_though_its_parent_does_as_well(shared_app: Penstock) -> None:
    async def wait_for_it(job: Job) -> None:
        with pytest.raises(TimeoutError):
            await shared_app.result(job, timeout=timedelta(milliseconds=20))

    def check() -> None:
        (job,) = run_sync(shared_app.leases.claim(worker="child"))

        async def finish() -> Any:
            waiting = asyncio.ensure_future(shared_app.result(job, timeout=timedelta(seconds=SOON)))
            await asyncio.sleep(0)
            await shared_app.leases.settle([(job, Done('"from the child"'))])
            return await waiting

        assert asyncio.run(finish()) == "from the child"

    job = run_sync(add_one(shared_app))
    asyncio.run(wait_for_it(job))
    ended_well(fork(check))
    assert run_sync(shared_app.result(job)) == "from the child"


@pytest.mark.parametrize("transaction", [False, True], ids=["idle", "transaction"])
def test_child_is_refused_a_file_that_the_program_itself_has_open(
    file_app: Penstock, path: Path, *, transaction: bool
) -> None:
    """SQLite keeps its locks per process and file: a child would believe to have its parent's."""
    run_sync(add_one(file_app))
    another = Penstock(file_app.url)

    def check() -> None:
        for app in (file_app, another):
            for call in (add_one(app), app.find(), app.leases.claim(worker="child")):
                with pytest.raises(StoreError, match="in use when this process was forked"):
                    run_sync(call)

    with contextlib.closing(sqlite3.connect(path)) as own:
        own.execute("SELECT * FROM penstock_meta").fetchall()
        if transaction:
            file_app.task("t", lambda: None)
            run_sync(file_app.tasks["t"].using(connection=own).enqueue())
        ended_well(fork(check))
        own.commit()
        run_sync(add_one(file_app))
    expected = 3 if transaction else 2
    assert len(run_sync(file_app.leases.claim(worker="parent", limit=5))) == expected
    ended_well(fork(lambda: run_sync(add_one(file_app))))  # it is closed now


def test_child_forked_inside_a_call_is_refused(file_app: Penstock) -> None:
    children: list[int] = []

    def check() -> None:
        with pytest.raises(StoreError, match="in use when this process was forked"):
            run_sync(add_one(file_app))

    run_sync(add_one(file_app))
    run_sync(file_app.tables.read(lambda _: children.append(fork(check))))
    ended_well(children[0])
    assert len(run_sync(file_app.find())) == 1


def test_call_that_does_not_end_does_not_stop_a_fork(
    file_app: Penstock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(forks, "_PATIENCE", 0.05)
    begun, over = threading.Event(), threading.Event()

    def read(_: object) -> None:
        begun.set()
        over.wait(SOON)

    def check() -> None:
        with pytest.raises(StoreError, match="in use when this process was forked"):
            run_sync(add_one(file_app))

    run_sync(add_one(file_app))
    reading = threading.Thread(target=lambda: run_sync(file_app.tables.read(read)))
    reading.start()
    begun.wait(SOON)
    with warnings.catch_warnings():  # of the thread of this test
        warnings.simplefilter("ignore", DeprecationWarning)
        ended_well(fork(check))
    assert "while calls of" in caplog.text
    run_sync(add_one(file_app))
    over.set()
    reading.join(SOON)
    ended_well(fork(lambda: run_sync(add_one(file_app))))
    assert len(run_sync(file_app.find())) == 3


def test_file_that_is_gone_after_a_fork_is_reported(file_app: Penstock, path: Path) -> None:
    run_sync(add_one(file_app))
    ended_well(fork(lambda: None))
    path.rename(path.with_name("elsewhere"))
    with pytest.raises(StoreMissing):
        run_sync(add_one(file_app))
    with pytest.raises(StoreMissing):
        asyncio.run(add_one(file_app))
    with pytest.raises(StoreMissing):
        run_sync(file_app.find())
    path.with_name("elsewhere").rename(path)
    assert len(run_sync(file_app.find())) == 1


def test_closed_store_stays_closed_after_a_fork(file_app: Penstock) -> None:
    run_sync(add_one(file_app))
    store = file_app.store
    ended_well(fork(lambda: None))
    run_sync(file_app.close())
    with pytest.raises(StoreError, match="closed"):
        run_sync(store.find(JobQuery()))
    with pytest.raises(StoreError, match="closed"):
        run_sync(store.add([new()], actor="late"))


def test_forked_child_that_only_closes_leaves_the_parent_alone(shared_app: Penstock) -> None:
    seen = run_sync(shared_app.store.wait(0, 0))
    ended_well(fork(lambda: run_sync(shared_app.close())))
    other = Penstock(shared_app.url)
    seen = run_sync(shared_app.store.wait(seen, 0))
    run_sync(add_one(other))
    assert run_sync(shared_app.store.wait(seen, SOON)) != seen
    run_sync(other.close())


def _enqueue_in_pool(app_url: str) -> int:
    run_sync(add_one(_pool_app(app_url)))
    return os.getpid()


_apps: dict[str, Penstock] = {}


def _pool_app(url: str) -> Penstock:
    return _apps.setdefault(url, Penstock(url))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")  # the pool's own
def test_pool_of_forked_processes_shares_an_app(shared_app: Penstock) -> None:
    _apps[shared_app.url] = shared_app
    run_sync(add_one(shared_app))
    with multiprocessing.get_context("fork").Pool(3) as pool:
        processes = set(pool.map(_enqueue_in_pool, [shared_app.url] * 60, chunksize=1))
        run_sync(add_one(shared_app))
    assert os.getpid() not in processes
    assert len(run_sync(shared_app.find(JobQuery(limit=1_000)))) == 62
    del _apps[shared_app.url]


def test_memory_of_the_parent_is_not_shared_with_a_forked_child() -> None:
    app = Penstock("memory://")
    run_sync(add_one(app))

    def check() -> None:
        with pytest.raises(StoreError, match="fork"):
            run_sync(add_one(app))

    ended_well(fork(check))
