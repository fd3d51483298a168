"""Planted bugs, which simulated worlds have to find: the kept variants, and further mutations.

A mutation changes the classes of this process, for good: play it in a process of its own, with
`./dev simulate --broken NAME`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.client.connection import Connection
from penstock.client.wire import Request
from penstock.core import dedupe as core_dedupe
from penstock.core import lifecycle
from penstock.core.errors import ServerUnreachable
from penstock.core.job import Job, LogEntry
from penstock.core.lifecycle import Event, Move, State
from penstock.core.migration_lock import MigrationPhase
from penstock.engine.migration import _Move
from penstock.stores.journal.file import JournalFile
from penstock.stores.journal.journal import Journal
from penstock.stores.memory import draft as drafts
from penstock.stores.memory import store as memory
from penstock.stores.memory.batch import WriteBatch
from penstock.stores.memory.draft import Draft
from penstock.stores.memory.schedules import StoredSchedules
from penstock.stores.sql import dedupe
from penstock.stores.sql.queue_names import QueueNames
from penstock.stores.sqlite import connection as sqlite_connection
from penstock.stores.sqlite import database as sqlite_database
from penstock.stores.sqlite import schema as sqlite_schema
from penstock.worker.exchange import Exchange
from penstock.worker.leases import LeaseRenewal
from penstock.worker.run import Run
from tests.crash import variants


def replace(owner: Any, name: str, other: Any) -> None:
    """Replace an attribute, which has to exist: else the mutation would plant nothing."""
    assert name in vars(owner), f"{owner.__name__} has no {name} any more"
    setattr(owner, name, other)


class Broken(NamedTuple):
    """A planted bug, and the scenario that has to find it."""

    scenario: str
    plant: Callable[[], None]
    fault: str | None = None
    """The kinds of faults that show it; without them, faults of all kinds occur."""


def checks_then_acts() -> None:
    """The dedupe key and the room in a queue are looked up before the transaction, not in it."""
    checks_dedupe_then_acts()
    look_up = QueueNames.look_up

    def without_limits(self: QueueNames, queues: Any) -> dict[str, int]:
        look_up(self, queues)
        return {}

    replace(QueueNames, "look_up", without_limits)


def checks_dedupe_then_acts() -> None:
    prepared = sqlite_schema.prepared

    def without_index(*args: Any, **options: Any) -> Any:
        connection = prepared(*args, **options)
        connection.execute("DROP INDEX IF EXISTS penstock_job_dedupe")
        return connection

    replace(sqlite_database, "prepared", without_index)
    replace(dedupe.Holders, "find", lambda *_, **__: None)


def dedupes_against_running_jobs() -> None:
    """A job that only pending ones should keep away is answered with one that runs."""

    def holder(scope: str, unfinished: Any, exclude: Any = ()) -> int | None:
        held = [(not pending, n) for n, pending, _ in unfinished if n not in exclude]
        return min(held)[1] if held else None

    replace(core_dedupe, "holder", holder)


def renews_no_lease() -> None:
    replace(LeaseRenewal, "_renew", lambda self: None)


def forgets_outcomes_the_store_refused() -> None:
    real = Exchange._settle

    async def settle(self: Exchange) -> None:
        try:
            await real(self)
        finally:
            self._ended = []

    replace(Exchange, "_settle", settle)


def retries_for_ever() -> None:
    def retry(job: Job, event: Event, error: str, delay: Any, *, permanent: bool = False) -> Move:
        return Move(event=event, state=State.PENDING, attempt=job.attempt, error=error, delay=delay)

    replace(lifecycle, "_retry", retry)


def counts_a_snooze_as_an_attempt() -> None:
    real = lifecycle.advance

    def advance(job: Job, outcome: Any, chance: float = 0.5) -> Move:
        move = real(job, outcome, chance)
        if move.event is Event.SNOOZED:
            return msgspec.structs.replace(move, attempt=job.attempt)
        return move

    replace(lifecycle, "advance", advance)


def compares_no_versions() -> None:
    replace(memory, "is_outdated", lambda *_: False)


def logs_no_cancels() -> None:
    real = Draft.batch

    def batch(self: Draft) -> WriteBatch:
        made = real(self)
        kept = [entry for entry in made.entries if entry.event is not Event.CANCELLED]
        return _with_entries(made, kept)

    replace(Draft, "batch", batch)


def _with_entries(batch: WriteBatch, entries: list[LogEntry]) -> WriteBatch:
    return msgspec.structs.replace(batch, entries=entries)


def ignores_the_line_of_a_key() -> None:
    real = Draft._waiting

    def waiting(self: Draft, key: str | None, *rest: Any) -> Any:
        return real(self, None, *rest)

    replace(Draft, "_waiting", waiting)


def lets_queues_overflow() -> None:
    replace(drafts, "queue_full", lambda *_: None)


def gives_a_lost_job_up() -> None:
    """A worker that loses a lease keeps the run, and its slot, for ever."""
    replace(Run, "lose", lambda self: None)
    real = Exchange._forget

    def forget(self: Exchange, runs: Sequence[Run]) -> None:
        real(self, [run for run in runs if run.job.attempt < 2])

    replace(Exchange, "_forget", forget)


def takes_leases_back_early() -> None:
    real_claim = Draft.claim

    def claim(self: Draft, job: Job) -> None:
        real_claim(self, job)
        held = self.jobs[job.id]
        self.jobs[job.id] = msgspec.structs.replace(held, expires_at=self._now + job.lease_time / 4)

    replace(Draft, "claim", claim)


def syncs_no_commit() -> None:
    real = sqlite_connection.connect

    def connect(*args: Any, **options: Any) -> Any:
        connection = real(*args, **options)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    from penstock.stores.sqlite import checkpoints, database, schema

    for module in (database, schema, checkpoints):
        replace(module, "connect", connect)


def syncs_no_record() -> None:
    replace(JournalFile, "sync", lambda self: None)


def syncs_a_record_again() -> None:
    """A sync that failed is repeated, and succeeds: the system has forgotten what it was about."""
    real = JournalFile.sync

    def sync(self: JournalFile) -> None:
        try:
            real(self)
        except OSError:
            real(self)

    replace(JournalFile, "sync", sync)


def says_that_a_failed_record_changed_nothing() -> None:
    real = Journal.give_up

    def give_up(self: Journal) -> bool:
        real(self)
        return False

    replace(Journal, "give_up", give_up)


def says_that_a_failed_commit_changed_nothing() -> None:
    database = sqlite_database.SqliteDatabase
    replace(database, "_failed_commit", lambda self, error: self._translated(error))


def leaves_the_source_before_the_jobs_arrive() -> None:
    real = _Move.take_jobs

    async def take_jobs(self: _Move, progress: Any) -> Any:
        await self._source.put(MigrationPhase.LEFT, self._target)
        return await real(self, progress)

    replace(_Move, "take_jobs", take_jobs)


def fires_without_comparing() -> None:
    """Workers that found the same schedule due all fire it."""
    replace(StoredSchedules, "is_due", lambda *_: True)


def server_answers_before_the_commit() -> None:
    variants.acknowledges_before_commit()


def repeats_a_request_without_its_dedupe_key() -> None:
    replace(Connection, "dedupe_key", lambda self: None)


def repeats_a_report_with_another_token() -> None:
    real = Connection.ask

    async def ask(self: Connection, request: Request, kind: type[Any]) -> Any:
        if request.path not in {"/events/complete", "/events/fail"}:
            return await real(self, request, kind)
        once = Connection(self.url, self._transport, 0, self.runtime)
        try:
            return await real(once, request, kind)
        except ServerUnreachable:
            events = [{**one, "token": one["token"] + 1} for one in request.body["events"]]
            body = {**request.body, "events": events}
            return await real(self, request._replace(body=body), kind)

    replace(Connection, "ask", ask)


_NEED = {
    says_that_a_failed_record_changed_nothing: "fail-sync-then-crash",
    says_that_a_failed_commit_changed_nothing: "fail-sync-then-crash",
    syncs_a_record_again: "fail-sync-drops",
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
        ("memory", dedupes_against_running_jobs),
        ("sqlite", checks_dedupe_then_acts),
        ("memory", fires_without_comparing),
        ("sqlite", forgets_outcomes_the_store_refused),
        ("sqlite", syncs_no_commit),
        ("sqlite", says_that_a_failed_commit_changed_nothing),
        ("journal", syncs_no_record),
        ("journal", syncs_a_record_again),
        ("journal", says_that_a_failed_record_changed_nothing),
        ("moving", leaves_the_source_before_the_jobs_arrive),
        ("servers", server_answers_before_the_commit),
        ("servers", repeats_a_request_without_its_dedupe_key),
        ("servers", repeats_a_report_with_another_token),
    )
}

BROKEN: dict[str, Broken] = {
    **{name: Broken("sqlite", plant) for name, plant in variants.VARIANTS.items()},
    "checks_then_acts": Broken("sqlite", checks_then_acts),
    "settles_by_any_token": Broken("memory", variants.settles_by_any_token),  # quicker there
    **MUTATIONS,
}
