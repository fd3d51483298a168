"""What a worker and its child processes say to each other: JSON, each message with its length.

The worker speaks first (`Start`). A request to stop is a signal, so that it also reaches a child
that does not listen. While a job runs, the child may tell any number of things before `Ended`
(`Line`, `Said`), and ask the worker for something (`Ask`), waiting for its `Answer`.

Something to ask needs no new kind of message: both ends of it are in `remote.py`.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.core.job import Job
from penstock.core.lifecycle import Cancelled, Done, Failed, Outcome, Snoozed
from penstock.core.note import Progress

TASK_LOGGER = "penstock.task"
"""Where `context().logger` logs to."""

_LENGTH = 4
# Far beyond the largest result or payload: whoever sends more is not our child.
_LONGEST = 256_000_000


class Boot(msgspec.Struct, frozen=True):
    """How a child begins: its end of the socket, whose child it is, what to import.

    With an `argument`, the `app` of the `module` is a function that makes the app of it.
    """

    fd: int
    parent: int
    module: str
    app: str
    modules: list[str]
    script: str | None = None
    argument: str | None = None
    memory: int | None = None
    log_level: int = 0


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Run this job."""

    job: Job


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """What an `Ask` came to: a text, or what went wrong."""

    text: str | None = None
    error: str | None = None


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The app is imported; these are its tasks."""

    tasks: list[str]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The app could not be imported; the child ends."""

    error: str


class Line(msgspec.Struct, frozen=True, tag="line"):
    """Something that was logged in the child."""

    logger: str
    level: int
    text: str


class Said(msgspec.Struct, frozen=True, tag="said"):
    """How far the run is. Each goes out at once: none may be the last before a long silence."""

    progress: Progress


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """Something that only the worker can do or know; the child waits for the `Answer`."""

    what: str
    text: str | None = None


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """What the run came to: one of these. After its `last` one, a child ends."""

    done: Done | None = None
    failed: Failed | None = None
    snoozed: Snoozed | None = None
    cancelled: Cancelled | None = None
    last: bool = False

    @property
    def outcome(self) -> Outcome:
        """The one that is set."""
        return self.done or self.failed or self.snoozed or self.cancelled or Done()


def ended(outcome: Outcome, *, last: bool = False) -> Ended:
    """The message for an outcome."""
    match outcome:
        case Done():
            return Ended(done=outcome, last=last)
        case Failed():
            return Ended(failed=Failed(sayable(outcome.error), outcome.permanent), last=last)
        case Snoozed():
            reason = outcome.reason and sayable(outcome.reason)
            return Ended(snoozed=Snoozed(outcome.delay, reason), last=last)
        case _:
            reason = getattr(outcome, "reason", None)
            return Ended(cancelled=Cancelled(reason and sayable(reason)), last=last)


def sayable(text: str) -> str:
    """Text that JSON can hold: a file's name may bring in what UTF-8 has no code for."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


ToChild = Start | Answer
FromChild = Ready | Refused | Line | Said | Ask | Ended

_encode = msgspec.json.Encoder().encode
decode_to_child = msgspec.json.Decoder(ToChild).decode
decode_from_child = msgspec.json.Decoder(FromChild).decode


def framed(message: Any) -> bytes:
    """The bytes of a message."""
    body = _encode(message)
    return len(body).to_bytes(_LENGTH, "big") + body


class Frames:
    """Puts together what arrives in pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.arrived = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies that are complete now; raises `ValueError` for what is no frame."""
        self._buffer += data
        self.arrived += len(data)
        while len(self._buffer) >= _LENGTH:
            end = _LENGTH + int.from_bytes(self._buffer[:_LENGTH], "big")
            if end > _LONGEST:
                raise ValueError(f"a message of {end} bytes")
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH:end])
            del self._buffer[:end]
            yield body
