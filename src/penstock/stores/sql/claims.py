"""Claims: give ready jobs to workers, and renew the leases of those that run."""

import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import count, groupby, islice
from typing import NamedTuple

import msgspec

from penstock.core.job import Claim, Job, Lease
from penstock.stores.sql import migration_lock, queue_names, rows
from penstock.stores.sql.database import Totals, Transaction, shift
from penstock.stores.sql.limits import LimitedClaim
from penstock.stores.sql.rows import READY, SCHEDULED, encoded

Rank = tuple[int, int, int]
"""The order of a ready job: lower is first. The last part is its id."""
Source = tuple[str, tuple[str, ...], tuple[str, ...]]
"""A query for ready jobs, and its parameters before and after those of a portion."""

_queues = msgspec.json.Decoder(list[tuple[str, int, int]])

# Jobs that fall due at once become ready in portions, so that no claim waits for a million.
_PROMOTED_AT_ONCE = 1_000


class Claimable(NamedTuple):
    """What a claim has to know first."""

    limited: bool
    """Whether limits hold jobs, jobs are set aside that it may take, or tasks have limits."""
    any_merged: bool
    """Whether queues without an index of their own may have ready jobs."""
    any_throttled: bool
    queues: Sequence[tuple[str, int, int]]
    """Queues with ready jobs, whether limits, tenants or ages matter there, and if it is merged."""


def claim(tx: Transaction, calls: Sequence[Claim]) -> list[list[Job] | None]:
    """See `Database.claim`."""
    tx.handle_external_changes()
    migration_lock.check_open(tx)
    more = promote_due(tx, tx.now)
    answers = [claim_ready(tx, wanted, _claimable(tx, wanted)) for wanted in calls]
    return [None if more and not answer else answer for answer in answers]


def promote_due(tx: Transaction, now: int) -> bool:
    """Make jobs ready that have fallen due; return whether there may be more."""
    if not tx.execute("any_due", (now,)).fetchone():
        return False
    totals: Totals = {}
    due = tx.execute("promote_due", (now, _PROMOTED_AT_ONCE)).fetchall()
    for (queue,), n in Counter(due).items():
        shift(totals, queue, SCHEDULED, READY, n)
    tx.add_totals(totals)
    return len(due) == _PROMOTED_AT_ONCE


def promote(tx: Transaction, calls: Sequence[int]) -> list[bool]:
    """Make jobs ready that have fallen due by these instants."""
    return [promote_due(tx, max(calls))] * len(calls)


def renew(tx: Transaction, calls: Sequence[Sequence[Lease]]) -> list[list[Job]]:
    """See `Store.renew`."""
    leases = encoded([msgspec.structs.astuple(lease) for call in calls for lease in call])
    renewed = [row[0] for row in tx.execute("renew", (tx.now, leases)).fetchall()]
    tx.written = tx.written or bool(renewed)
    held = {job.lease: job for job in tx.jobs(renewed)}
    return [[held[lease] for lease in call if lease in held] for call in calls]


def claim_ready(tx: Transaction, wanted: Claim, claimable: Claimable) -> list[Job] | None:
    """Claim jobs that are ready already; None if another transaction has to go on."""
    merged = bool(claimable.any_merged) and wanted.queues is None
    if merged and wanted.except_queues:  # stepping over their jobs would cost every claim
        queue_names.unmerge(tx, wanted.except_queues)
    queues = {name: special for name, special, _ in claimable.queues if wanted.wants(name)}
    if (
        any(queues.values())
        or (merged and claimable.any_throttled)
        or (claimable.limited and (queues or merged))
    ):
        return _claim_limited(tx, wanted, claimable, queues)
    ids = _next_ids(tx, wanted, queues, merged=merged)
    started = tx.start(ids, wanted) if ids else []
    return _claim_limited(tx, wanted, claimable, queues) if started is None else started


def _claim_limited(
    tx: Transaction, wanted: Claim, claimable: Claimable, queues: Collection[str]
) -> list[Job] | None:
    """Claim where limits, tenants, ages or unknown tasks matter."""
    merged = bool(claimable.any_merged) and wanted.queues is None
    if any(index == queue_names.MERGED for *_, index in claimable.queues):
        queue_names.unmerge(tx, queues)  # what is held there needs an index of its own
    ids = LimitedClaim(tx, wanted).choose(queues, merged=merged)
    return (tx.start(ids, wanted) or []) if ids else (None if ids is None else [])


def _claimable(tx: Transaction, wanted: Claim) -> Claimable:
    holders = None if wanted.tasks is None else wanted.tasks.encoded_holders
    if wanted.queues is None:
        found = tx.execute("claimable", (tx.now, holders))
    else:
        found = tx.execute("claimable_named", (tx.now, encoded(wanted.queues), holders))
    limited, any_merged, any_throttled, any_unmerging, queues = found.fetchone()
    if any_unmerging:
        queue_names.unmerge_jobs(tx, wanted.queues or ())
    return Claimable(limited, any_merged, any_throttled, _queues.decode(queues))


def _next_ids(
    tx: Transaction, wanted: Claim, queues: Collection[str], *, merged: bool
) -> list[int]:
    """Return the first ready jobs, where no limit, tenant or age matters."""
    sources: list[Source] = [
        ("pick", (queue,), ()) if tag is None else ("pick_tagged", (queue, tag), ())
        for queue in queues
        for tag in wanted.tags or (None,)
    ]
    if merged:
        besides = encoded(wanted.except_queues)
        sources += [
            ("pick_merged", (besides,), ())
            if tag is None
            else ("pick_merged_tagged", (besides,), (tag,))
            for tag in wanted.tags or (None,)
        ]
    portion = -(-wanted.limit // max(1, len(sources)))
    ranked = [_ready(tx, source, portion) for source in sources]
    if len(ranked) == 1:
        picks = islice(ranked[0], wanted.limit)
    else:
        # A job that matches several tags comes up once for each, one after the other.
        picks = islice((pick for pick, _ in groupby(heapq.merge(*ranked))), wanted.limit)
    return [pick[-1] for pick in picks]


def _ready(tx: Transaction, source: Source, portion: int) -> Iterator[Rank]:
    """Yield the ready jobs of a source in their order, read in portions as needed."""
    name, before, after = source
    for offset in count(0, portion):
        found = tx.execute(name, (*before, portion, offset, *after)).fetchone()[0]
        picks = rows.picks.decode(found)
        yield from picks
        if len(picks) < portion:
            return
