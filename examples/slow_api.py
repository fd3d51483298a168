"""Calls to a slow API: within its rate limit, and fair to all customers.

The API allows 20 calls a second and 4 at a time, and 2 at a time for each customer. These limits
are kept in the store, so that any number of workers obeys them together. Customers take turns: one
with many calls does not hold up the others. When the API asks for a pause, the job waits that long,
and no attempt is used up.

    python slow_api.py http://127.0.0.1:9000  # calls GET /customers/NAME/NUMBER
"""

import asyncio
import sys
from datetime import timedelta

import httpx

from penstock import Penstock, RetryPolicy, Snooze, Worker

app = Penstock("sqlite:///calls.db")
TOO_MANY = 429


@app.task(queue="api", retry=RetryPolicy(attempts=5, delay=timedelta(seconds=1)))
async def call(url: str) -> str:
    """Call the API; a call that runs twice only reads."""
    async with httpx.AsyncClient(timeout=30) as http:
        answer = await http.get(url)
    if answer.status_code == TOO_MANY:
        pause = timedelta(seconds=float(answer.headers.get("Retry-After", "1")))
        raise Snooze(pause, "the API asked for a pause")
    answer.raise_for_status()
    return answer.text


async def call_all(url: str, calls: dict[str, int]) -> None:
    """Enqueue so many calls for each customer, the largest first, and make them all."""
    await app.limits.queue("api", concurrency=4, rate=(20, timedelta(seconds=1)))
    await app.limits.throttle("customer-", 2)
    jobs = [
        call.using(tenant=customer, throttle=f"customer-{customer}").new(f"{url}/{customer}/{n}")
        for customer, count in calls.items()
        for n in range(count)
    ]
    await app.enqueue_many(jobs)
    worker = Worker(app, concurrency=10)
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        await app.queues.drain("api", timeout=timedelta(minutes=5))
        worker.stop()


async def main() -> None:
    """Call the API for a large customer and two small ones; show who had to wait how long."""
    async with app:
        await call_all(f"{sys.argv[1]}/customers", {"large": 40, "small": 4, "tiny": 1})
        jobs = [job for job in await app.find() if job.finished_at and job.tenant]
        first = min(job.enqueued_at for job in jobs)
        for customer in ("large", "small", "tiny"):
            ends = [job.finished_at for job in jobs if job.tenant == customer and job.finished_at]
            seconds = (max(ends) - first).total_seconds()
            print(f"{customer}: {len(ends)} calls, the last one after {seconds:.2f} s")


if __name__ == "__main__":
    asyncio.run(main())
