import inspect

import pytest

from penstock import JobNotFound, NewJob, Penstock, run_sync
from penstock.core.store import Store, TableStore
from penstock.stores import open_store
from penstock.stores.observed import READS, Timing, observe


@pytest.fixture
def timings() -> dict[str, Timing]:
    return {}


@pytest.fixture
def app(timings: dict[str, Timing]) -> Penstock:
    return Penstock(
        "memory://", opener=lambda *args, **given: observe(open_store(*args, **given), timings)
    )


def test_verbs_are_counted_and_timed(app: Penstock, timings: dict[str, Timing]) -> None:
    for _ in range(3):
        run_sync(app.enqueue_many([NewJob(task="t", payload="{}")]))
    assert [job.id for job in run_sync(app.leases.claim(worker="w", limit=2))] == [1, 2]
    assert {verb: timing.calls for verb, timing in timings.items()} == {"add": 3, "claim": 1}
    assert timings["add"].seconds > 0


async def test_waiting_is_not_timed(app: Penstock, timings: dict[str, Timing]) -> None:
    await app.wait(0, 0)
    assert "wait" not in timings


def test_errors_are_counted_and_raised(app: Penstock, timings: dict[str, Timing]) -> None:
    with pytest.raises(JobNotFound):
        run_sync(
            app.enqueue_many([NewJob(task="t", payload="{}", after=(99,))])
        )  # an id that nobody has
    assert (timings["add"].calls, timings["add"].errors) == (1, 1)


def test_every_verb_either_reads_or_writes(app: Penstock, timings: dict[str, Timing]) -> None:
    verbs = {
        name
        for part in (Store, TableStore)
        for name, verb in inspect.getmembers(part, inspect.iscoroutinefunction)
        if name != "wait"
    }
    assert verbs > READS
    assert verbs - READS == {
        *("add", "add_mirror", "add_token", "add_within", "claim", "configure", "delete"),
        *("deregister", "drain_worker", "drop_schedule", "drop_token", "finish", "fire"),
        *("heartbeat", "limit", "prepare_tables", "prune", "put_schedule", "raise_floor"),
        *("remove_queue", "renew", "repair", "report", "restore", "roll_up", "series"),
        *("set_migration_lock", "supersede", "transact", "transition"),
    }
    run_sync(app.count())
    run_sync(app.enqueue_many([NewJob(task="t", payload="{}")]))
    assert (timings["count"].writes, timings["add"].writes) == (False, True)


def test_what_a_store_does_not_have_it_does_not_get(app: Penstock) -> None:
    with pytest.raises(AttributeError):
        _ = app.store.nothing  # type: ignore[attr-defined] # is what is missing
