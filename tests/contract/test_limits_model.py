"""Claims under limits against a model that looks at every job, over random lives."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.job import Claim, Job, NewJob
from penstock.core.lifecycle import Done, Expired, Failed, Outcome, State, Waiting, advance
from penstock.core.limits import Limit, throttle_limit
from penstock.core.queue import Ages, QueueSettings
from penstock.core.store import Store
from tests import tiers
from tests.contract.support import (
    MERGED,
    STORES,
    ManualClock,
    drive,
    everything,
    move,
    new,
    open_named,
)

MINUTE = timedelta(minutes=1)
WINDOW = 5 * MINUTE
LEASE = timedelta(seconds=90)
EXAMPLES = tiers.amount(20, 120)

jobs = st.builds(
    new,
    queue=st.sampled_from("ab"),
    task=st.sampled_from(["t", "u"]),
    priority=st.integers(4, 6),
    throttle=st.sampled_from([None, "x-1", "x-2", "y"]),
    key=st.sampled_from([None, None, "k"]),
    tags=st.sampled_from([(), ("red",)]),
    lease=st.just(LEASE),
)
places = st.sampled_from([None, 1, 2])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(jobs, min_size=1, max_size=4)),
        st.tuples(
            st.just("claim"),
            st.sampled_from([("a",), ("b",), None]),
            st.booleans(),
            st.integers(1, 4),
        ),
        st.tuples(st.just("settle"), st.integers(0, 9), st.sampled_from([Done(), Failed("no")])),
        st.tuples(st.just("advance"), st.integers(1, 120)),
        st.tuples(st.just("task"), places),
        st.tuples(st.just("throttle"), places),
        st.tuples(st.just("queue"), st.sampled_from("ab"), places),
        st.tuples(st.just("rate"), st.sampled_from([None, 1, 3])),
        st.tuples(st.just("age"), st.sampled_from([None, MINUTE, (MINUTE, 3 * MINUTE)])),
    ),
    min_size=5,
    max_size=40,
)


class Life:
    """A store, with the limits as they were set and the starts as they were seen."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.limits: dict[str, Any] = {}
        self.starts: list[Any] = []

    def do(self, what: str, *how: Any) -> None:
        getattr(self, what)(*how)

    def add(self, batch: list[NewJob]) -> None:
        drive(self.store.add(batch, actor="p"))

    def advance(self, seconds: int) -> None:
        self.clock.advance(timedelta(seconds=seconds))
        for job in drive(self.store.expired(100)):
            drive(move(self.store, job, advance(job, Expired())))

    def task(self, n: int | None) -> None:
        self.limits["task"] = n
        drive(self.store.limit(Limit(kind="task", name="t", concurrency=n)))

    def throttle(self, n: int | None) -> None:
        self.limits["x-"] = n
        drive(self.store.limit(Limit(kind="throttle", name="x-", concurrency=n)))

    def queue(self, name: str, n: int | None) -> None:
        self.limits[name] = n
        drive(self.store.configure(QueueSettings(name=name, concurrency=n)))

    def rate(self, n: int | None) -> None:
        self.limits["rate"] = n
        rate = None if n is None else (n, WINDOW)
        drive(self.store.configure(QueueSettings(name="a", rate=rate)))
        self.starts.clear()  # what started without a rate was not counted
        if n is not None:
            drive(self.store.configure(QueueSettings(name="a", rate=None)))
            self.clock.advance(WINDOW)
            self.advance(1)
            drive(self.store.configure(QueueSettings(name="a", rate=rate)))

    def age(self, after: Ages | None) -> None:
        self.limits["age"] = after
        drive(self.store.configure(QueueSettings(name="a", promote_after=after)))

    def settle(self, pick: int, outcome: Outcome) -> None:
        running = [job for job in self.all() if job.state is State.RUNNING]
        if running:
            job = running[pick % len(running)]
            drive(move(self.store, job, advance(job, outcome)))

    def claim(self, queues: tuple[str, ...] | None, tagged: bool, limit: int) -> None:
        tags = ("red",) if tagged else ()
        expected = list(self.expected(queues, tags, limit))
        found = drive(self.store.claim(Claim(worker="w", limit=limit, queues=queues, tags=tags)))
        assert [job.id for job in found] == expected
        self.starts += [self.clock.now for job in found if job.queue == "a"]

    def all(self) -> list[Job]:
        return drive(everything(self.store))

    def expected(
        self, queues: tuple[str, ...] | None, tags: tuple[str, ...], limit: int
    ) -> Iterator[int]:
        """All ready jobs in their order, but those that there is no place for."""
        running = Counter(
            place for job in self.all() if job.state is State.RUNNING for place in self.taken(job)
        )
        recent = [start for start in self.starts if start > self.clock.now - WINDOW]
        running["rate"] = len(recent)
        ready = [
            job
            for job in self.all()
            if self.is_ready(job)
            and (queues is None or job.queue in queues)
            and set(tags) <= set(job.tags)
        ]
        for job in sorted(ready, key=self.rank):
            places = self.taken(job) + (["rate"] if job.queue == "a" else [])
            if limit and all(running[place] < self.limit_of(place) for place in places):
                limit -= 1
                running.update(places)
                yield job.id

    def is_ready(self, job: Job) -> bool:
        due = job.waiting is Waiting.SCHEDULED and job.run_at <= self.clock.now
        return job.waiting is Waiting.READY or due

    def rank(self, job: Job) -> tuple[int, Any, int]:
        level, after = job.priority, self.limits.get("age")
        if after is not None and job.queue == "a":
            waited = self.clock.now - job.run_at
            each = isinstance(after, timedelta)
            level += waited // after if each else len([age for age in after if age <= waited])
            level = min(10, level)
        return -level, job.run_at, job.id

    def taken(self, job: Job) -> list[str]:
        places = [job.queue, *(["task"] if job.task == "t" else [])]
        return places if job.throttle is None else [*places, f"throttle {job.throttle}"]

    def limit_of(self, place: str) -> int:
        if place.startswith("throttle "):
            n = self.limits.get("x-")
            prefixes = {} if n is None else {"x-": n}
            return throttle_limit(prefixes, place.removeprefix("throttle "))
        n = self.limits.get(place)
        return 10**9 if n is None else int(n)


