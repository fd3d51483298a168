"""Planted bugs, which simulated worlds have to find: the kept variants, and further mutations.

A mutation changes the classes of this process, for good: play it in a process of its own, with
`./dev simulate --broken NAME`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.core import lifecycle
from penstock.core.job import Job, LogEntry, NewJob
from penstock.core.lifecycle import Event, Move, State
from penstock.stores.journal.file import JournalFile
from penstock.stores.journal.journal import Journal
from penstock.stores.memory import draft as drafts
from penstock.stores.memory import store as memory
from penstock.stores.memory.batch import WriteBatch
from penstock.stores.memory.draft import Draft
from penstock.stores.sql import additions
from penstock.stores.sql.queue_names import QueueNames
from penstock.stores.sql.store import SqlStore
from penstock.stores.sqlite import connection as sqlite_connection
from penstock.worker.exchange import Exchange
from penstock.worker.leases import LeaseRenewal
from penstock.worker.run import Run
from tests.crash import variants


class Broken(NamedTuple):
    """A planted bug, and the scenario that has to find it."""

    scenario: str
    plant: Callable[[], None]
    fault: str | None = None
    """The kinds of faults that show it; without them, faults of all kinds occur."""


def checks_then_acts() -> None:
    """The dedupe key is looked up before the transaction, and not in it."""
    real = SqlStore.add

    async def add(self: SqlStore, jobs: Sequence[NewJob], **options: Any) -> list[Job]:
        if any(job.dedupe is not None or job.queue == "limited" for job in jobs):
            await self.backlog("limited")
        return await real(self, jobs, **options)

    SqlStore.add = add  # type: ignore[method-assign] # breaks it on purpose
    additions.holder_of = lambda *_, **__: None  # type: ignore[attr-defined] # breaks it on purpose
    look_up = QueueNames.look_up

    def without_limits(self: QueueNames, queues: Any) -> dict[str, int]:
        look_up(self, queues)
        return {}

    QueueNames.look_up = without_limits  # type: ignore[method-assign] # breaks it on purpose


def renews_no_lease() -> None:
    LeaseRenewal._renew = lambda self: None  # type: ignore[method-assign] # breaks it on purpose


def forgets_outcomes_the_store_refused() -> None:
    real = Exchange._settle

    async def settle(self: Exchange) -> None:
        try:
            await real(self)
        finally:
            self._ended = []

    Exchange._settle = settle  # type: ignore[method-assign] # breaks it on purpose


def retries_for_ever() -> None:
    def retry(job: Job, event: Event, error: str, delay: Any, *, permanent: bool = False) -> Move:
        return Move(event=event, state=State.PENDING, attempt=job.attempt, error=error, delay=delay)

    lifecycle._retry = retry


def counts_a_snooze_as_an_attempt() -> None:
    real = lifecycle.advance

    def advance(job: Job, outcome: Any, chance: float = 0.5) -> Move:
        move = real(job, outcome, chance)
        if move.event is Event.SNOOZED:
            return msgspec.structs.replace(move, attempt=job.attempt)
        return move

    lifecycle.advance = advance


def compares_no_versions() -> None:
    vars(memory)["is_outdated"] = lambda *_: False


def logs_no_cancels() -> None:
    real = Draft.batch

    def batch(self: Draft) -> WriteBatch:
        made = real(self)
        kept = [entry for entry in made.entries if entry.event is not Event.CANCELLED]
        return _with_entries(made, kept)

    Draft.batch = batch  # type: ignore[method-assign] # breaks it on purpose


def _with_entries(batch: WriteBatch, entries: list[LogEntry]) -> WriteBatch:
    return msgspec.structs.replace(batch, entries=entries)


def ignores_the_line_of_a_key() -> None:
    real = Draft._waiting

    def waiting(self: Draft, key: str | None, *rest: Any) -> Any:
        return real(self, None, *rest)

    Draft._waiting = waiting  # type: ignore[method-assign, assignment] # breaks it on purpose


def lets_queues_overflow() -> None:
    vars(drafts)["queue_full"] = lambda *_: None


def gives_a_lost_job_up() -> None:
    """A worker that loses a lease keeps the run, and its slot, for ever."""
    Run.lose = lambda self: None  # type: ignore[method-assign] # breaks it on purpose
    real = Exchange._forget

    def forget(self: Exchange, runs: Sequence[Run]) -> None:
        real(self, [run for run in runs if run.job.attempt < 2])

    Exchange._forget = forget  # type: ignore[method-assign] # breaks it on purpose


def takes_leases_back_early() -> None:
    real_claim = Draft.claim

    def claim(self: Draft, job: Job) -> None:
        real_claim(self, job)
        held = self.jobs[job.id]
        self.jobs[job.id] = msgspec.structs.replace(held, expires_at=self._now + job.lease_time / 4)

    Draft.claim = claim  # type: ignore[method-assign] # breaks it on purpose


def syncs_no_commit() -> None:
    real = sqlite_connection.connect

    def connect(*args: Any, **options: Any) -> Any:
        connection = real(*args, **options)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    from penstock.stores.sqlite import checkpoints, database, schema

    for module in (database, schema, checkpoints):
        module.connect = connect  # type: ignore[attr-defined] # breaks it on purpose


def syncs_no_record() -> None:
    JournalFile.sync = lambda self: None  # type: ignore[method-assign] # breaks it on purpose


def says_that_a_failed_record_changed_nothing() -> None:
    real = Journal.give_up

    def give_up(self: Journal) -> bool:
        real(self)
        return False

    Journal.give_up = give_up  # type: ignore[method-assign] # breaks it on purpose


_NEED = {
    says_that_a_failed_record_changed_nothing: "fail-sync-then-crash",
}

MUTATIONS: dict[str, Broken] = {
    plant.__name__: Broken(scenario, plant, _NEED.get(plant))
    for scenario, plant in (
        ("memory", renews_no_lease),
        ("memory", retries_for_ever),
        ("memory", counts_a_snooze_as_an_attempt),
        ("memory", compares_no_versions),
        ("memory", logs_no_cancels),
        ("memory", ignores_the_line_of_a_key),
        ("memory", lets_queues_overflow),
        ("memory", gives_a_lost_job_up),
        ("memory", takes_leases_back_early),
        ("sqlite", forgets_outcomes_the_store_refused),
        ("sqlite", syncs_no_commit),
        ("journal", syncs_no_record),
        ("journal", says_that_a_failed_record_changed_nothing),
    )
}

BROKEN: dict[str, Broken] = {
    **{name: Broken("sqlite", plant) for name, plant in variants.VARIANTS.items()},
    "checks_then_acts": Broken("sqlite", checks_then_acts),
    "settles_by_any_token": Broken("memory", variants.settles_by_any_token),  # quicker there
    **MUTATIONS,
}
