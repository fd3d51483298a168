"""The live stream: every entry of the log once, in order, whatever happens to the connection."""

import asyncio
import contextlib
import random
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import Job, NewJob, Penstock
from penstock.leases import Done, Failed
from penstock.server import stream as stream_module
from penstock.server.app import Service
from penstock.server.stream import LogFollower
from penstock.testing import faulty
from tests.environment import SOON
from tests.server.support import Api, Said, listening, streaming, transitions

ROOT = Path(__file__).parents[2]
NEW = NewJob(task="t", payload="{}", queue="q", tags=("x",))


@pytest.fixture
async def address(service: Service) -> AsyncIterator[str]:
    async with listening(service) as address:
        yield address


def follower_of(service: Service) -> LogFollower:
    [route] = [one for one in service.routes if one.declared.path == "/api/v1/stream"]
    follower: LogFollower = route.handler.__self__._follower  # type: ignore[attr-defined] # a bound method
    return follower


async def take(stream: AsyncIterator[Said], n: int) -> list[Said]:
    async with asyncio.timeout(SOON):
        return [await anext(stream) for _ in range(n)]


async def until(condition: Any) -> None:
    async with asyncio.timeout(SOON):
        while not condition():  # noqa: ASYNC110 - the service has no event for it
            await asyncio.sleep(0.001)


async def work(app: Penstock) -> Job:
    """A job that is enqueued, claimed and done: three entries."""
    await app.enqueue_many([NEW])
    [job] = await app.leases.claim(worker="w")
    [done] = await app.leases.settle([(job, Done())])
    return done


async def test_stream_begins_now_and_tells_what_happens(app: Penstock, address: str) -> None:
    await work(app)
    newest = await app.newest_log()
    async with streaming(address) as stream:
        assert (await take(stream, 1))[0].id == newest
        job = await work(app)
        found = await take(transitions(stream), 3)
    assert [one.id for one in found] == [newest + 1, newest + 2, newest + 3]
    assert [one.data["entry"]["event"] for one in found] == ["enqueued", "claimed", "done"]
    assert found[1].data["entry"]["actor"] == "w"
    assert [one.data["job"] for one in found] == [
        {"queue": "q", "task": "t", "tags": ["x"], "state": state}
        for state in ("pending", "running", "done")
    ]
    assert {one.data["entry"]["job_id"] for one in found} == {job.id}


async def test_stream_goes_on_behind_an_entry(app: Penstock, address: str) -> None:
    for _ in range(3):
        await work(app)
    ids = [entry.id for entry in await app.log()]
    async with streaming(address, after=0) as stream:
        assert [one.id for one in await take(transitions(stream), 9)] == ids
    async with streaming(address, after=ids[4]) as stream:
        assert [one.id for one in await take(transitions(stream), 4)] == ids[5:]
    async with streaming(address, after=0, last=ids[6]) as stream:
        assert [one.id for one in await take(transitions(stream), 2)] == ids[7:]


async def test_id_of_another_store_begins_now(app: Penstock, address: str) -> None:
    await work(app)
    async with streaming(address, last=10**9) as stream:
        assert (await take(stream, 1))[0].id == 3
        await work(app)
        assert [one.id for one in await take(transitions(stream), 3)] == [4, 5, 6]


async def test_filters_choose_entries(app: Penstock, address: str) -> None:
    for queue in ("a", "b"):
        for task in ("s", "t"):
            await app.enqueue_many([NewJob(task=task, payload="{}", queue=queue)])

    async def jobs(n: int, **query: Any) -> list[int]:
        async with streaming(address, after=0, **query) as stream:
            found = await take(transitions(stream), n)
        return [one.data["entry"]["job_id"] for one in found]

    assert await jobs(2, queue="b") == [3, 4]
    assert await jobs(2, task="t") == [2, 4]
    assert await jobs(1, queue="b", task="t") == [4]
    assert await jobs(1, job=3) == [3]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("after=-1", "after"),
        ("after=x", "after"),
        (f"after={2**63}", "after"),
        ("queue=", "queue"),
        ("task=", "task"),
        ("job=0", "job"),
        ("tags=x", "tags"),
    ],
)
async def test_wrong_parameter_is_named(api: Api, query: str, field: str) -> None:
    assert await api.refused("GET", f"/stream?{query}") == field


@pytest.mark.parametrize("given", ["x", "-1", "1.5", str(2**63), "9" * 5000])
async def test_wrong_last_event_id_is_refused(api: Api, given: str) -> None:
    answer = await api.client.get("/api/v1/stream", headers={"Last-Event-ID": given})
    assert (answer.status_code, answer.json()["field"]) == (422, "Last-Event-ID")


async def test_silent_stream_gives_a_sign_and_moves_the_place(
    app: Penstock, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "KEEP_ALIVE", 0.01)
    async with streaming(address, queue="none") as stream:
        await take(stream, 2)
        await work(app)
        async with asyncio.timeout(SOON):
            async for one in stream:
                assert (one.event, one.comment) == (None, ": still here")
                if one.id == 3:
                    break


async def test_stream_ends_when_the_service_stops(service: Service, address: str) -> None:
    async with streaming(address) as stream:
        await take(stream, 1)
        service.begin_shutdown()
        async with asyncio.timeout(SOON):
            assert [one async for one in stream if one.event] == []


