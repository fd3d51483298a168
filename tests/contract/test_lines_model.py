"""Histories of few queues, compared with the memory store, which knows no lines."""

import shutil
import tempfile
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.job import JobId
from penstock.core.lifecycle import Done, Failed, Outcome, State, reset
from penstock.core.limits import Limit
from penstock.core.queue import QueueSettings
from penstock.core.store import Store
from penstock.runtime import Runtime
from penstock.stores import open_store
from penstock.stores.sql import queue_names as names
from tests import tiers
from tests.contract.support import (
    HOUR,
    MERGED,
    SECOND,
    ManualClock,
    add,
    drive,
    everything,
    ids,
    move,
    new,
    open_named,
    settle,
    take,
    totals,
)

T = TypeVar("T")
QUEUES = "abc"
PORTION = 2
PORTIONS = 100
"""How many jobs follow their queue at once; few, so that histories see what is in between."""

queue_names = st.sampled_from(QUEUES)
tags = st.sampled_from([(), (), ("red",), ("blue",), ("blue", "red")])
jobs = st.fixed_dictionaries(
    {
        "queue": queue_names,
        "priority": st.sampled_from([3, 5, 7]),
        "task": st.sampled_from("tu"),
        "tenant": st.sampled_from([None, None, None, "x", "y"]),
        "throttle": st.sampled_from([None, None, "host"]),
        "tags": tags,
        "delay": st.sampled_from([None, None, None, SECOND]),
    }
)
claims = st.one_of(
    st.just({}),
    st.builds(lambda few: {"queues": tuple(few)}, st.sets(queue_names, min_size=1, max_size=2)),
    st.builds(lambda queue: {"except_queues": frozenset({queue})}, queue_names),
    st.just({"tags": ("red",)}),
)
configured = st.builds(
    lambda queue, values: QueueSettings(name=queue, **values),
    queue_names,
    st.sampled_from([{"paused": True}, {"paused": False}, {"concurrency": 3}]),
)
limits = st.builds(
    lambda task, most: Limit(kind="task", name=task, concurrency=most),
    st.sampled_from("tu"),
    st.sampled_from([None, 1, 2]),
)
outcomes = st.sampled_from([Done(), Failed("no", permanent=True), Failed("no")])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(jobs, min_size=1, max_size=6)),
        st.tuples(st.just("claim"), claims, st.integers(1, 5)),
        st.tuples(st.just("settle"), st.integers(0, 9), outcomes),
        st.tuples(st.just("retry"), st.integers(0, 9)),
        st.tuples(st.just("delete"), st.integers(0, 9)),
        st.tuples(st.just("configure"), configured),
        st.tuples(st.just("limit"), limits),
    ),
    min_size=5,
    max_size=40,
)


class Pair:
    """A store and the memory store, which get the same calls."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self._store = store
        self._model = open_store("memory://", runtime=Runtime(clock))
        self._clock = clock

    def do(self, step: str, *values: Any) -> None:
        """Do one step of a history, and compare what can be seen afterwards."""
        self._clock.advance(timedelta(milliseconds=100))
        getattr(self, step)(*values)
        self._both(_seen)

    def _both(self, verb: Callable[[Store], Awaitable[T]]) -> T:
        async def run(store: Store) -> T:
            return await verb(store)

        found, expected = drive(run(self._store)), drive(run(self._model))
        assert found == expected
        return found

    def _of(self, n: int, *states: State) -> JobId | None:
        """One of the jobs in these states."""
        found = [job.id for job in drive(everything(self._model)) if job.state in states]
        return found[n % len(found)] if found else None

    def add(self, wanted: list[dict[str, Any]]) -> None:
        async def verb(store: Store) -> list[int]:
            return ids(await add(store, *(new(**one) for one in wanted)))

        self._both(verb)

    def claim(self, wanted: dict[str, Any], limit: int) -> list[int]:
        async def verb(store: Store) -> list[int]:
            return ids(await take(store, limit, **wanted))

        return self._both(verb)

    def settle(self, n: int, outcome: Outcome) -> None:
        if (job_id := self._of(n, State.RUNNING)) is not None:
            self._settle(job_id, outcome)

    def _settle(self, job_id: JobId, outcome: Outcome) -> None:
        async def verb(store: Store) -> State:
            [job] = await store.get([job_id])
            return (await settle(store, job, outcome)).state

        self._both(verb)

    def retry(self, n: int) -> None:
        if (job_id := self._of(n, State.FAILED)) is None:
            return

        async def verb(store: Store) -> State:
            [job] = await store.get([job_id])
            return (await move(store, job, reset(job))).state

        self._both(verb)

    def delete(self, n: int) -> None:
        if (job_id := self._of(n, State.DONE, State.FAILED)) is None:
            return

        async def verb(store: Store) -> None:
            await store.delete(await store.get([job_id]))

        self._both(verb)

    def configure(self, wanted: QueueSettings) -> None:
        async def verb(store: Store) -> None:
            await store.configure(wanted)

        self._both(verb)
        # Each claim moves a portion of jobs out of the merged index. While they move, a job that a
        # limit held comes a claim later than in the model.
        for _ in range(PORTIONS):
            assert drive(take(self._store, 1, queues=("nobody",))) == []

    def limit(self, wanted: Limit) -> None:
        async def verb(store: Store) -> None:
            await store.limit(wanted)

        self._both(verb)

    def end(self, by_name: bool) -> None:
        """Let every job run that is left."""
        for queue in QUEUES:
            self.configure(QueueSettings(name=queue, paused=False, concurrency=None))
        self._clock.advance(HOUR)
        workers = [{"queues": (queue,)} for queue in QUEUES] if by_name else [{}]
        while True:
            while (job_id := self._of(0, State.RUNNING)) is not None:
                self._settle(job_id, Done())
            found = [self.claim(wanted, 5) for wanted in workers]
            if not any(found):
                break
        assert all(job.state.final for job in drive(everything(self._store)))

    def close(self) -> None:
        drive(self._store.close())
        drive(self._model.close())


async def _seen(store: Store) -> Any:
    found = [queue.name for queue in await store.queues()]
    return found, await store.oldest_ready(), await totals(store)


@pytest.mark.parametrize("name", MERGED)
@given(life=steps, by_name=st.booleans())
@settings(
    max_examples=tiers.amount(8, 15), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
def test_histories_are_those_of_a_store_without_lines(
    name: str, life: list[tuple[Any, ...]], by_name: bool
) -> None:
    folder, clock = Path(tempfile.mkdtemp(prefix="penstock-lines-")), ManualClock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names, "_UNMERGED_AT_ONCE", PORTION)
        pair = Pair(open_named(name, folder, clock), clock)
        try:
            for step in life:
                pair.do(*step)
            pair.end(by_name)
        finally:
            pair.close()
            shutil.rmtree(folder)
