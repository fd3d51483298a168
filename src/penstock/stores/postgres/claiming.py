"""Claims beside others: each takes jobs that nobody else has locked."""

import time
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from penstock.core.job import Claim, Job
from penstock.stores.postgres.arrays import Int8s, Texts
from penstock.stores.postgres.places import ClaimPlaces, Places
from penstock.stores.postgres.transaction import Mode, NeedsAlone, PostgresTransaction, ours
from penstock.stores.sql import names, rows, seals, starting
from penstock.stores.sql.rows import encoded
from penstock.stores.sql.transaction import Transaction

# As which all merged queues stand among the others; no queue is called so.
MERGED = ""


class Claims:
    """The claims of one process, and what the last one saw."""

    def __init__(self) -> None:
        # Which queues the last claim asked for, and which of them were open.
        self._open_queues: tuple[tuple[str, ...] | None, Sequence[str]] = None, ()
        self._any_merged = False
        self._places = ClaimPlaces()

    def claim(self, tx: Transaction, calls: Sequence[Claim]) -> list[list[Job]]:
        """See `Store.claim`."""
        tx = ours(tx)
        return [self._claim_next(tx, wanted) for wanted in calls]

    def _claim_next(self, tx: PostgresTransaction, wanted: Claim) -> list[Job]:
        if (jobs := self._claim_as_before(tx, wanted)) is not None:
            return jobs
        more, queues = self._outlook(tx, wanted)
        if more:
            more = starting.promote(tx, tx.now())
            _, queues = self._outlook(tx, wanted)  # among those may be some that limits hold
        if queues is None:
            jobs = self._claim_alone(tx, wanted)
        else:
            jobs = self._claim_plain(tx, wanted, queues)
        return jobs or (self._claim_next(tx, wanted) if more else [])

    def _outlook(self, tx: PostgresTransaction, wanted: Claim) -> tuple[bool, Sequence[str] | None]:
        """Whether jobs have fallen due, and the open queues; None if limits have a say there."""
        if wanted.queues is None:
            found = tx.execute("outlook", (tx.now(),))
        else:
            found = tx.execute("outlook_named", (tx.now(), Texts(wanted.queues)))
        any_due, any_arrived, limited, open_queues = found.fetchone()
        if (any_arrived or limited) and tx.mode is not Mode.ALONE:
            self._open_queues = None, ()
            raise NeedsAlone
        if any_arrived:
            seals.check_open(tx)
        self._open_queues = wanted.queues, () if limited else open_queues
        self._any_merged = MERGED in open_queues
        return any_due, None if limited else [*filter(wanted.wants, open_queues)]

    def _claim_as_before(self, tx: PostgresTransaction, wanted: Claim) -> list[Job] | None:
        """Claim with the outlook of the claim before; None if it does not hold any more."""
        asked, open_queues = self._open_queues
        queues = [*filter(wanted.wants, open_queues)] if asked == wanted.queues else []
        places = self._places.of(queues)
        if not queues or wanted.tags or places.are_old:
            return None
        return self._claim_from(tx, wanted, places, open_queues)

    def _claim_alone(self, tx: PostgresTransaction, wanted: Claim) -> list[Job]:
        """Claim where limits, tenants or ages have a say: by the code that all stores share."""
        if with_tenants := tx.execute("with_tenants").fetchall():
            names.own_line(tx, [queue for (queue,) in with_tenants])
        names.unmerge(tx, wanted.queues or ())
        if wanted.queues is None:
            found = tx.execute("queues_with_ready", (tx.now(),))
        else:
            found = tx.execute("named_with_ready", (tx.now(), encoded(wanted.queues)))
        outlook = starting.Outlook(
            limited=True, any_merged=self._any_merged, any_throttled=True, queues=found.fetchall()
        )
        return starting.claim_one(tx, wanted, outlook, tx.now())

    def _claim_plain(
        self, tx: PostgresTransaction, wanted: Claim, queues: Sequence[str]
    ) -> list[Job]:
        if not queues:
            return []
        if MERGED in queues:
            if wanted.besides:  # to step over their jobs would cost with each of them
                names.own_line(tx, wanted.besides)
            names.unmerge(tx)
        if wanted.tags:
            source = (Texts(queues), Texts(wanted.tags))
            besides = (Texts(sorted(wanted.besides)),)
            return self._started(tx, wanted, "claim_tagged", source, besides) or []
        places = self._places.of(queues)
        jobs = self._claim_from(tx, wanted, places) or []
        if places.are_old and len(jobs) < wanted.limit:  # there may be more before them
            rest = replace(wanted, limit=wanted.limit - len(jobs))
            jobs += self._claim_from(tx, rest, self._places.beginnings(queues)) or []
        return jobs

    def _claim_from(
        self,
        tx: PostgresTransaction,
        wanted: Claim,
        places: Places,
        open_queues: Sequence[str] | None = None,
    ) -> list[Job] | None:
        outlook: tuple[Any, ...] = (
            None if open_queues is None else Texts(open_queues),
            None if wanted.queues is None else Texts(wanted.queues),
        )
        own = {queue: place for queue, place in places.by_queue.items() if queue != MERGED}
        if len(places.by_queue) == len(own) == 1:
            [(queue, place)] = own.items()
            name = "claim_of_one"
            source: tuple[Any, ...] = (queue, *place)
        else:
            columns = zip(*own.values(), strict=True) if own else ((), (), ())
            name, source = "claim_of_many", (Texts(list(own)), *map(Int8s, columns))
        if len(own) < len(places.by_queue):
            name = "claim_of_all"
            outlook += (*places.by_queue[MERGED], Texts(sorted(wanted.besides)))
        began = time.monotonic()
        jobs = self._started(tx, wanted, name, source, outlook)
        if not places.are_old:
            took = time.monotonic() - began
            queues = Texts(list(places.by_queue))
            self._places.looked(took, lambda: tx.execute("any_ready", (queues,)).fetchall())
        return jobs

    def _started(
        self,
        tx: PostgresTransaction,
        wanted: Claim,
        name: str,
        source: tuple[Any, ...],
        outlook: tuple[Any, ...] = (),
    ) -> list[Job] | None:
        parameters = (tx.now(), wanted.worker, *source, wanted.limit, *outlook)
        found = tx.execute(name, parameters).fetchall()
        if found and not found[0][0]:
            return None
        if found and found[0][4] is None:  # no job was ready
            return []
        tx.written = tx.written or bool(found)
        _, open_queues = self._open_queues
        for _, rank, run_at, _, job_id, *columns in found:
            queue = columns[8] if columns[8] in open_queues else MERGED
            self._places.claimed(queue, (rank, run_at, job_id))
        return [rows.job(row[4:]) for row in found]
