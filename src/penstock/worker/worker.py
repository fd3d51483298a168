"""The worker: claims a batch for its free slots, runs it, settles it, and so on.

One coroutine exchanges with the store: what has ended goes out and new jobs come in, in one
transaction, because both calls reach the writer together. The slots are long-lived asyncio
tasks; a handler that never waits costs no task switch. When half of the slots have ended, what is
theirs is exchanged while the other half runs: the store and the handlers work at the same time.
"""

import asyncio
import contextlib
import logging
import os
import socket
import uuid
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta

from msgspec.structs import replace

from penstock.core.errors import ConfigurationError, PenstockError, StoreUnavailable
from penstock.core.job import Job, JobQuery, Retention, headline
from penstock.core.lifecycle import Cancelled, Failed, Outcome, Snoozed, State, Waiting
from penstock.core.seal import check_lasting
from penstock.core.times import from_micros
from penstock.core.worker import WorkerInfo
from penstock.engine import Penstock
from penstock.tracing import note_outcome, tracing_run
from penstock.worker.cron import Cron
from penstock.worker.execute import Run, described
from penstock.worker.finishing import settle_joined
from penstock.worker.leases import LeaseKeeper
from penstock.worker.notebook import Notebook
from penstock.worker.processes import Children
from penstock.worker.remote import answering
from penstock.worker.upkeep import Upkeep

_log = logging.getLogger(__name__)

APPLICATION_QUEUES = frozenset(
    {"events", "indexing", "entries", "entries-operations", "ingest", "notebooks"}
)
"""Queues of Penstock's own applications: only a worker that names them works on them."""

# To wait for the next change is to ask the store something: the claim goes first.
_HEAD_START = 0.004
_RETRY_PAUSE = 0.5
_LOOK_AGAIN = 5.0
# How long cancelled handlers may take to clean up when the worker's grace is over.
_LAST_WAIT = 5.0
# Cancel requests are looked for at most this often.
_CANCEL_PAUSE = 0.05
_CANCELS_AT_ONCE = 1_000
_PENDING = frozenset({State.PENDING})
_TAGGED_AT_ONCE = 1_000


