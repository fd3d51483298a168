import inspect
from typing import Any

import pytest

from penstock import ConfigurationError, Penstock, State, StoreError, StoreUnavailable, run_sync
from penstock.core.store import Store
from penstock.testing import Faults, drain, enqueued, faulty
from penstock.testing.faults import READS


def enqueue(app: Penstock) -> None:
    run_sync(app.enqueue("t"))


@pytest.fixture(autouse=True)
def task(app: Penstock) -> None:
    app.task("t", lambda: None)


def test_without_an_order_nothing_fails(app: Penstock) -> None:
    with faulty(app) as faults:
        enqueue(app)
        drain(app)
    assert faults.struck == []
    assert faults.calls["add"] == 1
    assert faults.calls["claim"] >= 1


def test_a_failing_write_changes_nothing(app: Penstock) -> None:
    with faulty(app) as faults:
        faults.fail("add")
        with pytest.raises(StoreUnavailable, match="injected by a test"):
            enqueue(app)
        assert enqueued(app) == []
        enqueue(app)
    assert faults.struck == ["add"]
    assert len(enqueued(app)) == 1


def test_a_lost_answer_changes_all_the_same(app: Penstock) -> None:
    with faulty(app) as faults:
        faults.fail("add", durable=True)
        with pytest.raises(StoreError, match="answer to add was lost") as raised:
            enqueue(app)
        assert not isinstance(raised.value, StoreUnavailable)
    assert len(enqueued(app)) == 1


def test_the_nth_write_fails_whatever_its_verb(app: Penstock) -> None:
    with faulty(app) as faults:
        faults.fail(nth=3)
        enqueue(app)
        run_sync(app.count())
        [job] = run_sync(app.leases.claim(worker="w"))
        with pytest.raises(StoreUnavailable, match="transition failed"):
            run_sync(app.cancel(job.id))
        run_sync(app.cancel(job.id))


def test_every_kth_fails_until_cleared(app: Penstock) -> None:
    outcomes = []
    with faulty(app) as faults:
        faults.fail("add", nth=2, every=3)
        for n in range(9):
            if n == 7:
                faults.clear()
            try:
                enqueue(app)
                outcomes.append(n)
            except StoreUnavailable:
                pass
    assert outcomes == [0, 2, 3, 5, 6, 7, 8]
    assert len(enqueued(app)) == 7


def test_calls_are_counted_from_the_order_on(app: Penstock) -> None:
    with faulty(app) as faults:
        enqueue(app)
        faults.fail("add", nth=2)
        enqueue(app)
        with pytest.raises(StoreUnavailable):
            enqueue(app)


def test_error_of_ones_own(app: Penstock) -> None:
    with faulty(app) as faults:
        faults.fail("count", error=OSError("gone"))
        with pytest.raises(OSError, match="gone"):
            run_sync(app.count())


def test_worker_overcomes_faults(app: Penstock) -> None:
    for _ in range(5):
        enqueue(app)
    with faulty(app) as faults:
        faults.fail("claim")
        faults.fail("transition")
        jobs = drain(app, concurrency=2)
    assert sorted(faults.struck) == ["claim", "transition"]
    assert {job.state for job in jobs} == {State.DONE}
    assert len(jobs) == 5


def test_answer_to_a_settle_that_is_lost_does_not_run_the_job_twice(app: Penstock) -> None:
    enqueue(app)
    with faulty(app) as faults:
        faults.fail("transition", durable=True)
        [job] = drain(app)
    assert faults.struck == ["transition"]
    assert (job.state, job.attempt) == (State.DONE, 1)


def test_unknown_verb_and_number_are_told(app: Penstock) -> None:
    with pytest.raises(ConfigurationError, match="no method 'insert'; its methods are: add, "):
        Faults().fail("insert")
    with pytest.raises(ConfigurationError, match="counted from 1"):
        Faults().fail("add", nth=0)


def verbs() -> list[str]:
    return [name for name, value in inspect.getmembers(Store) if inspect.iscoroutinefunction(value)]


def test_reading_verbs_are_verbs() -> None:
    assert set(verbs()) >= READS


@pytest.mark.parametrize("verb", [verb for verb in verbs() if verb != "close"])
def test_every_verb_can_fail(app: Penstock, verb: str) -> None:
    """Also those that are yet to be invented: nothing but the protocol names them."""
    faults = Faults()
    store = faults.wrap(app.store)
    faults.fail(verb)
    with pytest.raises(StoreUnavailable, match=f"{verb} failed"):
        run_sync(getattr(store, verb)())


def test_new_verbs_pass_through() -> None:
    class Newer:
        size = 3

        async def invent(self, what: str, *, times: int) -> str:
            return what * times

    store: Any = Faults().wrap(Newer())  # type: ignore[arg-type] # a store of the future
    assert run_sync(store.invent("a", times=2)) == "aa"
    assert store.size == 3
