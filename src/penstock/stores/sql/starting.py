"""Gives ready jobs out: the next ones of each queue, and the leases on those that run."""

import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import count, groupby, islice

import msgspec

from penstock.core.job import Claim, Job, Lease
from penstock.stores.sql import rows, seals
from penstock.stores.sql.claiming import Claiming
from penstock.stores.sql.rows import READY, RUNNING, SCHEDULED, encoded
from penstock.stores.sql.transaction import Totals, Transaction, shift

Pick = tuple[int, int, int]
"""How a ready job ranks: less is first. The last part is its id."""

# Jobs that fall due at once are let in by portions, so that no claim waits for a million.
_PROMOTED_AT_ONCE = 1_000


def claim(tx: Transaction, calls: Sequence[Claim]) -> list[list[Job]]:
    """See `Store.claim`."""
    seals.check_open(tx)
    now = tx.now()
    more = promote(tx, now)
    answers = [_claim_one(tx, wanted, now) for wanted in calls]
    while more and not all(answers):
        more = promote(tx, now)
        answers = [
            answer or _claim_one(tx, wanted, now)
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


def _claim_one(tx: Transaction, wanted: Claim, now: int) -> list[Job]:
    found = dict(tx.execute("queues_with_ready", (now,)).fetchall())
    queues = set(filter(wanted.wants, found))
    if any(map(found.__getitem__, queues)):
        ids = Claiming(tx, wanted, now).choose(queues)
    else:
        ids = _next(tx, wanted, queues)
    return _start(tx, wanted, ids, now) if ids else []


def _next(tx: Transaction, wanted: Claim, queues: Collection[str]) -> list[int]:
    sources = [(queue, tag) for queue in queues for tag in wanted.tags or (None,)]
    portion = -(-wanted.limit // max(1, len(sources)))
    ranked = [_ready(tx, queue, tag, portion) for queue, tag in sources]
    if len(ranked) == 1:
        picks = islice(ranked[0], wanted.limit)
    else:
        # A job that fits several tags comes up once for each, one after the other.
        picks = islice((pick for pick, _ in groupby(heapq.merge(*ranked))), wanted.limit)
    return [pick[-1] for pick in picks]


def _ready(tx: Transaction, queue: str, tag: str | None, portion: int) -> Iterator[Pick]:
    """The ready jobs of a queue, in their order, read by portions as they are wanted."""
    name, source = ("pick", (queue,)) if tag is None else ("pick_tagged", (queue, tag))
    for offset in count(0, portion):
        found = rows.picks.decode(tx.execute(name, (*source, portion, offset)).fetchone()[0])
        yield from found
        if len(found) < portion:
            return


def _start(tx: Transaction, wanted: Claim, ids: Sequence[int], now: int) -> list[Job]:
    chosen = encoded(ids)
    _, tokens = tx.reserve(0, len(ids))
    parameters = (tx.numbers(tokens), now, wanted.worker, chosen)
    tx.execute("log_claimed", parameters)
    tx.execute("start", parameters)
    jobs = tx.jobs(ids)
    totals: Totals = {}
    for queue, n in Counter([job.queue for job in jobs]).items():
        shift(totals, queue, READY, RUNNING, n)
    tx.add_totals(totals)
    return jobs
