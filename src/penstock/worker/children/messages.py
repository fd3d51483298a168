"""The messages between a worker and a child process: JSON, each with its length in front.

The worker sends `Start` and the child answers with `Ended`. In between the child sends any number
of `LogLine` and `ProgressReport`, and requests to each of which it awaits the `Reply`. A request to
stop is a signal instead, so that it also reaches a child that does not read its socket.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.core.job import Job
from penstock.core.lifecycle import Cancelled, Done, Failed, Outcome, Snoozed
from penstock.core.progress import Progress
from penstock.worker.children.app_import import AppLocation

_LENGTH = 4
# Far beyond the largest result or payload: only a corrupt stream has more.
_LONGEST = 256_000_000


class Boot(msgspec.Struct, frozen=True):
    """What a child is started with, as an argument of its command line."""

    app: AppLocation
    fd: int
    """The child's end of the socket."""
    parent: int
    """The process ID of the worker."""
    memory: int | None
    """The most bytes that the process may allocate."""
    log_level: int


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Run this job."""

    job: Job


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    """The answer to a request: a text, or an error; or the run has lost its lease."""

    text: str | None = None
    error: str | None = None
    lease_lost: bool = False


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The app is imported and has these tasks."""

    tasks: list[str]


class ImportFailed(msgspec.Struct, frozen=True, tag="import_failed"):
    """The app could not be imported; the child exits."""

    error: str


class LogLine(msgspec.Struct, frozen=True, tag="log_line"):
    """A line that was logged in the child."""

    logger: str
    level: int
    text: str


class ProgressReport(msgspec.Struct, frozen=True, tag="progress"):
    """The progress of the run. Each is sent at once: a long silence may follow any of them."""

    progress: Progress


class SaveCheckpoint(msgspec.Struct, frozen=True, tag="save_checkpoint"):
    """Request: write a checkpoint."""

    state: str


class LoadCheckpoint(msgspec.Struct, frozen=True, tag="load_checkpoint"):
    """Request: read the job's checkpoint."""


class Finishing(msgspec.Struct, frozen=True, tag="finishing"):
    """Request: expect the job to be completed by a transaction of the handler."""


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The outcome of the run, in one of these fields. After its `last` run, a child exits."""

    done: Done | None = None
    failed: Failed | None = None
    snoozed: Snoozed | None = None
    cancelled: Cancelled | None = None
    last: bool = False

    @property
    def outcome(self) -> Outcome:
        """The field that is set."""
        return self.done or self.failed or self.snoozed or self.cancelled or Done()


def ended(outcome: Outcome, *, last: bool = False) -> Ended:
    """Return the message for an outcome."""
    match outcome:
        case Done():
            return Ended(done=outcome, last=last)
        case Failed():
            return Ended(failed=Failed(printable(outcome.error), outcome.permanent), last=last)
        case Snoozed():
            reason = outcome.reason and printable(outcome.reason)
            return Ended(snoozed=Snoozed(outcome.delay, reason), last=last)
        case _:
            reason = getattr(outcome, "reason", None)
            return Ended(cancelled=Cancelled(reason and printable(reason)), last=last)


def printable(text: str) -> str:
    """Escape what UTF-8 cannot encode; file names may contain lone surrogates."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


ToChild = Start | Reply
Request = SaveCheckpoint | LoadCheckpoint | Finishing
FromChild = Ready | ImportFailed | LogLine | ProgressReport | Request | Ended

_encode = msgspec.json.Encoder().encode
decode_to_child = msgspec.json.Decoder(ToChild).decode
decode_from_child = msgspec.json.Decoder(FromChild).decode


def framed(message: Any) -> bytes:
    """Return a message as bytes, with its length in front."""
    body = _encode(message)
    return len(body).to_bytes(_LENGTH, "big") + body


class Frames:
    """Assembles messages from the pieces in which they arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.received = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the bodies that are complete now; raise `ValueError` for a corrupt length."""
        self._buffer += data
        self.received += len(data)
        while len(self._buffer) >= _LENGTH:
            end = _LENGTH + int.from_bytes(self._buffer[:_LENGTH], "big")
            if end > _LONGEST:
                raise ValueError(f"a message of {end} bytes")
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH:end])
            del self._buffer[:end]
            yield body
