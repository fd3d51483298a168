"""Claims beside others: each takes jobs that nobody else has locked."""

import time
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from penstock.core.job import Claim, Job
from penstock.stores.postgres.arrays import Int8s, Texts
from penstock.stores.postgres.places import ClaimPlaces, Places
from penstock.stores.postgres.transaction import Mode, NeedsAlone, PostgresTransaction, ours
from penstock.stores.sql import rows, seals, starting
from penstock.stores.sql.transaction import Transaction


class Claims:
    """The claims of one process, and what the last one saw."""

    def __init__(self) -> None:
        # Which queues the last claim asked for, and which of them were open.
        self._open_queues: tuple[tuple[str, ...] | None, Sequence[str]] = None, ()
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
            return starting.claim(tx, [wanted])[0]
        jobs = self._claim_plain(tx, wanted, queues)
        return jobs or (self._claim_next(tx, wanted) if more else [])

    def _outlook(self, tx: PostgresTransaction, wanted: Claim) -> tuple[bool, Sequence[str] | None]:
        """Whether jobs have fallen due, and the open queues; None if limits have a say there."""
        queues = None if wanted.queues is None else Texts(wanted.queues)
        any_due, any_arrived, limited, open_queues = tx.execute(
            "outlook", (tx.now(), queues)
        ).fetchone()
        if (any_arrived or limited) and tx.mode is not Mode.ALONE:
            raise NeedsAlone
        if any_arrived:
            seals.check_open(tx)
        self._open_queues = wanted.queues, open_queues
        return any_due, None if limited else [*filter(wanted.wants, open_queues)]

    def _claim_as_before(self, tx: PostgresTransaction, wanted: Claim) -> list[Job] | None:
        """Claim with the outlook of the claim before; None if it does not hold any more."""
        asked, open_queues = self._open_queues
        queues = [*filter(wanted.wants, open_queues)] if asked == wanted.queues else []
        places = self._places.of(queues)
        if not queues or wanted.tags or places.are_old:
            return None
        return self._claim_from(tx, wanted, places, open_queues)

    def _claim_plain(
        self, tx: PostgresTransaction, wanted: Claim, queues: Sequence[str]
    ) -> list[Job]:
        if not queues:
            return []
        if wanted.tags:
            source = (Texts(queues), Texts(wanted.tags))
            return self._started(tx, wanted, "claim_tagged", source) or []
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
        outlook = (
            None if open_queues is None else Texts(open_queues),
            None if wanted.queues is None else Texts(wanted.queues),
        )
        if len(places.by_queue) == 1:
            [(queue, place)] = places.by_queue.items()
            name = "claim_of_one"
            source: tuple[Any, ...] = (queue, *place)
        else:
            columns = zip(*places.by_queue.values(), strict=True)
            name, source = "claim_of_many", (Texts(list(places.by_queue)), *map(Int8s, columns))
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
        for _, rank, run_at, _, job_id, *columns in found:
            self._places.claimed(columns[8], (rank, run_at, job_id))
        return [rows.job(row[4:]) for row in found]
