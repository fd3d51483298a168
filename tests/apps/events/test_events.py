"""Which worker gets which event, in which order, and who waits for one."""

import asyncio
import contextlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import Job, NewJob, Penstock
from penstock.apps.events.contents import job_of
from penstock.apps.events.events import Events
from penstock.apps.events.shapes import NewEvent
from penstock.apps.events.subscribers import Subscribers
from penstock.engine.leases import Leases
from tests.apps.events.support import ALICE, BOB, Api, served


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (" a , b,a ,, B ", "a,b,B"),
        (["a", " b ", "a", "B"], "a,b,B"),
        ("ä ö,日本", "ä ö,日本"),
        (["a' OR 1=1 --", "%", "*"], "a' OR 1=1 --,%,*"),
    ],
)
async def test_tags_are_trimmed_and_kept_once(api: Api, given: Any, kept: str) -> None:
    event = await api.publish(tags=given)
    assert event["tags"] == kept
    for tag in kept.split(","):
        assert (await api.pick(tag))["tags"] == kept
        await api.say("release", event["id"])


@pytest.mark.parametrize("tags", ["A", "aa", "a*", "%", "a b", "b,c"])
async def test_tags_match_exactly(api: Api, tags: str) -> None:
    await api.publish(tags="a")
    assert await api.nothing_for(tags)
    assert (await api.get("/events", params={"tags": tags})).json()["total"] == 0


@pytest.mark.parametrize(
    "tags", ["", " , ", [], [" "], ["a,b"], ["x" * 201], "x" * 201, "a\0b", ["a"] * 51, 7, None]
)
async def test_tags_that_cannot_be(api: Api, tags: Any) -> None:
    for path, body in (
        ("/events", {"title": "t", "tags": tags}),
        ("/events/subscribe", {"worker_id": ALICE, "tags": tags}),
    ):
        answer = await api.post(path, json=body)
        assert answer.status_code == 422, answer.text
        assert answer.json()["field"].startswith("tags")


async def test_order_is_priority_then_due_time_then_id(api: Api) -> None:
    later = await api.publish(delay=2, title="later")
    low = await api.publish(priority=1)
    first, second = await api.publish(), await api.publish()
    api.after(1)
    third = await api.publish()
    high = await api.publish(priority=9)
    assert (await api.pick())["id"] == high["id"]
    api.after(5)
    wanted = [first, second, third, later, low]
    assert [(await api.pick())["id"] for _ in wanted] == [event["id"] for event in wanted]


async def test_batch_is_published_whole_or_not_at_all(api: Api) -> None:
    events = [{"title": f"{n}", "tags": ["a"]} for n in range(3)]
    answer = await api.post("/events/batch", json={"events": events})
    assert answer.status_code == 201
    published = answer.json()["events"]
    assert [event["title"] for event in published] == ["0", "1", "2"]
    assert [event["id"] for event in published] == sorted(event["id"] for event in published)
    wrong = [{"title": "x", "tags": "b"}, {"title": "x", "tags": " "}]
    assert (await api.post("/events/batch", json={"events": wrong})).status_code == 422
    assert (await api.get("/events?tags=b")).json()["total"] == 0


@pytest.mark.parametrize("n", [0, 1_001])
async def test_batch_has_a_size(api: Api, n: int) -> None:
    answer = await api.post("/events/batch", json={"events": [{"title": "t", "tags": "a"}] * n})
    assert answer.status_code == 422
    assert answer.json()["field"] == "events"


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_limit_picks_a_batch(api: Api, method: str) -> None:
    async def pick(limit: int) -> Any:
        wanted = {"tags": "a", "worker_id": ALICE, "limit": limit}
        by = {"params": wanted} if method == "GET" else {"json": wanted}
        answer = await api.client.request(method, "/events/subscribe", **by)  # type: ignore[arg-type] # options as data
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "no-store"
        return [event["id"] for event in answer.json()["events"]]

    events = [(await api.publish())["id"] for _ in range(3)]
    assert await pick(2) == events[:2]
    assert await pick(2) == events[2:]
    assert await pick(2) == []


async def test_post_does_the_same_as_get(api: Api) -> None:
    event = await api.publish(tags="a")
    answer = await api.post("/events/subscribe", json={"tags": ["b", "a"], "worker_id": BOB})
    assert (answer.status_code, answer.json()["id"]) == (200, event["id"])
    answer = await api.post("/events/subscribe", json={"tags": ["b", "a"], "worker_id": BOB})
    assert (answer.status_code, answer.headers["cache-control"]) == (204, "no-store")


