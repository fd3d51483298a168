"""Recovery: how a store continues after it was set back to an earlier moment.

A store that is restored from a backup, or that follows as a replica and lags behind, has forgotten
the ids it assigned after that moment. Fencing tokens are ids of log entries, and may be stored
wherever workers have had an effect; clients remember ids of jobs. Therefore no id may be assigned
a second time, although nobody knows which ones were assigned.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from penstock.core import lifecycle
from penstock.core.errors import StoreError
from penstock.core.job import Job, LogId
from penstock.core.lifecycle import State
from penstock.core.query import JobQuery
from penstock.core.transition import Change

HIGHEST_ID = 2**53 - 1
"""JavaScript reads every number up to this one exactly."""

_STEP = 2**40
# No store of Penstock writes as many log entries in a second.
_IDS_PER_SECOND = 2**16
_MICROSECOND = timedelta(microseconds=1)
_START = datetime(2026, 1, 1, tzinfo=UTC)


RUNNING_JOBS = JobQuery(states=frozenset({State.RUNNING}), newest_first=False, limit=2**31)
"""The jobs that a cut takes back."""

NOTED_JOB = JobQuery(states=frozenset(State) - {State.RUNNING}, limit=1)
"""The job whose log notes a cut, whatever was running."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A cut in the history of a store, which was set back to an earlier moment.

    `last_log` is the newest log entry before it; all ids assigned from then on are higher than
    `floor`. `reclaimed` are the jobs that were running, as they are afterwards.
    """

    last_log: LogId
    floor: int
    reclaimed: list[Job] = []


Phase = Literal["copying", "checking"]

BackupProgress = Callable[[Phase, int, int], object]
"""Called now and then with what is being done, how much of it is, and how much there is."""


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """A backup: where it is, its size in bytes, the moment it shows, and what is in it."""

    path: str
    bytes: int
    taken_at: datetime
    jobs: int
    last_log: int


class RestoredStore(msgspec.Struct, frozen=True, kw_only=True):
    """A store that was restored, with the moment that its backup shows, if that is known.

    `replaced` is where the files of the former store are kept, if they are.
    """

    taken_at: datetime | None
    cut: Cut
    replaced: str | None = None


def next_floor(last: int, now: datetime, above: int = 0) -> int:
    """Return the number above which ids continue in a store that was set back.

    `last` is the highest id of a job or log entry that the store knows, `above` one that is known
    from elsewhere. The floor is a multiple of 2^40 plus 2^16 for every second since 2026: the first
    multiple for which it is higher than both.

    It is higher than every id that was assigned after the store's moment, and than every floor that
    was computed earlier from the same backup or any other, also if the stores that continued from
    those are lost: an id never overtakes the clock, because no store writes 65,536 entries a second
    for long. A clock that is behind is made up for by 2^40 at a time, as long as the ids are known.

    Raises `StoreError` if ids would exceed what JavaScript clients can read: with a true clock, in
    four thousand years.
    """
    elapsed = max(0, (now - _START) // _MICROSECOND) * _IDS_PER_SECOND // 1_000_000
    beyond = max(last, above) - elapsed
    floor = elapsed + max(1, beyond // _STEP + 1) * _STEP
    if floor > HIGHEST_ID - _STEP:
        raise StoreError(
            f"ids cannot continue above {max(last, above)}: the next ones would exceed 2^53, which "
            "JavaScript clients cannot read; check the clock, or export the jobs to a new store"
        )
    return floor


def changes_of_cut(running: Sequence[Job], newest: Sequence[Job], reason: str) -> list[Change]:
    """Return what a cut changes: running jobs lose their workers, and the log notes the cut.

    `newest` has a job that is not running, if there is any: it stays as it is, and its log shows
    the cut even if no job was running.
    """
    return [
        *(Change(job, lifecycle.restore(job, reason)) for job in running),
        *(Change(job, lifecycle.note_restore(job, reason)) for job in newest),
    ]


def reason_of_cut(reason: str, last_log: int, floor: int) -> str:
    """Return the reason in the log: what happened, and where ids continue."""
    return f"{reason}; entries after {last_log} are lost, ids continue above {floor}"
