"""Statistics over HTTP: the throughput of queues over time, and the condition of the store."""

from datetime import timedelta

import pytest

from penstock import NewJob, Penstock
from penstock.leases import Done, Failed
from tests.contract.support import HOUR, SECOND, ManualClock
from tests.server.support import Api


@pytest.fixture
async def worked(app: Penstock, clock: ManualClock) -> None:
    """Sixty jobs of one queue, claimed after 2 seconds, run in 5; one of another, failed."""
    mail = NewJob(task="t", payload="{}", queue="mail")
    await app.enqueue_many([mail] * 60)
    clock.advance(2 * SECOND)
    jobs = await app.leases.claim(worker="w", limit=60)
    clock.advance(5 * SECOND)
    await app.leases.settle([(job, Done()) for job in jobs])
    clock.advance(timedelta(minutes=1))
    await app.enqueue_many([NewJob(task="t", payload="{}", queue="other")])
    await app.leases.settle([(job, Failed("no")) for job in await app.leases.claim(worker="w")])
    clock.advance(timedelta(minutes=10))


@pytest.mark.usefixtures("worked")
async def test_rates_and_times_come_per_queue_and_step(api: Api) -> None:
    found = await api("GET", "/history")
    mail, other = found["intervals"]
    assert (mail["queue"], mail["at"]) == ("mail", "2030-01-01T00:00:00Z")
    assert mail["counts"] == {"enqueued": 60, "claimed": 60, "done": 60}
    assert mail["rates"] == {"enqueued": 1.0, "claimed": 1.0, "done": 1.0}
    assert (mail["wait"]["count"], mail["wait"]["total"]) == (60, 120.0)
    assert 1 <= mail["wait"]["p50"] <= mail["wait"]["p95"] <= mail["wait"]["p99"] <= 2.5
    assert 2.5 <= mail["run"]["p50"] <= mail["run"]["p99"] <= 5
    assert sum(mail["run"]["buckets"]) == 60
    assert mail["run"]["buckets"][11] == 60  # above 2.5 seconds, and up to 5
    assert (other["queue"], other["at"]) == ("other", "2030-01-01T00:01:00Z")
    assert other["counts"]["failed"] == 1


@pytest.mark.usefixtures("worked")
async def test_step_that_is_under_way_is_measured_by_its_own_length(
    api: Api, app: Penstock, clock: ManualClock
) -> None:
    [last] = (await api("GET", "/history?step=86400&queue=mail"))["intervals"]
    seconds = clock.now.timestamp() % 86400
    assert last["rates"]["done"] == 60 / seconds


@pytest.mark.usefixtures("worked")
async def test_time_and_queue_narrow_it(api: Api) -> None:
    async def queues(**wanted: str) -> list[str]:
        found = await api("GET", "/history", params=wanted)
        return [one["queue"] for one in found["intervals"]]

    assert await queues() == ["mail", "other"]
    assert await queues(queue="other") == ["other"]
    assert await queues(queue="none") == []
    assert await queues(since="2030-01-01T00:01:00Z") == ["other"]
    assert await queues(until="2030-01-01T00:01:00Z") == ["mail"]
    assert await queues(since="2030-01-01T00:00:00+00:00", step="3600") == ["mail", "other"]
    assert await queues(since="2029-01-01T00:00:00Z", step="600") == ["mail", "other"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("since=2030-01-01T00:00:00", "since"),
        ("since=soon", "since"),
        ("until=x", "until"),
        ("queue=", "queue"),
        ("step=59", "step"),
        ("step=90", "step"),
        ("step=0", "step"),
        ("step=86460", "step"),
        ("step=x", "step"),
        ("since=2020-01-01T00:00:00Z", "step"),
        ("interval=60", "interval"),
    ],
)
async def test_wrong_parameter_is_named(api: Api, query: str, field: str) -> None:
    assert await api.refused("GET", f"/history?{query}") == field


async def test_store_tells_its_size_and_what_it_refused(
    api: Api, app: Penstock, clock: ManualClock
) -> None:
    await app.enqueue_many([NewJob(task="t", payload="{}")])
    [job] = await app.leases.claim(worker="slow", limit=1)
    clock.advance(HOUR)
    assert await app.leases.reclaim() == 1
    assert await app.leases.settle_held([(job, Done())]) == [None]
    store = await api("GET", "/store")
    assert (store["refused"], store["expired"]) == (1, 1)
    assert store["newest_log"] == await app.newest_log()
    if store["kind"] != "memory":
        assert store["bytes"] > 0
    assert (store["wal_bytes"] is not None) is (store["kind"] == "sqlite")
    assert (store["dead_rows"] is not None) is (store["kind"] == "postgres")