async def test_key_lets_one_go_at_a_time(api: Api) -> None:
    first, second = await api.publish(key="k"), await api.publish(key="k", priority=9)
    assert (await api.pick())["id"] == first["id"]
    assert await api.nothing_for()
    await api.say("fail", first["id"])
    assert await api.nothing_for()
    api.after(300)
    assert (await api.pick())["id"] == first["id"]
    await api.say("complete", first["id"])
    assert (await api.pick())["id"] == second["id"]


async def test_dedupe_answers_with_the_event_that_is_there(api: Api) -> None:
    first = await api.publish(dedupe="d", title="one")
    assert await api.publish(dedupe="d", title="two") == first


async def test_list_is_filtered_and_paged(api: Api) -> None:
    ids = [(await api.publish(tags=["a", f"t{n % 2}"]))["id"] for n in range(5)]
    held = (await api.pick("t0"))["id"]

    async def found(**wanted: Any) -> tuple[list[int], int]:
        page = (await api.get("/events", params=wanted)).json()
        return [event["id"] for event in page["events"]], page["total"]

    newest = ids[::-1]
    assert await found() == (newest, 5)
    assert await found(limit=2, offset=1) == (newest[1:3], 5)
    assert await found(limit=2, offset=100_000) == ([], 5)
    assert await found(status="PROCESSING") == ([held], 1)
    assert await found(status="PENDING", tags="t0") == ([n for n in newest[::2] if n != held], 2)
    assert await found(tags="t1,t0") == (newest, 5)
    assert await found(status="COMPLETED") == ([], 0)


# Waiting


def waiting(api: Api, worker: str = ALICE, tags: str = "a", wait: float = 60) -> asyncio.Task[Any]:
    wanted: dict[str, Any] = {"tags": tags, "worker_id": worker, "wait": wait}
    return asyncio.create_task(api.get("/events/subscribe", params=wanted))


async def test_event_that_is_published_later_is_waited_for(api: Api) -> None:
    waits = waiting(api)
    event = await api.publish()
    assert (await waits).json()["id"] == event["id"]


async def test_retry_that_falls_due_is_waited_for(api: Api) -> None:
    event = await api.publish()
    await api.pick()
    await api.say("fail", event["id"])
    waits = waiting(api, BOB)
    assert await api.nothing_for("other")  # the wait has begun
    api.after(300)
    assert (await waits).json()["id"] == event["id"]


async def test_time_is_over(api: Api) -> None:
    answer = await waiting(api, wait=0.01)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["cache-control"] == "no-store"