class FairLife(Life):
    """Of one queue: whose turn it is, by looking at every ready job for each that is taken."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        super().__init__(store, clock)
        self.last: dict[int, str] = {}

    def expected(
        self, queues: tuple[str, ...] | None, tags: tuple[str, ...], limit: int
    ) -> Iterator[int]:
        ready = sorted((job for job in self.all() if self.is_ready(job)), key=self.rank)
        fair = any(job.tenant for job in ready)
        ready = [job for job in ready if set(tags) <= set(job.tags)]
        while ready and limit:
            level = self.rank(ready[0])[0]
            tenants = sorted({job.tenant or "" for job in ready if self.rank(job)[0] == level})
            last = self.last.get(level, "")
            turn = next((name for name in tenants if name > last), tenants[0])
            job = next(job for job in ready if (job.tenant or "") == turn) if fair else ready[0]
            if fair:
                self.last[level] = turn
            ready.remove(job)
            limit -= 1
            yield job.id


fair_jobs = st.builds(
    new,
    queue=st.just("a"),
    priority=st.integers(4, 6),
    tenant=st.sampled_from([None, "l", "m", "n"]),
    key=st.sampled_from([None, None, "k"]),
    tags=st.sampled_from([(), ("red",)]),
    lease=st.just(LEASE),
)
fair_steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(fair_jobs, min_size=1, max_size=5)),
        st.tuples(st.just("claim"), st.just(None), st.booleans(), st.integers(1, 5)),
        st.tuples(st.just("settle"), st.integers(0, 9), st.sampled_from([Done(), Failed("no")])),
        st.tuples(st.just("advance"), st.integers(1, 120)),
        st.tuples(st.just("age"), st.sampled_from([None, MINUTE, (MINUTE, 3 * MINUTE)])),
    ),
    min_size=5,
    max_size=40,
)


@pytest.mark.parametrize("name", [*STORES, *MERGED])
@given(life=fair_steps)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_turns_are_those_of_the_model(name: str, life: list[tuple[Any, ...]]) -> None:
    play(name, FairLife, life)


@pytest.mark.parametrize("name", [*STORES, *MERGED])
@given(life=steps)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_claims_give_what_the_model_says(name: str, life: list[tuple[Any, ...]]) -> None:
    play(name, Life, life)


def play(name: str, kind: type[Life], life: list[tuple[Any, ...]]) -> None:
    folder, clock = Path(tempfile.mkdtemp(prefix="penstock-limits-")), ManualClock()
    store = open_named(name, folder, clock)
    try:
        living = kind(store, clock)
        for step in life:
            living.do(*step)
        living.claim(None, tagged=False, limit=50)
    finally:
        drive(store.close())
        shutil.rmtree(folder)
