"""The wire to PostgreSQL is cut at every message of an enqueue, a claim and a settle.

Before and after every message of the client, and before every message of the server. Every cut
leaves nothing or all, and the caller learns which.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.core.errors import StoreUnavailable
from penstock.core.job import Job
from penstock.core.lifecycle import Done, State
from penstock.core.query import JobQuery
from penstock.engine.penstock import run_sync
from penstock.stores.postgres.connection import address
from tests.crash.client import LONG_LEASE, Client
from tests.crash.proxy import Proxy
from tests.crash.recording import DOUBT, store_url
from tests.crash.support import assert_promises_kept, client, use
from tests.postgres import PostgresServer, within

MOST = 100
"""More messages than any of these calls sends."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer.create({}) as started:
        yield started


def running(app: Client) -> list[Job]:
    query = JobQuery(states=frozenset({State.RUNNING}), limit=10)
    return run_sync(app.find(query))


def enqueue(near: Client, far: Client) -> None:
    """Two jobs are enqueued, or refused."""
    before = sum(run_sync(near.count()).values())
    new = [far.new(key="k", lease=LONG_LEASE), far.new(tags=("red",), lease=LONG_LEASE)]
    told = succeeds(lambda: run_sync(far.enqueue_many(new)))
    assert sum(run_sync(near.count()).values()) == before + 2 * told


def claim(near: Client, far: Client) -> None:
    """The caller holds what is claimed."""
    run_sync(near.enqueue_many([near.new(lease=LONG_LEASE) for _ in range(2)]))
    held: list[Job] = []
    worker = far.connection.actor
    told = succeeds(lambda: held.extend(run_sync(far.leases.claim(worker=worker, limit=2))))
    assert len(held) == 2 * told
    assert {job.lease for job in running(near)} == {job.lease for job in held}
    for job in held:
        far.handle(job)
        settle_by(near, job)
    for job in claimed(near, 2):
        near.handle(job)
        settle_by(near, job)


def settle(near: Client, far: Client) -> None:
    """A job is done, or still held."""
    run_sync(near.enqueue_many([near.new(lease=LONG_LEASE)]))
    [job] = claimed(near, 1)
    near.handle(job)
    told = succeeds(lambda: run_sync(far.leases.settle([(job, Done())])))
    assert run_sync(near.get(job.id)).state is (State.DONE if told else State.RUNNING)
    if not told:
        settle_by(near, job)


def claimed(near: Client, limit: int) -> list[Job]:
    return run_sync(near.leases.claim(worker=near.connection.actor, limit=limit))


def settle_by(near: Client, job: Job) -> None:
    run_sync(near.leases.settle([(job, Done())]))


def succeeds(call: Callable[[], object]) -> bool:
    try:
        call()
    except StoreUnavailable as error:
        if DOUBT in str(error):
            raise  # the caller has to learn what became of it
        return False
    return True


def cut_before(proxy: Proxy, n: int) -> None:
    proxy.cut_message(n, answered=False)


def cut_after(proxy: Proxy, n: int) -> None:
    proxy.cut_message(n, answered=True)


def cut_answer(proxy: Proxy, n: int) -> None:
    proxy.cut_answer(n)


def ends_transaction(message: bytes) -> bool:
    """Whether this is a COMMIT, a Sync, or what the server says when it is idle again."""
    return message[:1] == b"S" or b"COMMIT" in message or message == b"Z\0\0\0\5I"


@pytest.mark.parametrize("cut", [cut_before, cut_after, cut_answer], ids=lambda cut: cut.__name__)
@pytest.mark.parametrize("act", [enqueue, claim, settle], ids=lambda act: act.__name__)
def test_every_cut_leaves_nothing_or_all(
    act: Callable[[Client, Client], None],
    cut: Callable[[Proxy, int], None],
    server: PostgresServer,
    tmp_path: Path,
) -> None:
    use(tmp_path, server.url)
    with client(tmp_path, clock="server") as near, Proxy(server.url) as proxy:
        act(near, near)
        direct = store_url(tmp_path)
        (tmp_path / "url").write_text(within(proxy.url, address(direct).schema))
        with client(tmp_path, clock="server") as far:
            act(near, far)
            for n in range(MOST):
                cut(proxy, n)
                act(near, far)
                if proxy.cuts == n:
                    break  # the call has no such message
            proxy.cut_nothing()
            act(near, far)
        (tmp_path / "url").write_text(direct)
        assert 2 < proxy.cuts < MOST
        assert any(ends_transaction(message) for message in proxy.cut)
    assert_promises_kept(tmp_path, drained=False)
