"""Each deed, on a real store and through a real server."""

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock import Job, JobQuery, NewJob, Penstock, State
from penstock.client.remote import RemotePenstock
from penstock.engine.protocol import App
from penstock.leases import Done, Failed
from tests.cli.support import Screen, viewing
from tests.client.support import Server, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


class Place(NamedTuple):
    """A store, what the view works on, and a queue of the test's own."""

    store: Penstock
    app: App
    queue: str

    async def add(self, n: int, **options: object) -> list[Job]:
        job = NewJob(task="greet", payload='{"name": "Ada"}', queue=self.queue, **options)  # type: ignore[arg-type] # a few options
        return await self.store.enqueue_many([job] * n)

    async def fail(self, n: int) -> list[Job]:
        """Jobs that have failed for good."""
        await self.add(n)
        claimed = await self.store.leases.claim(worker="w", limit=n, queues=[self.queue])
        why = Failed("no luck", permanent=True)
        return await self.store.leases.settle([(job, why) for job in claimed])

    async def state(self, job: Job) -> State:
        return (await self.store.get(job.id)).state


REMOTE = pytest.mark.repeats("the store shows what keys do, tests/client the calls over HTTP")


@pytest.fixture(params=["store", pytest.param("server", marks=REMOTE)])
async def place(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path
) -> AsyncIterator[Place]:
    queue = f"q{uuid.uuid4().hex[:6]}"
    if request.param == "store":
        store = Penstock(f"sqlite:///{tmp_path}/jobs.db")
        yield Place(store, store, queue)
    else:
        store = Penstock(server.store)
        yield Place(store, RemotePenstock(server.url, retries=0), queue)
    await store.close()


async def listed(screen: Screen, place: Place) -> None:
    await screen.press("slash")
    await screen.type(f"queue:{place.queue}")
    await screen.until("greet", "page 1")


async def agree(screen: Screen, question: str, said: str) -> None:
    await screen.until(question)
    await screen.press("y")
    await screen.until_said(said)


@pytest.mark.parametrize("verb", ["retry", "cancel", "delete"])
async def test_one_job(place: Place, verb: str) -> None:
    (job,) = await place.add(1) if verb == "cancel" else await place.fail(1)
    async with viewing(place.app) as screen:
        await listed(screen, place)
        await screen.press({"retry": "r", "cancel": "c", "delete": "x"}[verb])
        ends = {"retry": "is ready", "cancel": "is cancelled", "delete": "is deleted"}
        await agree(screen, f"{verb.capitalize()} 1 job: {job.id}, greet?", ends[verb])
    if verb == "delete":
        assert await place.store.archive.records([job.id]) == []
    else:
        assert await place.state(job) is (State.PENDING if verb == "retry" else State.CANCELLED)


async def test_priority_of_one_job(place: Place) -> None:
    (job,) = await place.add(1)
    async with viewing(place.app) as screen:
        await listed(screen, place)
        await screen.press("enter")
        await screen.until("Log", "priority 5")
        await screen.press("p")
        await screen.until(f"New priority for job {job.id}?")
        await screen.type("99")
        await screen.until("Enter a number from 0 to 10")
        await screen.press("backspace", "backspace")
        await screen.type("9")
        await agree(screen, "Set priority 9 for 1 job", "has priority 9")
        await screen.until("priority 9")
    assert (await place.store.get(job.id)).priority == 9


@pytest.mark.parametrize("verb", ["retry", "cancel", "delete", "priority"])
async def test_all_that_fit_are_counted_first(place: Place, verb: str) -> None:
    failed = await place.fail(3)
    waiting = await place.add(2)
    keys = {"retry": "R", "cancel": "C", "delete": "X", "priority": "P"}
    asked = {
        "retry": "Retry 3 jobs?",
        "cancel": "Cancel 2 jobs?",
        "delete": "Delete 3 jobs?",
        "priority": "Set priority 1 for 2 jobs?",
    }
    said = {
        "retry": "Retried 3 jobs.",
        "cancel": "Cancelled 2 jobs.",
        "delete": "Deleted 3 jobs.",
        "priority": "Changed 2 jobs.",
    }
    async with viewing(place.app) as screen:
        await listed(screen, place)
        await screen.press(keys[verb])
        if verb == "priority":
            await screen.until("New priority for all jobs that match?")
            await screen.type("1")
        await agree(screen, asked[verb], said[verb])
    now = {job.id: job for job in await place.store.store.get([j.id for j in failed + waiting])}
    assert len(now) == (2 if verb == "delete" else 5)
    if verb == "retry":
        assert {now[job.id].state for job in failed} == {State.PENDING}
    if verb == "cancel":
        assert {now[job.id].state for job in waiting} == {State.CANCELLED}
    assert {now[job.id].priority for job in waiting} == {1 if verb == "priority" else 5}


