"""The exchange with the store: settles the runs that have ended, and claims jobs for free slots.

Settling and claiming are started together, so that both reach the store's writer before it begins:
one transaction. When half of the slots have ended their runs, these are exchanged while the other
half runs: the store and the handlers work at the same time.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from penstock.core.errors import PenstockError, StoreUnavailable
from penstock.core.job import Job
from penstock.core.lifecycle import Done, Failed, Outcome, State
from penstock.core.tasks import KnownTasks
from penstock.engine.penstock import Penstock
from penstock.worker.job_log import log_end, log_failure
from penstock.worker.progress import ProgressBuffer
from penstock.worker.run import Run

_log = logging.getLogger(__name__)

RETRY_PAUSE = 0.5
"""Seconds before the next attempt when the store did not answer."""
# How long a worker that names no queues relies on the reserved ones that it has read.
_RESERVED_FOR = 10.0
UNCOMMITTED = Failed("it called context.finish, but that transaction was not committed")
"""The outcome of a run whose `Context.finish` was rolled back."""


class Exchange:
    """Holds the runs of one worker, from the claim of their jobs until they are settled.

    `begin` is called with the runs of claimed jobs; `progress` is what they report to.
    """

    def __init__(
        self,
        penstock: Penstock,
        progress: ProgressBuffer,
        begin: Callable[[Sequence[Run]], None],
        *,
        worker: str,
        concurrency: int,
        queues: Sequence[str] | None,
        tags: Sequence[str],
        log_jobs: bool,
    ) -> None:
        self.runs: dict[int, Run] = {}
        """The runs whose jobs the worker holds, by the tokens of their leases."""
        self.claimable = True
        """Whether there may be jobs to claim."""
        self.wakeup = asyncio.Event()
        """Set when there may be something to exchange."""
        self._penstock = penstock
        self._progress = progress
        self._begin = begin
        self._worker = worker
        self._concurrency = concurrency
        self._half = concurrency // 2 or 1
        self._queues = queues
        self._reserved: frozenset[str] = frozenset()
        self._reserved_until = 0.0
        self._tags = tags
        self._log_jobs = log_jobs
        self._known_tasks = KnownTasks({})
        self._registered = 0
        self._ended: list[tuple[Run, Outcome]] = []
        self._under_way: list[asyncio.Task[None]] = []

    def end(self, run: Run, outcome: Outcome) -> bool:
        """Have a run settled with this outcome; return whether to give way so that it can be."""
        self._ended.append((run, outcome))
        if len(self._ended) == 1:  # otherwise it is set already
            self.wakeup.set()
        return len(self._ended) == self._half

    def is_due(self, *, claiming: bool) -> bool:
        """Return whether another exchange would find something to do."""
        free = len(self.runs) < self._concurrency
        return bool(self._ended) or (self.claimable and claiming and free)

    async def once(self, *, claiming: bool) -> None:
        """Settle what has ended and, if `claiming`, claim jobs for the slots that are free then."""
        free = self._concurrency - len(self.runs) + len(self._ended)
        exchanging: list[asyncio.Task[None]] = []
        loop = asyncio.get_running_loop()
        if self._ended:
            self.claimable = True  # what has ended may release other jobs
            exchanging.append(loop.create_task(self._settle()))
        if free and self.claimable and claiming:
            exchanging.append(loop.create_task(self._claim(free)))
        if exchanging:
            self._under_way = exchanging
            await asyncio.wait(exchanging)
        for exchanged in exchanging:
            exchanged.result()

    async def settle_all(self) -> None:
        """Settle until no run is left. If cancelled, what is under way is still completed."""
        while self.runs:
            self.wakeup.clear()
            if self._ended:
                settling = asyncio.get_running_loop().create_task(self._settle_or_pause())
                self._under_way.append(settling)
            under_way = [task for task in self._under_way if not task.done()]
            if under_way:
                await asyncio.wait(under_way)
            else:
                await self.wakeup.wait()

    async def wait_for_pending(self) -> None:
        """Wait for the claim and the settlement under way, if any."""
        if self._under_way:
            await asyncio.wait(self._under_way)

    def wants(self, queue: str) -> bool:
        """Return whether the worker claims jobs of a queue."""
        return queue not in self._reserved if self._queues is None else queue in self._queues

    @property
    def known_tasks(self) -> KnownTasks:
        """The tasks of the worker's app, with the versions that they accept."""
        tasks = self._penstock.tasks
        if len(tasks) != self._registered:
            accepted = {name: task.versions.accepted for name, task in tasks.items()}
            self._known_tasks, self._registered = KnownTasks(accepted), len(tasks)
        return self._known_tasks

    # Claiming

    async def _claim(self, limit: int) -> None:
        self.claimable = False
        try:
            if self._queues is None and self._penstock.runtime.monotonic() >= self._reserved_until:
                await self._read_reserved()
            jobs = await self._penstock.leases.claim(
                worker=self._worker,
                limit=limit,
                queues=self._queues,
                except_queues=self._reserved,
                tags=self._tags,
                tasks=self.known_tasks,
            )
        except PenstockError:
            self.claimable = True
            raise
        if jobs:
            self.claimable = self.claimable or len(jobs) == limit
            runs = [Run(job, self._progress) for job in jobs]
            for run in runs:
                self.runs[run.job.token] = run
            self._begin(runs)

    async def _read_reserved(self) -> None:
        """Read which queues are reserved for workers that name them."""
        self._reserved = await self._penstock.limits.reserved()
        self._reserved_until = self._penstock.runtime.monotonic() + _RESERVED_FOR

    # Settling

    async def _settle_or_pause(self) -> None:
        try:
            await self._settle()
        except PenstockError as error:
            _log.warning("the store did not answer, trying again: %s", error)
            await asyncio.sleep(RETRY_PAUSE)

    async def _settle(self) -> None:
        ended, self._ended = self._ended, []
        held = [(run, outcome) for run, outcome in ended if not run.lost]
        if len(held) < len(ended):
            self._forget([run for run, _ in ended if run.lost])
        if not held:
            return
        try:
            if self._progress.used:  # a run cannot write any more once its lease has ended
                await self._progress.write_now([run.job.token for run, _ in held])
            await self._settle_finished(held)
            answers = await self._penstock.leases.settle_held([(run.job, out) for run, out in held])
        except PenstockError:
            self._ended = held + self._ended
            raise
        self._forget([run for run, _ in held])
        for (run, outcome), answer in zip(held, answers, strict=True):
            if answer is None:
                _log.warning("the lease of job %d was lost before its run ended", run.job.id)
            elif self._log_jobs:
                log_end(answer, outcome, run.job.attempt, run.seconds)
            elif isinstance(outcome, Failed):
                log_failure(answer, run.job.attempt, run.seconds)

    async def _settle_finished(self, ended: list[tuple[Run, Outcome]]) -> None:
        """Settle the runs that called `Context.finish`, and remove them from the list.

        Without a commit such a run has failed, whatever it returned.
        """
        finished = [one for one in ended if one[0].context.finishing]
        if not finished:
            return
        found = await self._penstock.store.get([run.job.id for run, _ in finished])
        jobs = {job.id: job for job in found}
        answers = [
            await self._settle_one(run.job, outcome, jobs.get(run.job.id))
            for run, outcome in finished
        ]
        ended[:] = [one for one in ended if not one[0].context.finishing]
        self._forget([run for run, _ in finished])
        for (run, outcome), answer in zip(finished, answers, strict=True):
            if answer is None:
                continue
            if answer.state is not State.DONE:
                log_failure(answer, run.job.attempt, run.seconds)
            elif self._log_jobs:
                log_end(answer, outcome, run.job.attempt, run.seconds)

    async def _settle_one(self, job: Job, outcome: Outcome, found: Job | None) -> Job | None:
        """Return the job as its transaction left it, or settle it; None if it is lost."""
        if found and found.token == job.token and found.state.final:
            return found
        failed = UNCOMMITTED if isinstance(outcome, Done) else outcome
        try:
            (settled,) = await self._penstock.leases.settle_held([(job, failed)])
        except StoreUnavailable:
            raise
        except PenstockError:  # the row is locked
            _log.warning("the run of job %d ended, but its transaction is still open", job.id)
            return None
        return settled

    def _forget(self, runs: Sequence[Run]) -> None:
        for run in runs:
            self.runs.pop(run.job.token, None)
