"""What a run in a child process says about itself, on its way to the worker: both ends of it."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from penstock.core.errors import LeaseLost, PenstockError
from penstock.core.job import Job
from penstock.core.lifecycle import Done
from penstock.core.note import Line, Progress
from penstock.core.times import from_micros
from penstock.engine import Penstock
from penstock.worker.context import Context
from penstock.worker.frames import Ask
from penstock.worker.processes import Asked

_LOST = "lost"


class RemoteBook:
    """The child's end: asks the worker to write."""

    def __init__(
        self,
        penstock: Penstock,
        ask: Callable[[str, str | None], str | None],
        tell: Callable[[Progress], None],
    ) -> None:
        self._penstock = penstock
        self._clock = penstock.clock
        self._ask = ask
        self._tell = tell

    def now(self) -> datetime:
        """The time, by the clock of the queue."""
        return from_micros(self._clock())

    def keep_progress(self, _job: Job, progress: Progress) -> None:
        """Tell the worker, which writes it with what its other runs say."""
        self._tell(progress)

    def keep_line(self, _job: Job, _line: Line) -> None:
        """The worker keeps the lines that are logged here, because it logs them too."""

    async def save(self, job: Job, state: str) -> None:
        """Write a checkpoint at once; raises `LeaseLost` if the run has lost its job."""
        if self._ask("checkpoint", state) == _LOST:
            raise LeaseLost(job.id, job.token)

    async def finish(self, ended: Sequence[tuple[Job, Done]], connection: Any) -> None:
        """End the run here, where the transaction is; the worker looks what became of it."""
        self._ask("finishing", None)
        await self._penstock.finish_all(ended, connection=connection)

    def saved(self, _job: Job) -> object:
        """The job's checkpoint."""
        text = self._ask("state", None)
        return None if text is None else msgspec.json.decode(text)


def answering(penstock: Penstock) -> Asked:
    """The worker's end: does what a child asks for, with the worker's own context of the run."""

    async def answer(context: Context, ask: Ask) -> str | None:
        match ask.what, ask.text:
            case "checkpoint", str(text):
                try:
                    await context.book.save(context.job, text)
                except LeaseLost:
                    return _LOST
            case "finishing", _:
                context.finishing = True
            case "state", _:
                return await penstock.store.checkpoint(context.job.id)
            case what, _:
                raise PenstockError(f"a worker does not know what {what!r} is")
        return None

    return answer
