"""One tenant's backlog and another tenant's single item."""

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec import structs

from penstock import JobQuery, Penstock, State
from penstock.apps.ingest import Item, ItemType, Operation, Service, Settings, service
from penstock.config import Sources
from tests.apps.ingest.support import Bench
from tests.contract.support import ManualClock

BACKLOG = int(os.environ.get("PENSTOCK_TEST_BACKLOG", "2000"))
SLOTS = 4


def items(tenant: str, numbers: Sequence[int], priority: int = 5) -> list[Item]:
    return [
        Item(
            item_type=ItemType.CONTENT,
            op=Operation.INGEST,
            tenant_id=tenant,
            collection="docs",
            payload={"content": f"text {n}"},
            priority=priority,
        )
        for n in numbers
    ]


async def test_a_backlog_of_one_tenant_does_not_delay_another(table: Bench) -> None:
    """Count claims instead of seconds, so that the speed of the machine does not matter.

    On an idle queue an item starts with the first claim; with a backlog, within the second.
    """
    for start in range(0, BACKLOG, 500):
        await table.service.add(items("large", range(start, min(start + 500, BACKLOG))))
    [single] = await table.service.add(items("small", [0]))
    claims = 0
    while (await table.app.get(single.job_id)).state is State.PENDING:
        claims += 1
        assert await table.app.leases.claim(worker="w", limit=SLOTS, queues=["ingest"])
    assert claims <= 2


@pytest.mark.parametrize(
    ("ages", "rises"), [((300, 900), (0, 1, 1, 2, 2)), ((60,), (1,) * 5), ((), (0,) * 5)]
)
async def test_age_promotes_items_at_the_ages_of_the_settings(
    tmp_path: Path, clock: ManualClock, ages: tuple[float, ...], rises: tuple[int, ...]
) -> None:
    """Old items of priority 4 are claimed after new items that are still above them."""
    async with Penstock(f"sqlite:///{tmp_path}/queue.db", clock=clock) as app:
        service = Service(app, Settings(promote_after=ages))
        await service.promote_by_age()
        for age, rise in zip((299, 300, 899, 900, 9_000), rises, strict=True):
            [old] = await service.add(items("old", [age], priority=4))
            clock.advance(timedelta(seconds=age))
            fresh = [await service.add(items(f"{age}", [n], priority=n)) for n in range(4, 8)]
            above = [one.job_id for [one] in fresh[rise + 1 :]]
            claimed = [
                job.id for job in await app.leases.claim(worker="w", limit=5, queues=["ingest"])
            ]
            assert sorted(claimed[: len(above)]) == above, age
            assert old.job_id in claimed[len(above) : len(above) + 2]
            assert claimed[-1] != old.job_id or rise == 0


def test_ages_are_300_and_900_seconds_and_an_empty_list_turns_them_off() -> None:
    assert Settings().promote_after == (300, 900)
    found = Sources({"PENSTOCK_INGEST_PROMOTE_AFTER": ""}).section("ingest", Settings)
    assert found.settings.promote_after == ()
    found = Sources({"PENSTOCK_INGEST_PROMOTE_AFTER": "60, 600"}).section("ingest", Settings)
    assert found.settings.promote_after == (60, 600)


async def test_an_item_has_four_attempts_and_the_lease_of_its_type(table: Bench) -> None:
    await table.add("content", "ingest", {"content": "a"})
    await table.add("folder", "scan", {"folder_path": str(table.folder)}, max_retries=0)
    folder, content = await table.app.find(JobQuery(queue="ingest"))
    assert (content.retry.attempts, content.lease_time.total_seconds()) == (4, 300)
    assert folder.retry.attempts == 1


async def test_pages_of_rare_matches_end_and_miss_nothing(
    either: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_SCANNED", 5)
    monkeypatch.setattr(service, "_STEPS", 2)
    for n in range(60):
        [one] = items(f"tenant {n % 2}", [n])
        collection = "rare" if n % 20 == 0 else "docs"
        await either.service.add([structs.replace(one, collection=collection)])
    for wanted, status, expected in (
        ({}, None, 60),
        ({"collection": "rare"}, None, 3),
        ({"collection": "rare", "tenant_id": "tenant 0"}, "pending", 3),
        ({"tenant_id": "tenant 1"}, None, 30),
        ({"collection": "missing"}, None, 0),
        ({}, "failed", 0),
    ):
        seen: list[int] = []
        before: int | None = 2**62
        for _ in range(100):
            assert before is not None
            page, before = await either.service.page(wanted, status=status, before=before, limit=2)
            assert len(page) <= 2
            seen += [one.job_id for one in page]
            if before is None:
                break
        assert len(set(seen)) == len(seen) == expected
