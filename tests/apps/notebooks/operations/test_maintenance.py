from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.apps.notebooks.support import served
from tests.contract.support import ManualClock

MINUTE = timedelta(minutes=1)


async def test_operations_are_removed_when_their_time_is_over(
    tmp_path: Path, clock: ManualClock
) -> None:
    url, data = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "data"
    kept: dict[str, Any] = {"completed_event_retention": 120, "failed_event_retention": 600}
    async with served(url, data, clock=clock, **kept) as api:
        done = await api.create("a.md", "one")
        failed = await api.on("PATCH", "/folders/nowhere", {"path": "x"})
        await api.work()
        assert [await api.status(one) for one in (done, failed)] == ["completed", "failed"]
    clock.advance(MINUTE)
    async with served(url, data, clock=clock, **kept) as api:
        assert [await api.status(one) for one in (done, failed)] == ["completed", "failed"]
    clock.advance(MINUTE + MINUTE)
    async with served(url, data, clock=clock, **kept) as api:
        await api("GET", f"/events/{done['event_id']}", status=404)
        assert await api.status(failed) == "failed"
        pending = await api.create("b.md", "two")
    clock.advance(10 * MINUTE)
    async with served(url, data, clock=clock, **kept) as api:
        await api("GET", f"/events/{failed['event_id']}", status=404)
        assert await api.status(pending) == "pending"
        await api.work()
        assert api.disk() == {"a.md": "one", "b.md": "two"}


async def test_operations_stay_for_the_server_to_remove_by_default(
    tmp_path: Path, clock: ManualClock
) -> None:
    url, data = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "data"
    async with served(url, data, clock=clock) as api:
        done = await api.create("a.md", "one")
        await api.work()
    clock.advance(timedelta(days=30))
    async with served(url, data, clock=clock) as api:
        assert await api.status(done) == "completed"
