"""Superseding: a new job takes the place of the newest pending job of its key.

The merge function of a task decides on what it saw, outside of any transaction; the store writes
the result only if that is still true.
"""

from collections.abc import Collection, Iterable

import msgspec
from msgspec.structs import replace

from penstock.core.dependencies import Edge
from penstock.core.errors import Overtaken
from penstock.core.job import Job, JobId


class Tail(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The newest pending job of a key, if any, that a superseding job was merged with.

    The new job takes its place if it `replaces` it, and lines up behind it otherwise.
    """

    job: Job | None
    replaces: bool = False

    @property
    def replaced(self) -> Job | None:
        """The job whose place the new one takes, if any."""
        return self.job if self.replaces else None


def check_tail(key: str | None, tail: Tail, newest: tuple[int, int] | None) -> None:
    """Raise `Overtaken` unless the newest pending job of the key is still the expected one.

    `newest` is the id and version of the newest pending job of the key, None if there is none.
    """
    expected = None if tail.job is None else (tail.job.id, tail.job.version)
    if newest != expected:
        raise Overtaken(f"the pending jobs of key {key!r} have changed; nothing was stored")


def inherited(edges: Iterable[Edge], by: JobId, needed: Collection[int]) -> list[Edge]:
    """Return the edges that a replacing job inherits: what the replaced one still waits for.

    `edges` are those of the replaced job, `needed` what the replacing job waits for itself.
    """
    return [
        replace(edge, job_id=by)
        for edge in edges
        if not edge.resolved and edge.needed not in needed
    ]
