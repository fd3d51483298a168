"""Jobs that are the same on every machine and every day."""

from datetime import UTC, datetime, timedelta

from penstock import Done, Failed, NewJob, Note, Penstock, Progress, RetryPolicy, WorkerInfo
from penstock.testing import Clock

NOON = datetime(2030, 1, 1, 12, 0, 30, tzinfo=UTC)
TRACEBACK = """ConnectionError: the mailbox of ada does not answer
Traceback (most recent call last):
  File "mail.py", line 12, in send
    server.deliver(to)
ConnectionError: the mailbox of ada does not answer"""


async def sample() -> tuple[Penstock, Clock]:
    """A morning's work: four queues, one paused, one full; something of every state."""
    clock = Clock(NOON - timedelta(minutes=9))
    app = Penstock("memory://", clock=clock, actor="ada@desk")
    for name, queues in (("web1:4711", None), ("web2:4712", ("mail", "images"))):
        await app.store.greet([_worker(name, queues, clock.now)])
    for n in range(8):
        await _send(app, clock, 3 + n)
    await _fail(app, clock)
    await _wait(app)
    await _run(app, clock)
    await _repeat(app)
    clock.set(NOON - timedelta(seconds=5))
    for name, queues in (("web1:4711", None), ("web2:4712", ("mail", "images"))):
        await app.store.greet([_worker(name, queues, NOON - timedelta(minutes=9))])
    clock.set(NOON)
    return app, clock


def _worker(name: str, queues: tuple[str, ...] | None, started_at: datetime) -> WorkerInfo:
    return WorkerInfo(
        name=name,
        host=name.partition(":")[0],
        pid=1,
        queues=queues,
        concurrency=4,
        started_at=started_at,
        seen_at=started_at,
    )


async def _send(app: Penstock, clock: Clock, n: int) -> None:
    mail = NewJob(task="send", payload='{"to": "grace"}', queue="mail")
    await app.enqueue_many([mail] * n)
    for job in await app.claim(worker="web2:4712", limit=n, queues=["mail"]):
        clock.advance(timedelta(milliseconds=400))
        await app.settle([(job, Done())])
    clock.advance(timedelta(minutes=1) - n * timedelta(milliseconds=400))


async def _fail(app: Penstock, clock: Clock) -> None:
    twice = RetryPolicy(attempts=2, delay=timedelta(seconds=5), jitter=0)
    mail = NewJob(
        task="send", payload='{"to": "ada"}', queue="mail", retry=twice, tags=("urgent", "paid")
    )
    await app.enqueue_many([mail])
    for _ in range(2):
        (job,) = await app.claim(worker="web1:4711", queues=["mail"])
        clock.advance(timedelta(seconds=2))
        await app.settle([(job, Failed(TRACEBACK))])
        clock.advance(timedelta(seconds=5))


async def _wait(app: Penstock) -> None:
    await app.enqueue_many([NewJob(task="report", payload='{"month": 1}', queue="reports")] * 3)
    await app.pause("reports")
    await app.limit("exports", 2)
    export = NewJob(task="export", payload="{}", queue="exports", delay=timedelta(hours=1))
    await app.enqueue_many([export] * 2)
    ended = await app.enqueue_many([NewJob(task="report", payload="{}", queue="reports")])
    await app.cancel(ended[0].id, "not needed")


async def _repeat(app: Penstock) -> None:
    report = NewJob(task="report", payload="{}", queue="reports")
    await app.schedule("nightly", report, cron="0 2 * * *", timezone="Europe/Berlin")
    await app.schedule("sweep", report, every=timedelta(minutes=5))
    await app.pause_schedule("sweep")


async def _run(app: Penstock, clock: Clock) -> None:
    resize = NewJob(task="resize", payload='{"count": 40}', queue="images", key="album-7")
    await app.enqueue_many([resize] * 2)
    clock.advance(timedelta(seconds=1))
    (job,) = await app.claim(worker="web1:4711", queues=["images"])
    said = clock.now + timedelta(seconds=10)
    progress = Progress(30, 40, "img-30.png", said, clock.now, 10)
    await app.note([Note(lease=job.lease, progress=progress)])
