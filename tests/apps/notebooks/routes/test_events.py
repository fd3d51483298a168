import asyncio

from tests.apps.notebooks.support import Api


async def test_wait_answers_when_the_operation_ends(one: Api) -> None:
    accepted = await one.create("a.md")
    waiting = f"/events/{accepted['event_id']}/wait"
    late = await one("POST", f"{waiting}?timeout=0.01", status=408)
    assert late["event"]["status"] == "pending"
    answer = asyncio.create_task(one("GET", f"{waiting}?timeout=30"))
    await one.work()
    assert (await answer)["status"] == "completed"
    await one.app.queues.pause("notebooks")
    accepted = await one.create("b.md")
    await one.app.cancel(accepted["event_id"])
    assert (await one("GET", f"/events/{accepted['event_id']}/wait"))["status"] == "cancelled"
