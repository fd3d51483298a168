"""Checkpoints of jobs that end together with others."""

from penstock.core.lifecycle import Done, advance
from penstock.core.progress import Report
from penstock.core.tables import Statements
from penstock.core.transition import Change
from penstock.stores import open_store
from tests.contract.support import add, add_one, new, tables_of, take


def kept(statements: Statements) -> list[int]:
    """Of which jobs checkpoints are kept; those of finished jobs are not shown."""
    return [job_id for (job_id,) in statements.execute("SELECT job_id FROM checkpoint")]


async def test_checkpoint_goes_also_when_a_job_that_others_wait_for_ends_in_the_same_call(
    postgres_url: str,
) -> None:
    store = open_store(postgres_url)
    _, awaited = await add(store, new(), new())
    await add_one(store, after=(awaited.id,))
    jobs = await take(store)
    await store.report([Report(lease=job.lease, state="1") for job in jobs])
    changes = [Change(job, advance(job, Done())) for job in jobs]
    ended = await store.transition(changes, actor="w")
    assert all(ended)
    assert await tables_of(store).read(kept) == []
    await store.close()
