import asyncio

import pytest

from penstock.apps.kit.background import in_background


async def test_work_goes_on_inside_the_block_and_has_ended_behind_it() -> None:
    steps: list[str] = []
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("ended")

    async with in_background(work()):
        await begun.wait()
        steps.append("inside")
    assert steps == ["inside", "ended"]


async def test_work_that_fails_is_heard_of_at_the_end() -> None:
    async def work() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        async with in_background(work()):
            await asyncio.sleep(0)
