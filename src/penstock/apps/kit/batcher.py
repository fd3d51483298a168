"""Combines calls that many handlers make at the same time into batches."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Request = TypeVar("Request")
Response = TypeVar("Response")


class Batcher(Generic[Key, Request, Response]):
    """Passes requests with the same key to `work`, up to `most` at a time.

    While one batch is in progress, the next one fills: nothing waits for a timer. `work` returns a
    response or an exception for each request.
    """

    def __init__(
        self,
        work: Callable[[Key, Sequence[Request]], Awaitable[Sequence[Response | Exception]]],
        most: int,
    ) -> None:
        self._work = work
        self._most = most
        self._waiting: dict[Key, list[tuple[Request, asyncio.Future[Response]]]] = {}
        self._working: dict[Key, asyncio.Task[None]] = {}

    async def ask(self, key: Key, request: Request) -> Response:
        """Return the response to a request, or raise its exception."""
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append((request, future))
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
        """Wait for the handlers whose jobs were claimed together: they arrive one by one."""
        seen = 0
        while seen < len(self._waiting[key]):
            seen = len(self._waiting[key])
            await asyncio.sleep(0)

    async def _answer(
        self, key: Key, batch: Sequence[tuple[Request, asyncio.Future[Response]]]
    ) -> None:
        responses: Sequence[Response | Exception]
        try:
            responses = await self._work(key, [request for request, _ in batch])
        except Exception as error:  # noqa: BLE001 - raised in each of the callers
            responses = [error] * len(batch)
        for (_, future), response in zip(batch, responses, strict=True):
            if future.done():
                continue  # the caller was cancelled meanwhile
            if isinstance(response, Exception):
                future.set_exception(response)
            else:
                future.set_result(response)
