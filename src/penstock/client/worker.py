"""A worker over HTTP: claims events, runs handlers, renews leases, reports in batches."""

import asyncio
import contextlib
import inspect
import itertools
import logging
import signal
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from datetime import timedelta
from typing import Any, TypeVar

from penstock.client.events import EventCalls, Reports, Tags
from penstock.client.values import Event, Report
from penstock.core.errors import (
    ConfigurationError,
    JobNotFound,
    LeaseLost,
    PenstockError,
    ServerUnreachable,
    StoreUnavailable,
)

T = TypeVar("T")
Handler = Callable[[Event], Awaitable[object] | object]

_log = logging.getLogger(__name__)

_PASSING = (ServerUnreachable, StoreUnavailable)
_PICKED_AT_ONCE = _REPORTED_AT_ONCE = 500
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_CALLS_AT_ONCE = 8
_ERROR_LENGTH = 20_000
# Seconds for reports and releases when it stops, in addition to the grace of handlers.
_LAST_CALLS = 10.0


class _Held:
    """An event that this worker has claimed."""

    __slots__ = ("event", "failure", "is_lost", "is_reported", "stops", "task")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.task: asyncio.Task[None] | None = None
        self.failure: str | None = None
        self.is_lost = False
        self.is_reported = False
        self.stops = False


