"""Claims with a shared lock: each takes jobs that no other transaction has locked."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from penstock.core.job import Claim, Job
from penstock.stores.postgres.arrays import Int8s, Texts
from penstock.stores.postgres.pipeline import Rows
from penstock.stores.postgres.round_trips import Receipt, Trip
from penstock.stores.postgres.scan_positions import Positions, ScanPositions
from penstock.stores.postgres.transaction import LockMode, NeedsExclusive, PostgresTransaction
from penstock.stores.sql import claims, migration_lock, queue_names, rows
from penstock.stores.sql.claims import Claimable
from penstock.stores.sql.rows import encoded

# The name that stands for all merged queues among the others; no queue has it.
MERGED = ""


class Claims:
    """The claims of one process, and what the last one found."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        # Which queues the last claim wanted, and which of them were open.
        self._open_queues: tuple[tuple[str, ...] | None, Sequence[str]] = None, ()
        self._any_merged = False
        self._positions = ScanPositions(monotonic)
        self._began = 0.0

    def claim(self, tx: PostgresTransaction, calls: Sequence[Claim]) -> list[list[Job] | None]:
        """See `Database.claim`."""
        return [self._claim_next(tx, wanted) for wanted in calls]

    def _claim_next(self, tx: PostgresTransaction, wanted: Claim) -> list[Job] | None:
        if (jobs := self._claim_as_before(tx, wanted)) is not None:
            return jobs
        more, queues = self._claimable(tx, wanted)
        if more:
            more = claims.promote_due(tx, tx.now)
            _, queues = self._claimable(tx, wanted)  # limits may hold some of those
        if queues is None:
            jobs = self._claim_limited(tx, wanted)
        else:
            jobs = self._claim_plain(tx, wanted, queues)
        return None if more and not jobs else jobs

    def _claimable(
        self, tx: PostgresTransaction, wanted: Claim
    ) -> tuple[bool, Sequence[str] | None]:
        """Return whether jobs have fallen due, and the open queues; None if limits matter there."""
        if wanted.queues is None:
            found = tx.execute("claimable", (tx.now, _holders(wanted)))
        else:
            parameters = (tx.now, Texts(wanted.queues), _holders(wanted))
            found = tx.execute("claimable_named", parameters)
        any_due, any_external, limited, open_queues = found.fetchone()
        if (any_external or limited) and tx.mode is not LockMode.EXCLUSIVE:
            self._open_queues = None, ()
            raise NeedsExclusive
        if any_external:
            migration_lock.check_open(tx)
        self._open_queues = wanted.queues, () if limited else open_queues
        self._any_merged = MERGED in open_queues
        return any_due, None if limited else [*filter(wanted.wants, open_queues)]

    def _claim_as_before(self, tx: PostgresTransaction, wanted: Claim) -> list[Job] | None:
        """Claim from the queues that were open before; None if that has changed."""
        open_queues, positions = self._as_before(wanted)
        return None if positions is None else self._claim_from(tx, wanted, positions, open_queues)

    def _as_before(self, wanted: Claim) -> tuple[Sequence[str], Positions | None]:
        """Return the queues that were open before, and where to begin; None to look again."""
        wanted_before, open_queues = self._open_queues
        same = wanted_before == wanted.queues
        queues = [*filter(wanted.wants, open_queues)] if same else []
        positions = self._positions.of(queues)
        usable = queues and not wanted.tags and not positions.are_advanced
        return open_queues, positions if usable else None

    def _claim_limited(self, tx: PostgresTransaction, wanted: Claim) -> list[Job] | None:
        """Claim where limits, tenants or ages matter: by the code that all SQL stores share."""
        if with_tenants := tx.execute("merged_with_tenants").fetchall():
            queue_names.unmerge_for_tenants(tx, [queue for (queue,) in with_tenants])
        queue_names.unmerge_jobs(tx, wanted.queues or ())
        if wanted.queues is None:
            found = tx.execute("queues_with_ready", (tx.now,))
        else:
            found = tx.execute("named_with_ready", (tx.now, encoded(wanted.queues)))
        claimable = Claimable(
            limited=True, any_merged=self._any_merged, any_throttled=True, queues=found.fetchall()
        )
        return claims.claim_ready(tx, wanted, claimable)

    def _claim_plain(
        self, tx: PostgresTransaction, wanted: Claim, queues: Sequence[str]
    ) -> list[Job] | None:
        if not queues:
            return []
        if MERGED in queues:
            if wanted.except_queues:  # stepping over their jobs would cost every claim
                queue_names.unmerge(tx, wanted.except_queues)
            queue_names.unmerge_jobs(tx)
        if wanted.tags:
            source = (Texts(queues), Texts(wanted.tags))
            besides = (Texts(sorted(wanted.except_queues)), _holders(wanted))
            jobs = self._started(tx, wanted, "claim_tagged", source, besides)
            return self._claim_known(tx, wanted) if jobs is None else jobs
        positions = self._positions.of(queues)
        jobs = self._claim_from(tx, wanted, positions)
        if jobs is None:
            return self._claim_known(tx, wanted)
        if positions.are_advanced and len(jobs) < wanted.limit:  # there may be more before them
            rest = replace(wanted, limit=wanted.limit - len(jobs))
            jobs += self._claim_from(tx, rest, self._positions.beginnings(queues)) or []
        return jobs

    def _claim_known(self, tx: PostgresTransaction, wanted: Claim) -> list[Job] | None:
        """Claim after meeting jobs of unknown tasks, which are set aside."""
        self._open_queues = None, ()
        tx.require_exclusive()
        return self._claim_limited(tx, wanted)

    def _claim_from(
        self,
        tx: PostgresTransaction,
        wanted: Claim,
        positions: Positions,
        open_queues: Sequence[str] | None = None,
    ) -> list[Job] | None:
        began = self._monotonic()
        name, source, expected = _source(wanted, positions, open_queues)
        jobs = self._started(tx, wanted, name, source, expected)
        self._measure(tx, positions, began)
        return jobs

    def _measure(self, tx: PostgresTransaction, positions: Positions, began: float) -> None:
        if not positions.are_advanced:
            took = self._monotonic() - began
            queues = Texts(list(positions.by_queue))
            self._positions.measure(took, lambda: tx.execute("any_ready", (queues,)).fetchall())

    # In one round trip

    def prepare(self, calls: Sequence[Claim], now: int | None, receipt: Receipt) -> Trip | None:
        """See `Verb.prepare`: for one claim from the queues that were open before."""
        if len(calls) > 1:
            return None
        wanted = calls[0]
        open_queues, positions = self._as_before(wanted)
        if positions is None:
            return None
        name, source, expected = _source(wanted, positions, open_queues)
        self._began = self._monotonic()
        return name, (now, wanted.worker, *receipt, *source, wanted.limit, *expected)

    def complete(
        self, tx: PostgresTransaction, calls: Sequence[Claim], found: Rows
    ) -> list[list[Job]] | None:
        """See `Verb.complete`."""
        jobs = self._jobs(tx, found)
        if jobs is None:
            return None
        _, positions = self._as_before(calls[0])
        if positions is not None:
            self._measure(tx, positions, self._began)
        return [jobs]

    def _started(
        self,
        tx: PostgresTransaction,
        wanted: Claim,
        name: str,
        source: tuple[Any, ...],
        expected: tuple[Any, ...] = (),
    ) -> list[Job] | None:
        parameters = (tx.now, wanted.worker, None, None, *source, wanted.limit, *expected)
        return self._jobs(tx, tx.execute(name, parameters).fetchall())

    def _jobs(self, tx: PostgresTransaction, found: Rows) -> list[Job] | None:
        if found and not found[0][0]:
            return None
        if found and found[0][4] is None:  # no job was ready
            return []
        tx.written = tx.written or bool(found)
        _, open_queues = self._open_queues
        for _, rank, run_at, _, job_id, *columns in found:
            queue = columns[8] if columns[8] in open_queues else MERGED
            self._positions.advance(queue, (rank, run_at, job_id))
        return [rows.job(row[4:]) for row in found]


def _holders(wanted: Claim) -> Texts | None:
    """Return the names under which jobs that the claim may take are set aside; None for all."""
    return None if wanted.tasks is None else Texts(wanted.tasks.holders)


def _source(
    wanted: Claim, positions: Positions, open_queues: Sequence[str] | None
) -> tuple[str, tuple[Any, ...], tuple[Any, ...]]:
    """Return the statement of a claim, and its parameters before and after the limit."""
    expected: tuple[Any, ...] = (
        None if open_queues is None else Texts(open_queues),
        None if wanted.queues is None else Texts(wanted.queues),
    )
    expected += (_holders(wanted),)
    own = {queue: position for queue, position in positions.by_queue.items() if queue != MERGED}
    if len(positions.by_queue) == len(own) == 1:
        [(queue, position)] = own.items()
        return "claim_of_one", (queue, *position), expected
    columns = zip(*own.values(), strict=True) if own else ((), (), ())
    source = (Texts(list(own)), *map(Int8s, columns))
    if len(own) == len(positions.by_queue):
        return "claim_of_many", source, expected
    expected += (*positions.by_queue[MERGED], Texts(sorted(wanted.except_queues)))
    return "claim_of_all", source, expected
