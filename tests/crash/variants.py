"""Broken variants of Penstock: each takes one care away that a promise rests on.

They are applied in client processes only. A statement that a variant changes has to read as
expected, so that no variant heals in silence when the source changes.
"""

import sqlite3
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from typing import Any

import msgspec

from penstock import working
from penstock.core.job import Change, Job, Lease, NewJob
from penstock.core.lifecycle import Done, Move
from penstock.engine import Penstock
from penstock.stores.sql import starting
from penstock.stores.sql.adding import Adding
from penstock.stores.sql.moving import Moving
from penstock.stores.sql.transaction import Totals, Transaction
from penstock.stores.sqlite.store import SqliteStore
from penstock.stores.sqlite.transaction import SQL, SqliteTransaction
from penstock.stores.sqlite.writer import SqliteWriter
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

    def commit(self: Any, requests: Sequence[Any]) -> Transaction:
        transaction = SqliteTransaction(self._connection, self._clock)
        for request in requests:
            (request.answer,) = request.verb(transaction, [request.call])
        return transaction

    SqliteWriter._begin = begin  # type: ignore[assignment,method-assign] # breaks it on purpose
    SqliteWriter._commit = commit  # type: ignore[method-assign] # breaks it on purpose


def deletes_what_it_gives_out() -> None:
    SQL["delete_given_out"] = "DELETE FROM penstock_job WHERE id = ?"
    real = starting.claim_one

    def claim_one(tx: Transaction, *rest: Any) -> list[Job]:
        jobs = real(tx, *rest)
        tx.executemany("delete_given_out", [(job.id,) for job in jobs])
        return jobs

    starting.claim_one = claim_one  # type: ignore[assignment] # breaks it on purpose


def settles_what_it_gives_out() -> None:
    real = Penstock.claim

    async def claim(self: Penstock, **wanted: Any) -> list[Job]:
        jobs = await real(self, **wanted)
        await Penstock.settle_held(self, [(job, Done()) for job in jobs])
        return jobs

    Penstock.claim = claim  # type: ignore[method-assign, assignment] # breaks it on purpose


def settles_by_any_token() -> None:
    def holds(hold: Job | Lease, job: Job) -> bool:
        return True

    working._holds = holds


def moves_any_version() -> None:
    real = Moving.call

    def call(self: Moving, changes: Sequence[Change], actor: str) -> Any:
        blind = [
            Change(
                msgspec.structs.replace(change.job, version=self._current[change.job.id][0]),
                change.move,
            )
            for change in changes
        ]
        return real(self, blind, actor)

    Moving.call = call  # type: ignore[method-assign] # breaks it on purpose


def gives_tokens_again() -> None:
    rewrite("start", "token = ?1 + p.key", "token = attempt + 1")
    rewrite("log_claimed", "?3, ?1 + p.key", "?3, j.attempt + 1")


def gives_out_more_than_heads() -> None:
    rewrite("held_keys", "stage < 4", "stage > 4")


def promotes_the_newest() -> None:
    rewrite("unblock", "ORDER BY stage, id", "ORDER BY stage, id DESC")


def promotes_by_priority() -> None:
    rewrite("unblock", "ORDER BY stage, id", "ORDER BY stage, priority DESC")


def forgets_the_key_of_a_retry() -> None:
    real = Moving._target

    def target(self: Moving, job: Job, move: Move) -> Any:
        return real(self, msgspec.structs.replace(job, key=None), move)

    Moving._target = target  # type: ignore[method-assign] # breaks it on purpose
    rewrite("move", "attempt = ", "key = iif(?3 < 3, NULL, penstock_job.key), attempt = ")


def does_not_count_attempts() -> None:
    rewrite("start", "attempt = attempt + 1", "attempt = attempt")


def takes_nothing_back() -> None:
    rewrite("expired", "stage = 3 AND", "stage = 3 AND false AND")


def checks_then_acts() -> None:
    """Both the dedupe key and the room in the queue are looked up before the transaction."""
    real = SqliteStore.add

    async def add(self: SqliteStore, jobs: Sequence[NewJob], **options: Any) -> list[Job]:
        if any(job.dedupe is not None or job.queue == "limited" for job in jobs):
            assert (await self.backlog("limited"))[0] == 0
            with closing(sqlite3.connect(self._path)) as connection:
                connection.execute("DROP INDEX IF EXISTS penstock_job_dedupe")
            meet(self._path.parent)
        return await real(self, jobs, **options)

    SqliteStore.add = add  # type: ignore[method-assign, assignment] # breaks it on purpose
    Transaction.dedupe_holder = lambda *_, **__: None  # type: ignore[method-assign] # breaks it on purpose
    Adding.look_up_queues = look_up_queues  # type: ignore[method-assign] # breaks it on purpose


def look_up_queues(self: Any, queues: Collection[str]) -> None:
    self._names.look_up(queues)
    self._rooms = dict.fromkeys(queues)


def stores_a_batch_in_pieces() -> None:
    real = SqliteStore.add

    async def add(self: SqliteStore, jobs: Sequence[NewJob], **options: Any) -> list[Job]:
        return [stored for job in jobs for stored in await real(self, [job], **options)]

    SqliteStore.add = add  # type: ignore[method-assign, assignment] # breaks it on purpose


def forgets_to_log_expiry() -> None:
    rewrite("log_moved", "ON j.id = p.value", "ON j.id = p.value AND ?4 <> 'expired'")


def counts_only_what_comes() -> None:
    real = SqliteTransaction.add_totals

    def add_totals(self: SqliteTransaction, totals: Totals) -> None:
        real(self, {place: n for place, n in totals.items() if n > 0})

    SqliteTransaction.add_totals = add_totals  # type: ignore[method-assign] # breaks it on purpose


def is_deaf_to_pauses() -> None:
    rewrite("outlook", "AND q.paused_until <= ?1", "AND ?1 IS NOT NULL")


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
