"""A short tour: enqueue a few jobs, run them, and look at what happened."""

import asyncio
import tempfile
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock import Penstock, RetryPolicy, Worker, context


async def main() -> None:
    """Run the tour on a store of its own, in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        async with Penstock(f"sqlite:///{Path(folder) / 'jobs.db'}") as app:
            await tour(app, Console())


async def tour(app: Penstock, console: Console) -> None:
    """Show keys, priorities, retries and the audit log."""
    quick = RetryPolicy(attempts=3, delay=timedelta(milliseconds=20))

    @app.task(retry=quick)
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    @app.task(retry=quick)
    def flaky() -> str:
        if context().attempt == 1:
            raise ConnectionError("the line is dead")
        return "the second try worked"

    await greet.enqueue("Ada")
    await greet.using(priority=9).enqueue("Grace")
    for step in ("open", "write", "close"):  # one key: one at a time, in this order
        await greet.using(key="notes.md").enqueue(step)
    failing = await flaky.enqueue()

    console.print("Six jobs are enqueued. Job 5 waits:", (await app.explain(5)).text, style="dim")
    worker = Worker(app, concurrency=4)
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        await app.queues.drain(timeout=timedelta(seconds=20))
        worker.stop()

    jobs = Table("id", "task", "key", "state", "attempts", "result", title="Jobs")
    for job in reversed(await app.find()):
        jobs.add_row(
            str(job.id), job.task, job.key or "", job.state, str(job.attempt), str(job.returned)
        )
    console.print(jobs)

    log = Table("event", "leads to", "by", "error", title=f"The log of job {failing.id}")
    for entry in await app.log(failing.id):
        log.add_row(entry.event, entry.state, entry.actor, (entry.error or "").split("\n")[-1])
    console.print(log)


if __name__ == "__main__":
    asyncio.run(main())
