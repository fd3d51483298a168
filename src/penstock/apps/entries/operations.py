"""Operations: long work on all entries at once, as jobs; one of a type at a time."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from penstock import Context, Job, NewJob, Penstock, RetryPolicy, context
from penstock.apps.entries.checking import Checked, Checker
from penstock.apps.entries.entries import Entries
from penstock.apps.entries.rows import QUEUE, Chosen

OPERATIONS_QUEUE = f"{QUEUE}-operations"


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of an operation that takes none."""


class Operation(NamedTuple):
    """A type of operation: its payload, and what runs it."""

    name: str
    payload: type[msgspec.Struct]
    run: Callable[[Entries, Any, Context], Awaitable[Mapping[str, Any]]]
    attempts: int = 1

    @property
    def task(self) -> str:
        """The name of its task."""
        return f"entries.{self.name}"


class OperationRunning(Exception):
    """An operation of this type waits or runs already."""

    def __init__(self, name: str, job: Job) -> None:
        super().__init__(f"operation {name} is {job.state} as job {job.id}")


async def sync(entries: Entries, payload: Nothing, run: Context) -> Mapping[str, Any]:  # noqa: ARG001 - as all
    """Compare the index with the rows, and repair what differs."""
    checked = await Checker(entries).check() or Checked()
    return {"vectors_removed": checked.forgotten, "entries_requeued": checked.requeued}


class Reembed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which entries are embedded again: all, or those of a type or category."""

    entity_type: str | None = None
    category_code: str | None = None


async def reembed(entries: Entries, payload: Reembed, run: Context) -> Mapping[str, Any]:  # noqa: ARG001 - as all
    """Embed entries again that are embedded or have failed."""
    name = None if payload.entity_type is None else entries.types.get(payload.entity_type).name
    counted = 0
    for status in ("failed", "embedded"):
        chosen = Chosen(name, payload.category_code, status)
        counted += sum((await entries.requeue_all(chosen)).values())
    return {"entries_requeued": counted}


OPERATIONS = {
    one.name: one
    for one in (Operation("sync", Nothing, sync), Operation("reembed", Reembed, reembed))
}


async def start(penstock: Penstock, operation: Operation, payload: Mapping[str, Any]) -> Job:
    """Store the job of an operation; raises `OperationRunning`, and msgspec's `ValidationError`."""
    msgspec.convert(payload, operation.payload)
    new = NewJob(
        task=operation.task,
        payload=msgspec.json.encode({"payload": payload}).decode(),
        queue=OPERATIONS_QUEUE,
        dedupe=operation.task,
        retry=RetryPolicy(attempts=operation.attempts),
    )
    (job,) = await penstock.enqueue_many([new])
    if job.duplicate:
        raise OperationRunning(operation.name, job)
    return job


def register(entries: Entries) -> None:
    """Make the tasks of all operations known, so that workers run them."""
    for operation in OPERATIONS.values():
        entries.penstock.task(operation.task, _handler(entries, operation), queue=OPERATIONS_QUEUE)


def _handler(entries: Entries, operation: Operation) -> Callable[..., Awaitable[dict[str, Any]]]:
    async def run(payload: dict[str, Any]) -> dict[str, Any]:
        """Do it again from the beginning: each operation says why that does no harm."""
        converted = msgspec.convert(payload, operation.payload)
        return dict(await operation.run(entries, converted, context()))

    return run
