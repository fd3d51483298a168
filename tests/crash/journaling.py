"""Clients that have a journal, each for itself."""

import asyncio
from datetime import timedelta
from typing import Any

from penstock.core.errors import QueueFull
from penstock.core.job import Retention
from penstock.engine.penstock import run_sync
from penstock.stores.journal import compaction
from penstock.worker.worker import Worker
from tests.crash.client import Client


def household(app: Client, options: dict[str, Any]) -> None:
    """Enqueues and works in one process, with a snapshot every few moments, until it dies."""
    compaction.SMALLEST = 20_000
    asyncio.run(_keep_house(app))


async def _keep_house(app: Client) -> None:
    await app.limits.queue("limited", 40)
    working = Worker(
        app,
        name=app.connection.actor,
        concurrency=6,
        sweep=timedelta(seconds=0.1),
        retention=Retention(),
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(working.run())
        tasks.create_task(_produce(app))


async def _produce(app: Client) -> None:
    while True:
        way = app.rng.randrange(3)
        try:
            if way == 0:
                await app.enqueue_many(app.some_jobs())
            elif way == 1:
                singles = [app.enqueue_many([job]) for job in app.some_jobs()]
                for answer in await asyncio.gather(*singles, return_exceptions=True):
                    if isinstance(answer, BaseException):
                        raise answer
            else:
                await asyncio.to_thread(lambda: run_sync(app.enqueue_many([app.any_job()])))
        except QueueFull:
            await asyncio.sleep(0.005)
        await asyncio.sleep(app.rng.uniform(0, 0.004))


def short_script(app: Client, options: dict[str, Any]) -> None:
    """The script of every verb, with a snapshot after every few of them, always the same ones."""
    from tests.crash.clients import script

    compaction.SMALLEST = 1_500
    start = compaction.Compaction.start

    def start_and_wait(self: compaction.Compaction, *args: Any) -> None:
        start(self, *args)
        self.wait()

    compaction.Compaction.start = start_and_wait  # type: ignore[method-assign, assignment] # replaced for the test
    script(app, options)


ROLES = (household, short_script)
