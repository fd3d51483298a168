"""What a running job says about itself: how far it is, where to go on from, what it logged.

Times are those of the worker at the moment something was said, because notes are written later
and together.
"""

from datetime import datetime, timedelta

import msgspec

from penstock.core.job import Lease
from penstock.core.retry import LONGEST

LINES_KEPT = 1_000
"""How many lines a job keeps: its newest."""

TEXT_LIMIT = 2_000
"""How many characters of a line, or of a note beside a progress, are kept."""

STATE_LIMIT = 1_000_000
"""How many bytes of JSON a checkpoint may have."""


class Progress(msgspec.Struct, frozen=True, gc=False):
    """How far a job is, as its newest run that said anything has said last.

    `started_at` is when that run spoke for the first time, and `start` what was done by then:
    a run that goes on from a checkpoint is not taken for a fast one.
    """

    done: float
    total: float | None
    note: str | None
    at: datetime
    started_at: datetime
    start: float = 0

    @property
    def fraction(self) -> float | None:
        """The part that is done, from 0 to 1; None while the total is not known."""
        if self.total is None or self.total <= 0:
            return None
        return min(max(self.done / self.total, 0.0), 1.0)

    @property
    def rate(self) -> float | None:
        """How much is done per second; None until that can be told."""
        seconds = (self.at - self.started_at).total_seconds()
        return (self.done - self.start) / seconds if seconds > 0 else None

    @property
    def left(self) -> timedelta | None:
        """How long the rest takes at this rate; None where that cannot be told."""
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
    """One line that a job has logged. `id` numbers the lines of its job, from 1."""

    id: int
    at: datetime
    level: str
    text: str
    attempt: int


class Note(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the holder of a lease has to say; what is None or empty leaves the old as it is.

    `state` is the JSON text of a checkpoint. The store gives lines their ids.
    """

    lease: Lease
    progress: Progress | None = None
    state: str | None = None
    lines: tuple[Line, ...] = ()


class Notes(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All that a store keeps of what a job has said about itself."""

    progress: Progress | None = None
    checkpoint: str | None = None
    lines: tuple[Line, ...] = ()


def kept_text(text: str) -> str:
    """Text as it is kept: not too long, and such that every store can hold it."""
    if len(text) > TEXT_LIMIT:
        text = text[: TEXT_LIMIT - 1] + "…"
    if text.isascii() and "\0" not in text:
        return text
    text = text.replace("\0", "\\0").encode(errors="backslashreplace").decode()
    return text[:TEXT_LIMIT]
