"""Puts together what many handlers ask for at the same time: asked once, answered each."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Batcher(Generic[Key, Asked, Answer]):
    """Hands what was asked under the same key to `work`, a batch at a time.

    While a batch is worked on, the next one gathers: nobody waits for a clock. `work` answers
    with as many answers or exceptions as it was asked for.
    """

    def __init__(
        self,
        work: Callable[[Key, Sequence[Asked]], Awaitable[Sequence[Answer | Exception]]],
        most: int,
    ) -> None:
        self._work = work
        self._most = most
        self._waiting: dict[Key, list[tuple[Asked, asyncio.Future[Answer]]]] = {}
        self._working: dict[Key, asyncio.Task[None]] = {}

    async def ask(self, key: Key, asked: Asked) -> Answer:
        """The answer to this; raises the exception that is meant for it."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append((asked, future))
        if key not in self._working:
            self._working[key] = asyncio.create_task(self._drain(key))
        return await future

    async def _drain(self, key: Key) -> None:
        try:
            await self._gather(key)
            while waiting := self._waiting.pop(key, None):
                batch, rest = waiting[: self._most], waiting[self._most :]
                if rest:
                    self._waiting[key] = rest
                await self._answer(key, [one for one in batch if not one[1].done()])
        finally:
            del self._working[key]

    async def _gather(self, key: Key) -> None:
        """Let those come who were claimed with the first: they arrive one by one."""
        seen = 0
        while seen < len(self._waiting[key]):
            seen = len(self._waiting[key])
            await asyncio.sleep(0)

    async def _answer(
        self, key: Key, batch: Sequence[tuple[Asked, asyncio.Future[Answer]]]
    ) -> None:
        answers: Sequence[Answer | Exception]
        try:
            answers = await self._work(key, [asked for asked, _ in batch])
        except Exception as error:  # noqa: BLE001 - it is raised where it was asked for
            answers = [error] * len(batch)
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue  # who asked was cancelled meanwhile
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