async def test_reader_that_went_away_is_forgotten(
    app: Penstock, service: Service, address: str
) -> None:
    follower = follower_of(service)
    async with streaming(address) as stream:
        await take(stream, 1)
        assert follower._readers == 1
    await until(lambda: follower._readers == 0)
    await work(app)
    async with streaming(address, after=0) as stream:  # the follower has missed what came meanwhile
        assert [one.id for one in await take(transitions(stream), 3)] == [1, 2, 3]
        await work(app)
        assert [one.id for one in await take(transitions(stream), 3)] == [4, 5, 6]


async def test_many_readers_cost_no_more_questions_than_one(
    app: Penstock, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "_POLL", 3600)
    with faulty(app) as faults:
        async with contextlib.AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(streaming(address)) for _ in range(30)]
            for stream in streams:
                await take(stream, 1)
            await app.enqueue_many([NEW])
            for stream in streams:
                await take(transitions(stream), 1)
            before = faults.calls["log"]
            await app.enqueue_many([NEW] * 10)
            for stream in streams:
                await take(transitions(stream), 10)
            # Up to the last entry, and once more in vain, for each notification.
            assert 1 <= faults.calls["log"] - before <= 6


async def test_stream_survives_a_store_that_fails(
    app: Penstock, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "_RETRY_PAUSE", 0.001)
    with faulty(app) as faults:
        async with streaming(address) as stream:
            await take(stream, 1)
            faults.fail("log", every=2)
            await work(app)
            assert [one.id for one in await take(transitions(stream), 3)] == [1, 2, 3]
            assert "log" in faults.struck


async def fill(app: Penstock, jobs: int = 100) -> None:
    """A log of ten megabytes."""
    await app.enqueue_many([NEW] * jobs)
    held = await app.leases.claim(worker="w", limit=jobs)
    await app.leases.settle([(job, Failed("x" * 100_000, permanent=True)) for job in held])


async def test_reader_that_does_not_read_is_cut_off_and_comes_back_by_its_last_id(
    app: Penstock, service: Service, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "SLOW", 0.05)
    monkeypatch.setattr(stream_module, "KEEP_ALIVE", 0.1)  # what comes last may fill the buffers
    follower = follower_of(service)
    host, _, port = address.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(slow, b"GET /api/v1/stream?after=0 HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: follower._readers == 1)
        await fill(app)
        await until(lambda: follower._readers == 0)
    assert follower._bytes <= stream_module.KEPT_BYTES
    monkeypatch.setattr(stream_module, "SLOW", SOON)
    async with streaming(address, after=200) as stream:
        assert [one.id for one in await take(transitions(stream), 100)] == list(range(201, 301))


async def test_no_more_than_so_much_of_the_log_is_kept_in_memory(
    app: Penstock, service: Service, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "KEPT_BYTES", 10_000)
    follower = follower_of(service)
    async with streaming(address) as first, streaming(address) as late:
        await take(first, 1)
        await take(late, 1)
        for n in range(50):
            await work(app)
            found = await take(transitions(first), 3)
            assert [one.id for one in found] == [3 * n + 1, 3 * n + 2, 3 * n + 3]
        assert 0 < follower._bytes <= 10_000
        assert follower._start > 0
        assert follower._bytes == sum(len(item.frame) for item in follower._items)
        assert [one.id for one in await take(transitions(late), 150)] == list(range(1, 151))


async def follow(addresses: list[str], seen: list[int], stop: int, seed: int) -> None:
    """Read every entry up to `stop`, reconnecting after random numbers of them."""
    chance = random.Random(seed)
    while not seen or seen[-1] < stop:
        patience = chance.choice((0, 1, 2, 5, 20, 100))
        last = seen[-1] if seen else None
        query = {} if seen else {"after": 0}
        with contextlib.suppress(httpx.TransportError):
            async with streaming(chance.choice(addresses), last=last, **query) as stream:
                async for one in transitions(stream):
                    if not patience:
                        break  # what was sent and not read is lost with the connection
                    seen.append(one.id or 0)
                    patience -= 1
                    if one.id == stop:
                        return


async def write(app: Penstock, jobs: int, worker: str) -> None:
    for n in range(jobs):
        await app.enqueue_many([NEW] * (1 + n % 3))
        held = await app.leases.claim(worker=worker, limit=2)
        await app.leases.settle_held([(job, Done() if n % 5 else Failed("no")) for job in held])


async def check_no_gap(app: Penstock, addresses: list[str]) -> None:
    """Writers and readers run at the same time; the last entry tells the readers to stop."""
    seen: list[list[int]] = [[] for _ in range(4)]
    rounds = 40
    # Each round logs what it enqueues, claims and settles; the readers have to come that far.
    stop = rounds * 2
    async with asyncio.timeout(100), asyncio.TaskGroup() as group:
        for seed, one in enumerate(seen):
            group.create_task(follow(addresses, one, stop, seed))
        for worker in ("v", "w"):
            group.create_task(write(app, rounds, worker))
    ids = [int(entry.id) for entry in await app.log(limit=100_000)]
    assert len(ids) > stop
    for one in seen:
        assert one == ids[: ids.index(stop) + 1]


async def test_nothing_is_left_out_or_doubled_when_readers_come_back_at_random(
    app: Penstock, address: str
) -> None:
    await check_no_gap(app, [address])


@contextlib.asynccontextmanager
async def serving(url: str) -> AsyncIterator[str]:
    """Serve the store from another process."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.server.support", url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(SOON):
            yield (await process.stdout.readline()).decode().strip()
    finally:
        process.stdin.close()
        async with asyncio.timeout(SOON):
            await process.wait()


async def test_readers_may_change_between_two_processes_on_one_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with Penstock(url) as app:
        await app.newest_log()
        async with serving(url) as one, serving(url) as two:
            await check_no_gap(app, [one, two])
