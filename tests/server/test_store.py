"""How the store fares, over HTTP."""

from penstock import Done, NewJob, Penstock
from tests.contract.support import HOUR, ManualClock
from tests.server.conftest import Api


async def test_store_tells_its_size_and_what_it_refused(
    api: Api, app: Penstock, clock: ManualClock
) -> None:
    await app.enqueue_many([NewJob(task="t", payload="{}")])
    [job] = await app.claim(worker="slow", limit=1)
    clock.advance(HOUR)
    assert await app.reclaim() == 1
    assert await app.settle_held([(job, Done())]) == [None]
    store = await api("GET", "/store")
    assert (store["refused"], store["expired"]) == (1, 1)
    assert store["newest_log"] == await app.newest_log()
    if store["kind"] != "memory":
        assert store["bytes"] > 0
    assert (store["wal_bytes"] is not None) is (store["kind"] == "sqlite")
    assert (store["dead_rows"] is not None) is (store["kind"] == "postgres")
