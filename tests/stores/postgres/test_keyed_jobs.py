"""New jobs with dedupe keys next to transactions that free these keys."""

from collections.abc import Sequence

import pytest

from penstock.core.job import Job, Scope
from penstock.core.lifecycle import Done, Event
from penstock.stores import open_store
from penstock.stores.postgres.transaction import PostgresTransaction
from tests.contract.support import add_one, drive, settle, take_one

Ids = tuple[Sequence[int], Sequence[int]]


@pytest.mark.parametrize("scope", Scope)
def test_log_shows_a_job_after_what_freed_its_dedupe_key(
    scope: Scope, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process claims and ends the holder once ids are reserved for the new job."""
    store, other = open_store(postgres_url), open_store(postgres_url)
    holder = drive(add_one(store, dedupe="d", scope=scope))
    ended: list[Job] = []
    reserve = PostgresTransaction.reserve

    def reserve_and_wait(self: PostgresTransaction, jobs: int, entries: int) -> Ids:
        found = reserve(self, jobs, entries)
        if jobs and not ended:
            ended.append(holder)
            drive(settle(other, drive(take_one(other)), Done()))
        return found

    monkeypatch.setattr(PostgresTransaction, "reserve", reserve_and_wait)
    job = drive(add_one(store, dedupe="d", scope=scope))
    assert ended
    log = drive(store.log())
    drive(store.close())
    drive(other.close())
    if job.id == holder.id:
        assert job.duplicate
    else:
        (added,) = (entry.id for entry in log if entry.job_id == job.id)
        (done,) = (entry.id for entry in log if entry.event is Event.DONE)
        assert added > done
