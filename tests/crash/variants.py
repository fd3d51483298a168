"""Broken variants of Penstock: each takes one care away that a promise rests on.

They are applied in client processes only. A statement that a variant changes has to read as
expected, so that no variant heals in silence when the source changes.
"""

import sqlite3
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from typing import Any

import msgspec

from penstock.core.job import Job, Lease, NewJob
from penstock.core.lifecycle import Done, Move
from penstock.core.transition import Change
from penstock.engine import leases
from penstock.engine.leases import Leases
from penstock.stores.sql import claims, dedupe
from penstock.stores.sql.database import Totals, Transaction
from penstock.stores.sql.queue_names import QueueNames
from penstock.stores.sql.store import SqlStore
from penstock.stores.sql.transitions import Transitions
from penstock.stores.sqlite.database import SqliteDatabase
from penstock.stores.sqlite.transaction import SQL, SqliteTransaction
from tests.crash.processes import meet


def apply(name: str | None) -> None:
    if name is not None:
        VARIANTS[name]()


def rewrite(query: str, old: str, new: str) -> None:
    assert SQL[query].count(old) == 1, f"{query} reads otherwise now: {SQL[query]}"
    SQL[query] = SQL[query].replace(old, new)


def acknowledges_before_commit() -> None:
    def begin(self: Any, *_: Any) -> None:
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")
        self._connection.execute("BEGIN IMMEDIATE")

    def run(self: Any, requests: Sequence[Any]) -> SqliteTransaction:
        transaction = SqliteTransaction(self._connection, self.clock, set())
        for request in requests:
            (request.answer,) = request.verb(transaction, [request.call])
        return transaction

    SqliteDatabase._begin = begin  # type: ignore[assignment,method-assign] # breaks it on purpose
    SqliteDatabase._run = run  # type: ignore[method-assign] # breaks it on purpose


def deletes_what_it_gives_out() -> None:
    SQL["delete_given_out"] = "DELETE FROM penstock_job WHERE id = ?"
    real = claims.claim_ready

    def claim_ready(tx: Transaction, *rest: Any) -> list[Job] | None:
        jobs = real(tx, *rest)
        tx.executemany("delete_given_out", [(job.id,) for job in jobs or ()])
        return jobs

    claims.claim_ready = claim_ready  # type: ignore[assignment] # breaks it on purpose


def settles_what_it_gives_out() -> None:
    real = Leases.claim

    async def claim(self: Leases, **wanted: Any) -> list[Job]:
        jobs = await real(self, **wanted)
        await Leases.settle_held(self, [(job, Done()) for job in jobs])
        return jobs

    Leases.claim = claim  # type: ignore[method-assign] # breaks it on purpose


def settles_by_any_token() -> None:
    def holds(hold: Job | Lease, job: Job) -> bool:
        return True

    leases._holds = holds


def moves_any_version() -> None:
    real = Transitions.call

    def call(self: Transitions, changes: Sequence[Change], actor: str) -> Any:
        blind = [
            Change(
                msgspec.structs.replace(change.job, version=self._current[change.job.id][0]),
                change.move,
            )
            for change in changes
        ]
        return real(self, blind, actor)

    Transitions.call = call  # type: ignore[method-assign] # breaks it on purpose


def gives_tokens_again() -> None:
    rewrite("start", "token = ?1 + p.key", "token = attempt + 1")
    rewrite("log_claimed", "?3, ?1 + p.key", "?3, j.attempt + 1")


def gives_out_more_than_heads() -> None:
    rewrite("held_keys", "stage < 4", "stage > 4")


def promotes_the_newest() -> None:
    blocked = "AND stage >= 2 AND stage < 4\n        ORDER BY stage, id"
    rewrite("key_lines", blocked, f"{blocked} DESC")
    rewrite("key_lines", "stage < 4 ORDER BY stage, id", "stage < 4 ORDER BY stage, id DESC")


def promotes_by_priority() -> None:
    blocked = "AND stage >= 2 AND stage < 4\n        ORDER BY stage, "
    rewrite("key_lines", f"{blocked}id", f"{blocked}priority DESC")
    rewrite("key_lines", "stage < 4 ORDER BY stage, id", "stage < 4 ORDER BY stage, priority DESC")


def forgets_the_key_of_a_retry() -> None:
    real = Transitions._target

    def target(self: Transitions, job: Job, move: Move) -> Any:
        return real(self, msgspec.structs.replace(job, key=None), move)

    Transitions._target = target  # type: ignore[method-assign] # breaks it on purpose
    rewrite("move", "attempt = ", "key = iif(?3 < 3, NULL, penstock_job.key), attempt = ")


def does_not_count_attempts() -> None:
    rewrite("start", "attempt = attempt + 1", "attempt = attempt")


def takes_nothing_back() -> None:
    rewrite("expired", "stage = 3 AND", "stage = 3 AND false AND")


def checks_then_acts() -> None:
    """Both the dedupe key and the room in the queue are looked up before the transaction."""
    real = SqlStore.add

    async def add(self: SqlStore, jobs: Sequence[NewJob], **options: Any) -> list[Job]:
        if any(job.dedupe is not None or job.queue == "limited" for job in jobs):
            assert (await self.backlog("limited"))[0] == 0
            path = vars(self.database)["_path"]
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("DROP INDEX IF EXISTS penstock_job_dedupe")
            meet(path.parent)
        return await real(self, jobs, **options)

    SqlStore.add = add  # type: ignore[method-assign] # breaks it on purpose
    dedupe.Holders.find = lambda *_, **__: None  # type: ignore[method-assign] # breaks it on purpose
    look_up = QueueNames.look_up

    def without_limits(self: QueueNames, queues: Collection[str]) -> dict[str, int]:
        look_up(self, queues)
        return {}

    QueueNames.look_up = without_limits  # type: ignore[method-assign] # breaks it on purpose


def stores_a_batch_in_pieces() -> None:
    real = SqlStore.add

    async def add(self: SqlStore, jobs: Sequence[NewJob], **options: Any) -> list[Job]:
        return [stored for job in jobs for stored in await real(self, [job], **options)]

    SqlStore.add = add  # type: ignore[method-assign] # breaks it on purpose


def forgets_to_log_expiry() -> None:
    rewrite("log_moved", "ON j.id = p.value", "ON j.id = p.value AND ?4 <> 'expired'")


def counts_only_what_comes() -> None:
    real = SqliteTransaction.add_totals

    def add_totals(self: SqliteTransaction, totals: Totals) -> None:
        real(self, {place: n for place, n in totals.items() if n > 0})

    SqliteTransaction.add_totals = add_totals  # type: ignore[method-assign] # breaks it on purpose


def is_deaf_to_pauses() -> None:
    rewrite("claimable", "AND q.paused_until <= ?1", "AND ?1 IS NOT NULL")


VARIANTS: dict[str, Callable[[], None]] = {
    variant.__name__: variant
    for variant in (
        acknowledges_before_commit,
        deletes_what_it_gives_out,
        settles_what_it_gives_out,
        settles_by_any_token,
        moves_any_version,
        gives_tokens_again,
        gives_out_more_than_heads,
        promotes_the_newest,
        promotes_by_priority,
        forgets_the_key_of_a_retry,
        does_not_count_attempts,
        takes_nothing_back,
        checks_then_acts,
        stores_a_batch_in_pieces,
        forgets_to_log_expiry,
        counts_only_what_comes,
        is_deaf_to_pauses,
    )
}