async def test_event_from_another_process_wakes_who_waits(tmp_path: Path) -> None:
    """A second connection to the file does not know the waiting subscribers."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with served(url) as api, Penstock(url, clock=api.clock) as publisher:
        waits = waiting(api)
        assert await api.nothing_for("other")
        (job,) = await publisher.enqueue_many(
            [job_of(NewEvent(title="t", tags="a"), 300, timedelta(seconds=30))]
        )
        assert (await waits).json()["id"] == job.id


async def test_longest_waiting_is_served_first(api: Api) -> None:
    waits = []
    for n in range(3):
        waits.append(waiting(api, worker=f"w{n}"))
        assert await api.nothing_for("other")  # so that it has come before the next does
    events = [(await api.publish())["id"] for _ in range(3)]
    assert sorted(answer.json()["id"] for answer in await asyncio.gather(*waits)) == events


async def test_nothing_stays_with_a_reader_that_went_away(api: Api) -> None:
    waits = waiting(api)
    assert await api.nothing_for("other")
    waits.cancel()
    await asyncio.wait([waits])
    event = await api.publish()
    assert (await api.pick(worker=BOB))["id"] == event["id"]


async def test_event_that_was_picked_as_its_reader_left_is_given_back(tmp_path: Path) -> None:
    left = asyncio.Event()

    class Leaving(Leases):
        async def claim(self, **wanted: Any) -> list[Job]:
            jobs = await super().claim(**wanted)
            if jobs:
                left.set()
            return jobs

    async with Penstock(f"sqlite:///{tmp_path}/jobs.db") as app:
        app.leases = Leaving(app.connection, app.limits)
        subscribers = Subscribers(app, "events")
        async with subscribers.running():
            waits = asyncio.create_task(subscribers.wait(["a"], ALICE, 1, 60, left.wait))
            event = job_of(NewEvent(title="t", tags="a"), 300, timedelta(seconds=30))
            (job,) = await app.enqueue_many([event])
            assert await waits == []
        assert [entry.event for entry in await app.log(job.id)] == [
            "enqueued",
            "claimed",
            "snoozed",
        ]
        assert (await app.get(job.id)).attempt == 0


async def test_dedupe_answers_with_the_event_as_it_is_now(api: Api) -> None:
    await api.publish(dedupe="k")
    api.after(10)
    event = await api.pick()
    api.after(10)
    again = await api.publish(dedupe="k")
    assert again["id"] == event["id"]
    assert (again["status"], again["updated_at"]) == ("PROCESSING", "2025-12-24T10:30:10Z")


async def test_dedupe_key_of_a_job_means_no_event(api: Api) -> None:
    (job,) = await api.app.enqueue_many([NewJob(task="other", payload="{}", dedupe="k")])
    event = await api.publish(dedupe="k")
    assert event["id"] != job.id
    assert (await api.pick())["id"] == event["id"]


@pytest.mark.parametrize("task", ["other", "events.event"])
async def test_job_in_the_queue_of_the_events_is_one(api: Api, task: str) -> None:
    """No job in the queue can keep workers from their events."""
    await api.app.enqueue_many([NewJob(task=task, queue="events", tags=("a",), payload='{"n": 1}')])
    event = await api.pick()
    assert (event["title"], event["payload"]) == (task, {"n": 1})
    failed = (await api.say("fail", event["id"], token=event["token"])).json()
    assert failed["retry_scheduled"]
    assert (await api.look(event["id"]))["title"] == task
    (listed,) = (await api.get("/events")).json()["events"]
    assert (listed["title"], listed["status"]) == (task, "PENDING")


async def test_list_has_every_status(api: Api) -> None:
    event = await api.publish()
    await api.publish()
    await api.app.cancel(event["id"])
    found = (await api.get("/events", params={"status": "CANCELLED"})).json()
    assert [one["id"] for one in found["events"]] == [event["id"]]
    assert (await api.get("/events", params={"status": "SUPERSEDED"})).json()["total"] == 0


async def test_thousands_of_other_tags_keep_nobody_waiting(api: Api) -> None:
    for start in (0, 1_000):
        crowd = [{"title": "t", "tags": f"crowd-{start + n}"} for n in range(1_000)]
        assert (await api.post("/events/batch", json={"events": crowd})).status_code == 201
    waits = waiting(api, tags="last")
    assert await api.nothing_for("other")
    event = await api.publish(tags="last")
    assert (await waits).json()["id"] == event["id"]


async def test_event_that_was_picked_as_the_server_stopped_is_given_back(tmp_path: Path) -> None:
    claimed, answered = asyncio.Event(), asyncio.Event()

    class Slow(Leases):
        async def claim(self, **wanted: Any) -> list[Job]:
            jobs = await super().claim(**wanted)
            if jobs:
                claimed.set()
                await answered.wait()
            return jobs

    async with Penstock(f"sqlite:///{tmp_path}/jobs.db") as app:
        app.leases = Slow(app.connection, app.limits)
        subscribers = Subscribers(app, "events")
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(subscribers.running())
            waits = asyncio.create_task(subscribers.wait(["a"], ALICE, 1, 60, answered.wait))
            event = job_of(NewEvent(title="t", tags="a"), 300, timedelta(seconds=30))
            (job,) = await app.enqueue_many([event])
            await claimed.wait()
            stopping = asyncio.create_task(stack.pop_all().aclose())
            assert await waits == []
            answered.set()
            await stopping
        assert [entry.event for entry in await app.log(job.id)] == [
            "enqueued",
            "claimed",
            "snoozed",
        ]


async def test_event_for_who_left_during_the_first_look_is_given_back(tmp_path: Path) -> None:
    async with Penstock(f"sqlite:///{tmp_path}/jobs.db") as app:
        events = Events(app, retry_delay=300, lease=timedelta(seconds=30))
        (event,) = await events.publish([NewEvent(title="t", tags="a")])

        async def gone() -> None:
            """At once."""

        def check() -> None:
            """Nothing against it."""

        assert await events.subscribe(["a"], ALICE, 1, 0, gone, check=check) == []
        assert (await app.get(event.id)).attempt == 0
        stays = asyncio.Event().wait
        (job,) = await events.subscribe(["a"], ALICE, 1, 0, stays, check=check)
        assert job.id == event.id
