"""Pages of jobs."""

from penstock import JobQuery, Penstock
from penstock.apps.kit import records_at


async def test_page_skips_the_first_jobs() -> None:
    async with Penstock("memory://") as app:

        @app.task
        async def note(n: int) -> None:
            pass

        await app.enqueue_many([note.new(n) for n in range(5)])
        pages = [
            [record.job.args["n"] for record in await records_at(app, JobQuery(limit=2), offset)]
            for offset in (0, 2, 4, 6)
        ]
        assert pages == [[4, 3], [2, 1], [0], []]
        [record] = await records_at(app, JobQuery(limit=1), 0)
        assert [entry.event for entry in record.log] == ["enqueued"]
