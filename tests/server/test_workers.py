"""Workers over HTTP: list them with heartbeats and leases, and drain one."""

from datetime import timedelta

from penstock import NewJob, Penstock
from penstock.leases import WorkerInfo
from tests.contract.support import SECOND, ManualClock
from tests.server.support import Api


async def test_workers_are_listed_with_their_leases(
    api: Api, app: Penstock, clock: ManualClock
) -> None:
    assert await api("GET", "/workers") == {"workers": [], "after": None, "waiting_tasks": []}
    idle = WorkerInfo(
        name="idle", host="h", pid=7, queues=("q",), tags=("x",), concurrency=3, seen_at=clock.now
    )
    await app.store.heartbeat([idle])
    clock.advance(2 * SECOND)
    await app.enqueue_many([NewJob(task="t", payload="{}", queue="q")] * 3)
    jobs = await app.leases.claim(worker="busy", limit=2)
    clock.advance(SECOND)
    busy, found = (await api("GET", "/workers"))["workers"]
    assert (found["name"], found["host"], found["pid"], found["queues"]) == ("idle", "h", 7, ["q"])
    assert (found["heartbeat_age"], found["running"], found["leases"]) == (3.0, 0, [])
    assert (busy["name"], busy["heartbeat_age"], busy["running"]) == ("busy", 1.0, 2)
    assert [(one["job_id"], one["token"]) for one in busy["leases"]] == [
        (job.id, job.token) for job in jobs
    ]
    assert {(one["task"], one["queue"], one["attempt"]) for one in busy["leases"]} == {
        ("t", "q", 1)
    }


async def test_worker_that_fell_silent_is_marked(
    api: Api, app: Penstock, clock: ManualClock
) -> None:
    await app.store.heartbeat([WorkerInfo(name="w", host="h", seen_at=clock.now)])
    assert [one["silent"] for one in (await api("GET", "/workers"))["workers"]] == [False]
    clock.advance(timedelta(minutes=2))
    assert [one["silent"] for one in (await api("GET", "/workers"))["workers"]] == [True]


async def test_worker_can_be_asked_to_drain(api: Api, app: Penstock, clock: ManualClock) -> None:
    info = WorkerInfo(name="a/b", host="h", seen_at=clock.now)
    await app.store.heartbeat([info])
    assert await api("POST", "/workers/a%2Fb/drain") == {"name": "a/b", "draining": True}
    assert [one["draining"] for one in (await api("GET", "/workers"))["workers"]] == [True]
    assert await app.store.heartbeat([info]) == ["a/b"]
    await api.refused("POST", "/workers/nobody/drain", status=404)


async def test_workers_are_listed_in_pages(api: Api, app: Penstock, clock: ManualClock) -> None:
    names = [f"w{n}" for n in range(5)]
    await app.store.heartbeat(
        [WorkerInfo(name=name, host="h", seen_at=clock.now) for name in names]
    )
    page = await api("GET", "/workers", params={"limit": 3})
    assert ([one["name"] for one in page["workers"]], page["after"]) == (names[:3], "w2")
    page = await api("GET", "/workers", params={"limit": 3, "after": "w2"})
    assert ([one["name"] for one in page["workers"]], page["after"]) == (names[3:], None)
    page = await api("GET", "/workers", params={"name": "4"})
    assert [one["name"] for one in page["workers"]] == ["w4"]