class EventWorker:
    """Runs a handler for each event with any of these tags, and reports success or the exception.

    A handler is a coroutine function, or a function, which runs in a thread; `concurrency` run at
    a time. Up to `batch` events are claimed ahead. Leases are renewed every `heartbeat`, which
    should be at most a third of the server's lease. When the worker stops, handlers get their
    `grace`; events that did not start or finish are released. While the server cannot be reached,
    the worker continues with its events and keeps its reports. Delivery is at least once.
    """

    def __init__(
        self,
        client: EventCalls,
        tags: Tags,
        handler: Handler,
        *,
        concurrency: int = 4,
        batch: int | None = None,
        wait: timedelta = timedelta(seconds=20),
        heartbeat: timedelta = timedelta(seconds=10),
        grace: timedelta = timedelta(seconds=30),
    ) -> None:
        if concurrency < 1 or (batch is not None and batch < 1) or heartbeat <= timedelta(0):
            raise ConfigurationError("concurrency, batch and heartbeat must be positive")
        if not callable(handler):
            raise ConfigurationError(
                f"a handler must be a function of an event, not {handler!r:.80}"
            )
        self._client = client
        self._connection = client._connection  # noqa: SLF001 - of the same package
        self._tags = tags
        self._handler = handler
        self._concurrency = concurrency
        self._most = max(concurrency, batch or 0)
        self._wait = wait
        self._heartbeat = heartbeat.total_seconds()
        self._grace = grace.total_seconds()
        self._held: dict[int, _Held] = {}
        self._ahead: deque[_Held] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._outbox: asyncio.Queue[_Held] = asyncio.Queue()
        self._back: list[_Held] = []
        self._stopping = asyncio.Event()
        self._moved = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: Executor | None = None
        if not _is_async(handler):
            self._threads = self._connection.runtime.executor(concurrency, "penstock-handler")

    def stop(self) -> None:
        """Claim no more events, and end after the running handlers. Safe from any thread."""
        if self._loop is None:
            self._stopping.set()
        else:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._stopping.set)

    async def run(self) -> None:
        """Run until `stop`. Raises errors that waiting cannot mend, such as `NotAuthorised`."""
        self._loop = asyncio.get_running_loop()
        trouble: PenstockError | None = None
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(self._renew_all()),
                group.create_task(self._report_all()),
            ]
            grace = 0.0  # when it is cancelled
            try:
                trouble = await self._pick()
                grace = self._grace
            finally:
                await self._finish(grace)
                for task in background:
                    task.cancel()
        if trouble is not None:
            raise trouble

    # Claiming

    async def _pick(self) -> PenstockError | None:
        """Claim events until `stop`, or until an error that is not transient, which is returned."""
        failures = 0
        while not self._stopping.is_set():
            room = self._most - len(self._held)
            if room <= 0 or len(self._ahead) >= self._concurrency:
                await self._next_move()
                continue
            try:
                events = await self._unless_stopped(
                    self._client.subscribe(
                        self._tags, limit=min(room, _PICKED_AT_ONCE), wait=self._wait
                    )
                )
            except _PASSING as error:
                _log.warning("events cannot be claimed at the moment: %s", error)
                await self._unless_stopped(
                    asyncio.sleep(self._connection.scattered_pause(failures))
                )
                failures += 1
                continue
            except PenstockError as error:
                return error
            failures = 0
            for event in events or ():
                self._held[event.id] = held = _Held(event)
                self._ahead.append(held)
            self._begin()
        return None

    async def _next_move(self) -> None:
        """Wait until there may be room, or until `stop`."""
        self._moved.clear()
        await self._unless_stopped(self._moved.wait())

    async def _unless_stopped(self, call: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of a call; None if `stop` is called first."""
        calling = asyncio.ensure_future(call)
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((calling, stop), return_when=asyncio.FIRST_COMPLETED)
            return await calling if calling.done() else None
        finally:
            stop.cancel()
            calling.cancel()

    def _begin(self) -> None:
        while self._ahead and len(self._running) < self._concurrency:
            if self._stopping.is_set():
                return
            held = self._ahead.popleft()
            if held.is_lost:
                continue
            held.task = asyncio.create_task(self._handle(held))
            self._running.add(held.task)

    # Running

    async def _handle(self, held: _Held) -> None:
        try:
            await self._call(held.event)
        except asyncio.CancelledError:
            if not held.stops:
                self._back.append(held)
                return
            held.failure = "it was asked to stop"
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is reported
            _log.warning("event %d failed", held.event.id, exc_info=error)
            held.failure = _sendable(f"{type(error).__name__}: {error}"[:_ERROR_LENGTH])
        finally:
            assert held.task is not None  # noqa: S101 - the current task
            self._running.discard(held.task)
            self._begin()
        self._outbox.put_nowait(held)

    async def _call(self, event: Event) -> None:
        if self._threads is None:
            await self._handler(event)  # type: ignore[misc] # which is async
        else:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, self._handler, event)

    # Leases

    async def _renew_all(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat)
            await _some_at_once(self._renew(held) for held in list(self._held.values()))

    async def _renew(self, held: _Held) -> None:
        if held.is_reported:
            return
        try:
            hold = await self._client.heartbeat(held.event)
        except (LeaseLost, JobNotFound):
            if not held.is_reported:  # meanwhile
                self._lose(held)
        except PenstockError as error:
            _log.warning("the lease of event %d was not renewed: %s", held.event.id, error)
        else:
            held.stops = hold.cancel_requested
            if held.stops:
                self._interrupt(held)

    def _lose(self, held: _Held) -> None:
        _log.warning("the lease of event %d was lost; its result is discarded", held.event.id)
        held.is_lost = True
        self._interrupt(held)
        self._forget(held)

    def _interrupt(self, held: _Held) -> None:
        if held.task is not None and self._threads is None:  # a thread cannot be stopped
            held.task.cancel()

    def _forget(self, held: _Held) -> None:
        if self._held.get(held.event.id) is held:  # or it was claimed again
            del self._held[held.event.id]
        self._moved.set()

    # Reporting

    async def _report_all(self) -> None:
        while True:
            ended = [await self._outbox.get()]
            while not self._outbox.empty() and len(ended) < _REPORTED_AT_ONCE:
                ended.append(self._outbox.get_nowait())
            await self._report([held for held in ended if held.failure is None])
            await self._report([held for held in ended if held.failure is not None])
            for held in ended:
                self._forget(held)
                self._outbox.task_done()

    async def _report(self, ended: Sequence[_Held]) -> None:
        """Report outcomes, however long the server is away."""
        for attempt in itertools.count():
            ended = [held for held in ended if not held.is_lost]
            if not ended:
                return
            try:
                for report in await self._send(ended):
                    if not report.recorded:
                        _log.warning("the result of event %d is discarded: %s", *_said(report))
            except _PASSING as error:
                _log.warning("the results of %d events are reported later: %s", len(ended), error)
                await asyncio.sleep(self._connection.scattered_pause(attempt))
                continue
            except PenstockError:
                _log.exception("the results of %d events cannot be reported", len(ended))
            return

    async def _send(self, ended: Sequence[_Held]) -> Reports:
        """Send these reports; their leases are not renewed meanwhile."""
        for held in ended:
            held.is_reported = True
        try:
            if ended[0].failure is None:
                return await self._client.complete_many([held.event for held in ended])
            return await self._client.fail_many(
                [(held.event, held.failure or "") for held in ended]
            )
        except PenstockError:
            for held in ended:
                held.is_reported = False
            raise

    # Stopping

    async def _finish(self, grace: float) -> None:
        """Release events that did not start, wait for handlers, release what is unfinished."""
        self._stopping.set()
        self._back += self._ahead
        self._ahead.clear()
        await self._give_back()
        if self._running:
            await asyncio.wait(self._running, timeout=grace)
        if left := list(self._running):
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=_LAST_CALLS)
        await self._give_back()
        try:
            await asyncio.wait_for(self._outbox.join(), _LAST_CALLS)
        except TimeoutError:
            _log.warning("the last reports did not reach the server; those events run again")
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _give_back(self) -> None:
        back = [held for held in self._back if not held.is_lost]
        self._back.clear()
        await _some_at_once(map(self._release, back))

    async def _release(self, held: _Held) -> None:
        held.is_reported = True
        self._forget(held)
        try:
            async with asyncio.timeout(_LAST_CALLS):
                await self._client.release(held.event)
        except LeaseLost:
            pass
        except (PenstockError, TimeoutError) as error:
            _log.warning(
                "event %d was not released, and its lease expires: %s", held.event.id, error
            )


@contextlib.contextmanager
def until_signalled(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the first SIGINT or SIGTERM in the block; a second has its usual effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(*_: object) -> None:
        restore()
        stop()

    for number in _SIGNALS:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()


async def _some_at_once(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await these calls, a few at a time."""
    turns = asyncio.Semaphore(_CALLS_AT_ONCE)

    async def take_turn(call: Coroutine[Any, Any, None]) -> None:
        async with turns:
            await call

    await asyncio.gather(*map(take_turn, calls))


def _is_async(handler: Handler) -> bool:
    call = getattr(handler, "__call__", None)  # noqa: B004 - objects with an async __call__
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def _sendable(text: str) -> str:
    """Return a text without lone surrogates, which would make the whole batch invalid."""
    return text.encode(errors="replace").decode()


def _said(report: Report) -> tuple[int, str | None]:
    return report.event_id, report.detail