class Worker:
    """Runs the jobs of a Penstock's tasks, up to `concurrency` at a time.

    Coroutine handlers share the event loop; plain functions run in threads; those of tasks with
    isolation in child processes, which are killed when they do not stop within `kill_after`. A
    worker that is killed loses nothing: its jobs run again when their leases are over.
    """

    def __init__(
        self,
        penstock: Penstock,
        *,
        queues: Sequence[str] | None = None,
        tags: Sequence[str] = (),
        concurrency: int = 20,
        name: str | None = None,
        grace: timedelta = timedelta(seconds=30),
        sweep: timedelta = timedelta(seconds=1),
        kill_after: timedelta = timedelta(seconds=5),
        retention: Retention = Retention(),  # noqa: B008 - immutable
    ) -> None:
        if concurrency < 1:
            raise ConfigurationError("a worker needs a concurrency of 1 or more")
        if isinstance(queues, str) or isinstance(tags, str):
            raise ConfigurationError("queues and tags are lists of names, not a string")
        _check_time("grace", grace)
        _check_time("sweep", sweep)
        _check_time("kill_after", kill_after)
        self.name = name or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
        self._penstock = penstock
        self._queues = queues
        self._tags = tags
        self._concurrency = concurrency
        self._portion = concurrency // 2 or 1
        self._grace = grace
        self._sweep = sweep
        self._retention = retention
        self._children = Children(
            penstock, limit=concurrency, grace=kill_after, asked=answering(penstock)
        )
        self._notebook = Notebook(penstock)
        self._runs: dict[int, Run] = {}
        self._waiting: deque[Run] = deque()
        self._slots: set[asyncio.Task[None]] = set()
        self._idle_slots: deque[asyncio.Future[None]] = deque()
        self._ended: list[tuple[Run, Outcome]] = []
        self._slot_is_coming = False
        self._stir = asyncio.Event()
        self._changed = asyncio.Event()
        self._exchanging: list[asyncio.Task[None]] = []
        self._more = True
        self._started = False
        self._stopping = False
        self.draining = False
        self._over = False

    async def run(self, *, until_empty: bool = False) -> None:
        """Work until `stop`, or with `until_empty` until nothing is ready and nothing runs.

        Jobs that a limit holds are ready: it waits for their turn. Jobs that are due later or
        stand in a paused queue do not keep it. Once: for another run, make another worker.
        Cancelling releases what runs at once.
        """
        if self._started:
            raise ConfigurationError("a worker runs once: make another")
        self._started = True
        await self._check_store()
        self._loop = asyncio.get_running_loop()
        await self._children.prepare()
        self._threads = ThreadPoolExecutor(self._concurrency, f"penstock-{self.name}")
        self._keeper = LeaseKeeper(self._penstock, self._runs, self._renewed)
        cron = Cron(self._penstock, self._sweep)
        upkeep = Upkeep(
            self._penstock, self._introduction(), self._sweep, self._retention, self.drain
        )
        try:
            await cron.begin()
            async with asyncio.TaskGroup() as group:
                self._group = group
                for _ in range(self._concurrency):
                    self._open_slot()
                helpers = [
                    group.create_task(self._watch_store()),
                    group.create_task(self._watch_cancels()),
                    group.create_task(upkeep.run()),
                    group.create_task(cron.run()),
                ]
                try:
                    await self._exchange_until(until_empty=until_empty)
                    await self._wind_down(self._grace)
                except asyncio.CancelledError:
                    await self._wind_down(timedelta(0))
                    raise
                finally:
                    self._over = True
                for helper in (*helpers, *self._slots):
                    helper.cancel()
        finally:
            self._keeper.stop()
            self._notebook.close()
            self._threads.shutdown(wait=False, cancel_futures=True)
            await self._children.close()
            if not self._runs:  # else it has left jobs behind, and stays known as who has them
                await upkeep.end()

    async def _check_store(self) -> None:
        """Raise for a store that cannot be opened, or whose jobs have left: no pause would help."""
        with suppress(StoreUnavailable):
            check_lasting(await self._penstock.store.sealed())

    def _introduction(self) -> WorkerInfo:
        """What it says of itself, in the process that runs it, which may not have made it."""
        now = from_micros(self._penstock.clock())
        return WorkerInfo(
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=None if self._queues is None else tuple(self._queues),
            tags=tuple(self._tags),
            concurrency=self._concurrency,
            started_at=now,
            seen_at=now,
        )

    def stop(self) -> None:
        """Claim no more, give running jobs their grace, then release them."""
        self._stopping = True
        self._stir.set()

    def drain(self) -> None:
        """Claim no more, and end when what runs has ended, however long that takes."""
        if not self.draining:
            _log.warning("worker %s was asked to drain: it ends with the jobs it has", self.name)
        self.draining = True
        self._stir.set()

    # The exchange with the store

    async def _exchange_until(self, *, until_empty: bool) -> None:
        while not self._stopping:
            self._stir.clear()
            try:
                await self._exchange()
                if self.draining and not self._runs:
                    return
                if self._ended or (
                    self._more and not self.draining and len(self._runs) < self._concurrency
                ):
                    continue
                if until_empty and not self._runs and not self._more and await self._is_empty():
                    return
            except PenstockError as error:
                _log.warning("the store did not answer, trying again: %s", error)
                await asyncio.sleep(_RETRY_PAUSE)
                continue
            await self._stir.wait()

    async def _is_empty(self) -> bool:
        """Whether nothing is ready for this worker, behind a claim that came to nothing."""
        store = self._penstock.store
        paused = {queue.name for queue in await store.queues() if queue.paused}
        ready = [
            name
            for (name, _, waiting), n in (await store.count()).items()
            if n and waiting is Waiting.READY and name not in paused and self._works_on(name)
        ]
        for queue in ready if self._tags else ():
            tags = tuple(self._tags)
            query = JobQuery(states=_PENDING, queue=queue, tags=tags, limit=_TAGGED_AT_ONCE)
            while page := await store.find(query):
                if any(job.waiting is Waiting.READY for job in page):
                    return False
                query = replace(query, after=page[-1].id)
        return not ready or bool(self._tags)

    def _works_on(self, queue: str) -> bool:
        return queue not in APPLICATION_QUEUES if self._queues is None else queue in self._queues

    async def _exchange(self) -> None:
        free = self._concurrency - len(self._runs) + len(self._ended)
        if self._ended:
            self._more = True  # what has ended may let others begin
        # Both are in the writer's hands before it begins: one transaction, settling first.
        exchanging: list[asyncio.Task[None]] = []
        if self._ended:
            exchanging.append(self._loop.create_task(self._settle()))
        if free and self._more and not self.draining:
            exchanging.append(self._loop.create_task(self._claim(free)))
        if exchanging:
            self._exchanging = exchanging
            await asyncio.wait(exchanging)
        for exchanged in exchanging:
            exchanged.result()

    async def _claim(self, limit: int) -> None:
        self._more = False
        try:
            jobs = await self._penstock.claim(
                worker=self.name,
                limit=limit,
                queues=self._queues,
                besides=APPLICATION_QUEUES,
                tags=self._tags,
            )
        except PenstockError:
            self._more = True
            raise
        if jobs:
            self._more = self._more or len(jobs) == limit
            self._begin(jobs)

    async def _settle(self) -> None:
        ended, self._ended = self._ended, []
        held = [(run, outcome) for run, outcome in ended if not run.lost]
        if len(held) < len(ended):
            self._forget([run for run, _ in ended if run.lost])
        if not held:
            return
        try:
            if self._notebook:  # the leases end with the settle, and with them the right to write
                await self._notebook.write_now([run.job.token for run, _ in held])
            await self._settle_joined(held)
            answers = await self._penstock.settle_held([(run.job, out) for run, out in held])
        except PenstockError:
            self._ended = held + self._ended
            raise
        self._forget([run for run, _ in held])
        for (run, outcome), answer in zip(held, answers, strict=True):
            if answer is None:
                _log.warning("the lease on job %d was lost before it ended", run.job.id)
            elif isinstance(outcome, Failed):
                _report_failure(answer)

    async def _settle_joined(self, ended: list[tuple[Run, Outcome]]) -> None:
        """Take out those that joined a transaction of their own, and see what became of it."""
        joined = [one for one in ended if one[0].context.finishing]
        if not joined:
            return
        answers = await settle_joined(self._penstock, [(run.job, out) for run, out in joined])
        ended[:] = [one for one in ended if not one[0].context.finishing]
        self._forget([run for run, _ in joined])
        for answer in answers:
            if answer is not None and answer.state is not State.DONE:
                _report_failure(answer)

    def _begin(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            run = Run(job, self._notebook)
            self._runs[job.token] = run
            self._waiting.append(run)
        self._keeper.heed(min([job.lease_time for job in jobs]))
        self._wake_slot()

    def _forget(self, runs: Sequence[Run]) -> None:
        for run in runs:
            self._runs.pop(run.job.token, None)

    # The slots

    def _open_slot(self) -> None:
        slot = self._group.create_task(self._slot())
        self._slots.add(slot)
        slot.add_done_callback(self._slot_ended)

    def _slot_ended(self, slot: asyncio.Task[None]) -> None:
        self._slots.discard(slot)
        if not self._over:
            _log.error("a slot of worker %s was cancelled; another takes its place", self.name)
            with contextlib.suppress(RuntimeError):  # the group is going down
                self._open_slot()

    async def _slot(self) -> None:
        itself = asyncio.current_task()
        while not self._over:
            self._slot_is_coming = False
            while self._waiting:
                run = self._waiting.popleft()
                if self._waiting and not self._slot_is_coming:
                    # Should this handler wait for something, another slot takes the next job.
                    self._wake_slot()
                try:
                    task = self._penstock.tasks.get(run.job.task)
                    with tracing_run(run.job) as span:
                        if task is None or task.isolation is None:
                            outcome = await run.execute(task, self._threads, itself)
                        else:
                            outcome = await run.execute_apart(
                                task, task.isolation, self._children, itself
                            )
                        note_outcome(span, outcome)
                except asyncio.CancelledError as error:  # a handler may cancel the task it runs in
                    self._end(run, Failed(described(error)))
                    raise
                except Exception as error:  # noqa: BLE001 - a slot goes on whatever happens
                    _log.exception("running job %d failed in an unforeseen way", run.job.id)
                    outcome = Failed(described(error))
                self._end(run, outcome)
                if len(self._ended) == self._portion:
                    # The store settles these while the others run.
                    await asyncio.sleep(0)
            if not self._over:
                idle = self._loop.create_future()
                self._idle_slots.append(idle)
                await idle

    def _end(self, run: Run, outcome: Outcome) -> None:
        self._ended.append((run, outcome))
        if len(self._ended) == 1:  # for the others it is stirred already
            self._stir.set()

    def _wake_slot(self) -> None:
        while self._idle_slots:
            idle = self._idle_slots.popleft()
            if not idle.done():
                idle.set_result(None)
                self._slot_is_coming = True
                return

    # What happens meanwhile

    async def _watch_store(self) -> None:
        seen = 0
        while True:
            try:
                seen = await self._penstock.store.wait(seen, _LOOK_AGAIN)
            except PenstockError as error:
                _log.warning("the store did not answer, trying again: %s", error)
                await asyncio.sleep(_RETRY_PAUSE)
            self._more = True
            self._stir.set()
            self._changed.set()
            await asyncio.sleep(_HEAD_START)

    async def _watch_cancels(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._runs:
                try:
                    await self._heed_cancels()
                except PenstockError as error:
                    _log.warning("cancel requests could not be read: %s", error)
            await asyncio.sleep(_CANCEL_PAUSE)

    async def _heed_cancels(self) -> None:
        query = JobQuery(
            states=frozenset({State.RUNNING}), cancel_requested=True, limit=_CANCELS_AT_ONCE
        )
        for job in await self._penstock.find(query):
            if run := self._runs.get(job.token):
                run.end(Cancelled("cancel was requested"))

    def _renewed(self, run: Run, job: Job | None) -> None:
        """Called from the lease thread."""
        if job is None and not run.context.finishing:
            self._loop.call_soon_threadsafe(run.lose)
        elif job is not None and job.cancel_requested:
            self._loop.call_soon_threadsafe(run.end, Cancelled("cancel was requested"))

    async def _wind_down(self, grace: timedelta) -> None:
        if self._exchanging:  # jobs may be on their way here
            await asyncio.wait(self._exchanging)
        unstarted = Snoozed(reason="the worker stopped before it began")
        self._ended += [(run, unstarted) for run in self._waiting]
        self._waiting.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace.total_seconds()):
                await self._settle_all()
        for run in list(self._runs.values()):
            run.end(Snoozed(reason="the worker stopped"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(_LAST_WAIT, self._children.longest_stop)):
                await self._settle_all()
        for run in self._runs.values():
            _log.error("job %d did not stop; its lease runs out by itself", run.job.id)

    async def _settle_all(self) -> None:
        """Settle until nothing runs. May be cut short: what is on its way is not."""
        while self._runs:
            self._stir.clear()
            if self._ended:
                self._exchanging.append(self._loop.create_task(self._settle_patiently()))
            under_way = [task for task in self._exchanging if not task.done()]
            if under_way:
                await asyncio.wait(under_way)
            else:
                await self._stir.wait()

    async def _settle_patiently(self) -> None:
        try:
            await self._settle()
        except PenstockError as error:
            _log.warning("the store did not answer, trying again: %s", error)
            await asyncio.sleep(_RETRY_PAUSE)


def _check_time(name: str, value: object) -> None:
    if not isinstance(value, timedelta):
        raise ConfigurationError(f"{name} is a timedelta, not {value!r:.80}")


def _report_failure(job: Job) -> None:
    extra = {"job_id": job.id, "task": job.task, "attempt": job.attempt}
    attempt = f"attempt {job.attempt} of {job.retry.attempts}"
    error = headline(job.error)
    if job.state is State.PENDING:
        text = "job %d (%s) failed, %s: %s; the next is due at %s"
        _log.warning(text, job.id, job.task, attempt, error, job.run_at, extra=extra)
    else:
        text = "job %d (%s) is %s after %s: %s"
        _log.error(text, job.id, job.task, job.state, attempt, error, extra=extra)
