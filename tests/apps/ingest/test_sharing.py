"""One tenant's backlog and another tenant's single item."""

import os
from collections.abc import Sequence

from penstock import JobQuery, State
from penstock.apps.ingest import Item, ItemType, Operation
from tests.apps.ingest.support import Bench

BACKLOG = int(os.environ.get("PENSTOCK_TEST_BACKLOG", "2000"))
SLOTS = 4


def items(tenant: str, numbers: Sequence[int]) -> list[Item]:
    return [
        Item(
            item_type=ItemType.CONTENT,
            op=Operation.INGEST,
            tenant_id=tenant,
            collection="docs",
            payload={"content": f"text {n}"},
        )
        for n in numbers
    ]


async def test_a_backlog_of_one_tenant_does_not_delay_another(table: Bench) -> None:
    """Counted in claims, not in seconds: the machine may be as slow as it likes.

    On an idle queue an item begins with the first claim; beside a backlog, within the second.
    """
    for start in range(0, BACKLOG, 500):
        await table.service.add(items("large", range(start, min(start + 500, BACKLOG))))
    [single] = await table.service.add(items("small", [0]))
    claims = 0
    while (await table.app.get(single.job_id)).state is State.PENDING:
        claims += 1
        assert await table.app.claim(worker="w", limit=SLOTS, queues=["ingest"])
    assert claims <= 2


async def test_age_promotes_items_unless_it_is_turned_off(table: Bench) -> None:
    await table.service.prepare()
    [queue] = [one for one in await table.app.queues() if one.name == "ingest"]
    assert queue.promote_after is not None
    assert queue.promote_after.total_seconds() == 300


async def test_an_item_has_four_attempts_and_the_lease_of_its_type(table: Bench) -> None:
    await table.add("content", "ingest", {"content": "a"})
    await table.add("folder", "scan", {"folder_path": str(table.folder)}, max_retries=0)
    folder, content = await table.app.find(JobQuery(queue="ingest"))
    assert (content.retry.attempts, content.lease_time.total_seconds()) == (4, 300)
    assert folder.retry.attempts == 1