async def test_no_changes_nothing(place: Place) -> None:
    (job,) = await place.add(1)
    async with viewing(place.app) as screen:
        await listed(screen, place)
        for key in ("n", "escape", "enter"):
            await screen.press("c")
            await screen.until("Cancel 1 job")
            await screen.press(key)
            await screen.until("page 1", absent="Cancel 1 job")
        assert screen.said() == []
    assert await place.state(job) is State.PENDING


async def test_nothing_to_change_is_said(place: Place) -> None:
    await place.add(1)
    async with viewing(place.app) as screen:
        await listed(screen, place)
        await screen.press("R")
        await screen.until_said("No job would change")


async def test_what_is_refused_is_said(place: Place) -> None:
    (job,) = await place.add(1)
    async with viewing(place.app) as screen:
        await listed(screen, place)
        await screen.press("x")
        await agree(screen, "Delete 1 job", "only finished jobs are removed")
    assert await place.state(job) is State.PENDING


async def test_queue_is_paused_and_resumed(place: Place) -> None:
    await place.add(2)

    async def paused() -> bool:
        return next(
            one.paused for one in await place.store.queues.list() if one.name == place.queue
        )

    async with viewing(place.app) as screen:
        await to_queue(screen, place)
        await screen.press("p")
        await screen.until("2 jobs will wait")
        await agree(screen, f"Pause queue {place.queue}?", "is paused")
        assert await paused()
        await screen.until("paused")
        await screen.press("p")
        await agree(screen, f"Resume queue {place.queue}?", "is resumed")
        assert not await paused()


async def test_queue_is_drained(place: Place) -> None:
    (job,) = await place.add(1)
    async with viewing(place.app) as screen:
        await to_queue(screen, place)
        await screen.press("d")
        await screen.until(f"Drain queue {place.queue}?", "until 1 job finished")
        await screen.press("y")
        (claimed,) = await place.store.leases.claim(worker="w", queues=[place.queue])
        await place.store.leases.settle([(claimed, Done())])
        await screen.until_said("drained after")
    assert await place.state(job) is State.DONE


async def to_queue(screen: Screen, place: Place) -> None:
    """Move to the test's own queue by keys; a server's store has those of other tests as well."""
    await screen.until(place.queue)
    names = sorted(one.name for one in await place.store.queues.list())
    await screen.press(*"j" * names.index(place.queue))


async def test_what_blocks_a_job_is_a_key_away(place: Place) -> None:
    first, second = await place.add(2, key="ada")
    async with viewing(place.app) as screen:
        await listed(screen, place)
        await screen.press("enter")
        await screen.until(f"Job {second.id}  greet", f"w: go to job {first.id}")
        await screen.press("w")
        await screen.until(f"Job {first.id}  greet")
        await screen.press("w")
        await screen.until_said("No other job blocks this one.")
        await screen.press("escape")
        await screen.until(f"Job {second.id}  greet")


async def to_schedule(screen: Screen, place: Place, name: str) -> None:
    await screen.press("4")
    await screen.until(name)
    names = sorted(one.name for one in await place.store.schedules.list())
    await screen.press(*"j" * names.index(name))


async def test_schedule_is_run_paused_and_resumed(place: Place) -> None:
    name = f"nightly {place.queue}"
    job = NewJob(task="greet", payload="{}", queue=place.queue)
    await place.store.schedules.put(name, job, cron="0 2 * * *")

    async def paused() -> bool:
        return next(one.paused for one in await place.store.schedules.list() if one.name == name)

    async with viewing(place.app) as screen:
        await to_schedule(screen, place, name)
        await screen.press("r")
        await agree(screen, f"Run schedule {name} now?", "Enqueued job")
        (made,) = await place.store.find(JobQuery(queue=place.queue))
        assert made.task == "greet"
        await screen.press("p")
        await agree(screen, f"Pause schedule {name}?", "is paused")
        assert await paused()
        await screen.until("paused")
        await screen.press("p")
        await agree(screen, f"Resume schedule {name}?", "is resumed")
        assert not await paused()
        await screen.press("enter")
        await screen.until_said("has not run yet")
