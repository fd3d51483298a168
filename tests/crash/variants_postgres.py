"""Broken variants of the PostgreSQL store, as in `variants.py`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from penstock.core.job import Claim, Job
from penstock.stores.postgres import database
from penstock.stores.postgres.arrays import Int8s, Texts
from penstock.stores.postgres.claims import Claims
from penstock.stores.postgres.transaction import PostgresTransaction
from penstock.stores.sql import rows
from tests.crash.processes import meet


def apply(name: str | None, folder: Path) -> None:
    if name is not None:
        VARIANTS[name](folder)


def rewrite(query: str, old: str, new: str) -> None:
    """Let stores that are opened from now on read this query otherwise."""
    vars(database)["queries"] = reading(query, old, new)


def reading(query: str, old: str, new: str) -> Callable[[str], dict[str, str]]:
    """What a store asks for its queries, with one that reads otherwise."""
    real = vars(database)["queries"]

    def queries(schema: str) -> dict[str, str]:
        found: dict[str, str] = real(schema)
        assert found[query].count(old) == 1, f"{query} reads otherwise now: {found[query]}"
        found[query] = found[query].replace(old, new)
        return found

    return queries


def claims_without_locks(folder: Path) -> None:
    """Looks which jobs are ready, and takes those, whatever others do meanwhile."""

    def claim(
        self: Claims, tx: PostgresTransaction, wanted: Claim, queues: Sequence[str]
    ) -> list[Job]:
        jobs = f"{tx.schema}.job_active AS j"
        ready = f"SELECT id FROM {jobs} WHERE stage = 0 AND queue = ANY($1::text[])"  # noqa: S608 - names of our own
        ids = [row[0] for row in tx._connection.execute(ready, (Texts(queues),))]
        meet(folder)
        columns = "j.id, j.version AS previous, -j.priority AS rank, j.run_at, j.enqueued_at"
        picked = f"SELECT {columns} FROM {jobs} WHERE j.id = ANY($5::bigint[])"  # noqa: S608 - names of our own
        claimed = tx._sql["claim_tagged"].partition("numbered AS")[2]
        for old, other in {
            "j.ctid = n.tid": "j.id = n.id",
            "SELECT f.whole, s.* FROM fit AS f LEFT JOIN started AS s ON true": (
                "SELECT true, s.* FROM started AS s"
            ),
        }.items():
            assert old in claimed
            claimed = claimed.replace(old, other)
        found = tx._connection.execute(
            f"WITH picked AS MATERIALIZED ({picked}), numbered AS{claimed}",
            (tx.now, wanted.worker, None, None, Int8s(ids)),
            binary=True,
        )
        tx.written = True
        return [rows.job(row[4:]) for row in found]

    Claims._claim_plain = claim  # type: ignore[method-assign] # breaks it on purpose
    Claims._claim_as_before = lambda *_: None  # type: ignore[method-assign] # the same
    Claims.prepare = lambda *_: None  # type: ignore[method-assign] # the same


def settles_any_version(_folder: Path) -> None:
    rewrite("finish_plain", "AND version = w.version", "")


def has_no_key_alone(folder: Path) -> None:
    """Checks who has a key and adds, without the lock and the index that would notice."""
    rewrite("lock_keys", "pg_advisory_xact_lock(", "pg_advisory_xact_lock_shared(")
    real = PostgresTransaction.add_jobs

    def add_jobs(self: PostgresTransaction, *args: Any) -> None:
        meet(folder)
        real(self, *args)

    PostgresTransaction.add_jobs = add_jobs  # type: ignore[method-assign, assignment] # breaks it on purpose


def counts_only_what_comes(_folder: Path) -> None:
    rewrite("finish_plain", "(VALUES (3, -1), ", "(VALUES ")


def forgets_to_log_claims(_folder: Path) -> None:
    rewrite("claim_of_one", "FROM started\n),\ncounted", "FROM started WHERE false\n),\ncounted")


def is_deaf_to_pauses(_folder: Path) -> None:
    now = "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint"
    rewrite("claimable", f"AND paused_until <= (SELECT coalesce($1::bigint, {now}))", "")


VARIANTS: dict[str, Callable[[Path], None]] = {
    variant.__name__: variant
    for variant in (
        claims_without_locks,
        settles_any_version,
        has_no_key_alone,
        counts_only_what_comes,
        forgets_to_log_claims,
        is_deaf_to_pauses,
    )
}
