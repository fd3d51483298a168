"""Who is measured, and the few verbs a contender needs for that.

One module per contender. A contender lacks a verb when its library does; the report then shows "-".
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shutil import which
from typing import Protocol, cast, runtime_checkable

Payload = dict[str, str]
Handle = Callable[[Payload], bool]
"""What a worker calls per job; it returns False when it has seen enough."""

PAYLOAD_BYTES = 200


class Queue(Protocol):
    """An open queue in a folder of its own."""

    def enqueue(self, payload: Payload) -> None:
        """Add one job from synchronous code, as durable as the contender promises."""

    def fill(self, payloads: Sequence[Payload]) -> None:
        """Add jobs as fast as it goes; never timed."""

    def close(self) -> None:
        """Give back files and threads."""


@runtime_checkable
class BulkQueue(Queue, Protocol):
    """A queue that can add many jobs in one transaction."""

    def enqueue_many(self, payloads: Sequence[Payload]) -> None:
        """Add all of them or none, as durable as `enqueue`."""


@runtime_checkable
class DrainableQueue(Queue, Protocol):
    """A queue whose jobs this process can work off."""

    def drain(self, handle: Handle) -> None:
        """Work off the jobs that are there, or until `handle` returns False.

        Returns when all that ran are settled.
        """


@runtime_checkable
class ServingQueue(Queue, Protocol):
    """A queue that can wait for jobs of other processes."""

    def serve(self, handle: Handle) -> None:
        """Work until `handle` returns False."""


@runtime_checkable
class SharingQueue(Queue, Protocol):
    """A queue that several processes can work off together."""

    def share(self, handle: Handle, is_over: Callable[[], bool]) -> None:
        """Work until `is_over`; return when all that this process ran is settled."""


@runtime_checkable
class OwnWayQueue(Queue, Protocol):
    """A queue with a way to add many jobs that it likes best."""

    def enqueue_own_way(self, payloads: Sequence[Payload]) -> None:
        """Add all of them, as durable as `enqueue`, in as many transactions as it likes."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A row of the table; its library is imported only in the measuring process."""

    name: str
    title: str
    target: str
    package: str | None = None
    """The distribution whose version the report names."""
    scenarios: Sequence[str] = ()
    """Empty for all."""
    missing: str = "it is not installed"
    """Why it may be left out."""
    program: str | None = None
    """A program that it needs on the PATH."""

    @property
    def is_there(self) -> bool:
        """Whether its library and its program are installed."""
        if self.program is not None and which(self.program) is None:
            return False
        if self.package is None:
            return True
        try:
            version(self.package)
        except PackageNotFoundError:
            return False
        return True

    def open(self, folder: Path, *name: str) -> Queue:
        """Make or reopen its queue in a folder; ours can have several, by name."""
        module, _, attribute = self.target.partition(":")
        factory = cast("Callable[..., Queue]", getattr(import_module(module), attribute))
        return factory(folder, *name)


def make_payload(mark: str) -> Payload:
    """A payload of exactly 200 bytes of compact JSON."""
    bare = len(json.dumps({"mark": mark, "text": ""}, separators=(",", ":")))
    return {"mark": mark, "text": "x" * (PAYLOAD_BYTES - bare)}


def make_payloads(count: int) -> list[Payload]:
    """Payloads that differ, as real ones do."""
    return [make_payload(f"{n:08}") for n in range(count)]


class Countdown:
    """A handler that does nothing but say when that many jobs have run, or when it is too late."""

    def __init__(self, jobs: int, seconds: float) -> None:
        self.ran = 0
        self._jobs = jobs
        self._deadline = time.monotonic() + seconds

    def __call__(self, _: Payload) -> bool:
        """Count a job; whether to go on."""
        self.ran += 1
        return self.ran < self._jobs and not self.is_late

    @property
    def is_late(self) -> bool:
        """Whether it took too long, and the rest need not run."""
        return time.monotonic() > self._deadline
