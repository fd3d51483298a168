"""Every store keeps the trace of who enqueued a job."""

from penstock.core.job import Claim
from penstock.core.query import JobQuery
from penstock.core.store import Store
from tests.contract.support import new

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_trace_is_kept_with_the_job(store: Store) -> None:
    jobs = [new(trace=TRACE), new(), new(trace=TRACE), new(trace=TRACE)]
    added = await store.add(jobs, actor="a")
    wanted = [TRACE, None, TRACE, TRACE]
    assert [job.trace for job in added] == wanted
    assert [job.trace for job in await store.find(JobQuery(newest_first=False))] == wanted
    claimed = await store.claim(Claim(worker="w", limit=4))
    assert [job.trace for job in claimed] == wanted
    assert [record.job.trace for record in await store.records([job.id for job in added])] == (
        wanted
    )
