"""Requests that are combined into batches."""

import asyncio
from collections.abc import Sequence

import pytest

from penstock.apps.kit import Batcher


class Work:
    """Doubles numbers, and remembers the batches."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[int]]] = []
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self.go = asyncio.Event()

    async def __call__(self, key: str, requests: Sequence[int]) -> list[int | Exception]:
        self.batches.append((key, [*requests]))
        self.begun.put_nowait(key)
        await self.go.wait()
        return [ValueError(f"{n} is odd") if n % 2 else 2 * n for n in requests]


async def test_requests_of_a_key_are_combined_while_a_batch_is_in_progress() -> None:
    work = Work()
    batcher = Batcher[str, int, int](work, most=3)
    first = [asyncio.create_task(batcher.ask("a", n)) for n in (0, 2)]
    assert await work.begun.get() == "a"
    later = [asyncio.create_task(batcher.ask("a", n)) for n in (4, 6, 8, 10)]
    other = asyncio.create_task(batcher.ask("b", 12))
    assert await work.begun.get() == "b"
    work.go.set()
    assert await asyncio.gather(*first, *later, other) == [0, 4, 8, 12, 16, 20, 24]
    assert work.batches == [("a", [0, 2]), ("b", [12]), ("a", [4, 6, 8]), ("a", [10])]


async def test_each_caller_gets_its_own_exception() -> None:
    work = Work()
    work.go.set()
    batcher = Batcher[str, int, int](work, most=10)
    answers = await asyncio.gather(*(batcher.ask("a", n) for n in range(3)), return_exceptions=True)
    assert answers[::2] == [0, 4]
    assert repr(answers[1]) == "ValueError('1 is odd')"


async def test_error_of_a_whole_batch_reaches_all_of_its_callers() -> None:
    async def fail(_key: str, _requests: Sequence[int]) -> list[int]:
        raise OSError("the disk is full")

    batcher = Batcher[str, int, int](fail, most=10)
    asked = [asyncio.create_task(batcher.ask("a", n)) for n in range(2)]
    for one in asked:
        with pytest.raises(OSError, match="disk is full"):
            await one


async def test_cancelled_caller_is_left_out() -> None:
    work = Work()
    batcher = Batcher[str, int, int](work, most=10)
    first = asyncio.create_task(batcher.ask("a", 0))
    assert await work.begun.get() == "a"
    gone, stays = (asyncio.create_task(batcher.ask("a", n)) for n in (2, 4))
    await asyncio.sleep(0)
    gone.cancel()
    work.go.set()
    assert (await first, await stays) == (0, 8)
    assert gone.cancelled()
    assert work.batches == [("a", [0]), ("a", [4])]
