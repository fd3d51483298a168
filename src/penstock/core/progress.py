"""What a running job reports: its progress, its checkpoint and the lines that it logs.

Times are those of the worker when it reported something, because reports are written later and
together.
"""

from datetime import datetime, timedelta

import msgspec

from penstock.core.job import Lease
from penstock.core.retry import LONGEST

LINES_KEPT = 1_000
"""How many of its newest lines a job keeps."""

TEXT_LIMIT = 2_000
"""How many characters of a line, or of the note of a progress, are kept."""

STATE_LIMIT = 1_000_000
"""How many bytes of JSON a checkpoint may have."""


class Progress(msgspec.Struct, frozen=True, gc=False):
    """How far a job is: the newest report of its newest run that reported anything.

    `started_at` is when that run reported for the first time, and `start` what was done by then,
    so that a run which continues from a checkpoint does not count as a fast one.
    """

    done: float
    total: float | None
    note: str | None
    at: datetime
    started_at: datetime
    start: float = 0

    @property
    def fraction(self) -> float | None:
        """The fraction that is done, from 0 to 1; None while the total is unknown."""
        if self.total is None or self.total <= 0:
            return None
        return min(max(self.done / self.total, 0.0), 1.0)

    @property
    def rate(self) -> float | None:
        """How much is done per second; None until that is known."""
        seconds = (self.at - self.started_at).total_seconds()
        return (self.done - self.start) / seconds if seconds > 0 else None

    @property
    def left(self) -> timedelta | None:
        """How long the rest takes at this rate; None if that is unknown."""
        if self.total is None:
            return None
        if self.done >= self.total:
            return timedelta(0)
        rate = self.rate
        if rate is None or rate <= 0:
            return None
        seconds = (self.total - self.done) / rate
        return timedelta(seconds=seconds) if seconds < LONGEST.total_seconds() else None


class Line(msgspec.Struct, frozen=True, gc=False):
    """A line that a job logged. `id` numbers the lines of its job from 1."""

    id: int
    at: datetime
    level: str
    text: str
    attempt: int


class Report(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A report of the worker that holds a lease; what is None or empty changes nothing.

    `state` is the JSON text of a checkpoint. The store numbers the lines.
    """

    lease: Lease
    progress: Progress | None = None
    state: str | None = None
    lines: tuple[Line, ...] = ()


class Reported(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything that a store keeps of the reports of a job."""

    progress: Progress | None = None
    checkpoint: str | None = None
    lines: tuple[Line, ...] = ()


def kept_text(text: str) -> str:
    """Return text as it is kept: truncated, and without what some store cannot hold."""
    if len(text) > TEXT_LIMIT:
        text = text[: TEXT_LIMIT - 1] + "…"
    if text.isascii() and "\0" not in text:
        return text
    text = text.replace("\0", "\\0").encode(errors="backslashreplace").decode()
    return text[:TEXT_LIMIT]
