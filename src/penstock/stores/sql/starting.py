"""Gives ready jobs out: the next ones of each queue, and the leases on those that run."""

import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import count, groupby, islice
from typing import NamedTuple

import msgspec

from penstock.core.job import Claim, Job, Lease
from penstock.stores.sql import names, rows, seals
from penstock.stores.sql.claiming import Claiming
from penstock.stores.sql.rows import READY, SCHEDULED, encoded
from penstock.stores.sql.transaction import Totals, Transaction, shift

Pick = tuple[int, int, int]
"""How a ready job ranks: less is first. The last part is its id."""
Source = tuple[str, tuple[str, ...], tuple[str, ...]]
"""A query for ready jobs, and its parameters before and behind those of a portion."""

_lines = msgspec.json.Decoder(list[tuple[str, int, int]])

# Jobs that fall due at once are let in by portions, so that no claim waits for a million.
_PROMOTED_AT_ONCE = 1_000


def claim(tx: Transaction, calls: Sequence[Claim]) -> list[list[Job]]:
    """See `Store.claim`."""
    seals.check_open(tx)
    now = tx.now()
    more = promote(tx, now)
    answers = [claim_one(tx, wanted, _outlook(tx, wanted, now), now) for wanted in calls]
    while more and not all(answers):
        more = promote(tx, now)
        answers = [
            answer or claim_one(tx, wanted, _outlook(tx, wanted, now), now)
            for wanted, answer in zip(calls, answers, strict=True)
        ]
    return answers


def promote(tx: Transaction, now: int) -> bool:
    """Make jobs ready that have fallen due; whether there may be more."""
    if not tx.execute("any_due", (now,)).fetchone():
        return False
    totals: Totals = {}
    due = tx.execute("promote_due", (now, _PROMOTED_AT_ONCE)).fetchall()
    for (queue,), n in Counter(due).items():
        shift(totals, queue, SCHEDULED, READY, n)
    tx.add_totals(totals)
    return len(due) == _PROMOTED_AT_ONCE


def let_in(tx: Transaction, calls: Sequence[int]) -> list[bool]:
    """Make jobs ready that have fallen due by these instants."""
    return [promote(tx, max(calls))] * len(calls)


def renew(tx: Transaction, calls: Sequence[Sequence[Lease]]) -> list[list[Job]]:
    """See `Store.renew`."""
    leases = encoded([msgspec.structs.astuple(lease) for call in calls for lease in call])
    renewed = [row[0] for row in tx.execute("renew", (tx.now(), leases)).fetchall()]
    tx.written = tx.written or bool(renewed)
    held = {job.lease: job for job in tx.jobs(renewed)}
    return [[held[lease] for lease in call if lease in held] for call in calls]


class Outlook(NamedTuple):
    """What a claim has to know first."""

    limited: bool
    """Whether jobs are held, or tasks have limits."""
    any_merged: bool
    """Whether there may be ready jobs of queues that have no lines of their own."""
    any_throttled: bool
    queues: Sequence[tuple[str, int, int]]
    """The queues to look at that have ready jobs, whether limits have a say there, and the line."""


def _outlook(tx: Transaction, wanted: Claim, now: int) -> Outlook:
    if wanted.queues is None:
        found = tx.execute("outlook", (now,))
    else:
        found = tx.execute("outlook_named", (now, encoded(wanted.queues)))
    limited, any_merged, any_throttled, any_leaving, queues = found.fetchone()
    if any_leaving:
        names.unmerge(tx, wanted.queues or ())
    return Outlook(limited, any_merged, any_throttled, _lines.decode(queues))


def claim_one(tx: Transaction, wanted: Claim, outlook: Outlook, now: int) -> list[Job]:
    """Give jobs out, of those that are ready already."""
    merged = bool(outlook.any_merged) and wanted.queues is None
    if merged and wanted.besides:  # to step over their jobs would cost with each of them
        names.own_line(tx, wanted.besides)
    queues = {name: special for name, special, _ in outlook.queues if wanted.wants(name)}
    if (
        any(queues.values())
        or (merged and outlook.any_throttled)
        or (outlook.limited and (queues or merged))
    ):
        if any(line == names.MERGED for *_, line in outlook.queues):
            names.own_line(tx, queues)  # what limits hold there has to be found by itself
        ids = Claiming(tx, wanted, now).choose(queues, merged=merged)
    else:
        ids = _next(tx, wanted, queues, merged=merged)
    return tx.start(ids, wanted.worker, now) if ids else []


def _next(tx: Transaction, wanted: Claim, queues: Collection[str], *, merged: bool) -> list[int]:
    sources: list[Source] = [
        ("pick", (queue,), ()) if tag is None else ("pick_tagged", (queue, tag), ())
        for queue in queues
        for tag in wanted.tags or (None,)
    ]
    if merged:
        besides = encoded(wanted.besides)
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
        # A job that fits several tags comes up once for each, one after the other.
        picks = islice((pick for pick, _ in groupby(heapq.merge(*ranked))), wanted.limit)
    return [pick[-1] for pick in picks]


def _ready(tx: Transaction, source: Source, portion: int) -> Iterator[Pick]:
    """The ready jobs of a source, in their order, read by portions as they are wanted."""
    name, before, behind = source
    for offset in count(0, portion):
        found = tx.execute(name, (*before, portion, offset, *behind)).fetchone()[0]
        picks = rows.picks.decode(found)
        yield from picks
        if len(picks) < portion:
            return
