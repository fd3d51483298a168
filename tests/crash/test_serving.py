"""Kill -9 of the server while it answers and of workers that hold events, over HTTP.

The number of kills is a fraction of the environment variable PENSTOCK_CRASH_ROUNDS.
"""

import random
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.core.lifecycle import State
from penstock.engine.penstock import run_sync
from tests import tiers
from tests.crash.history import Violation, check, read_store
from tests.crash.processes import Child, Zygote, until
from tests.crash.recording import Claimed, Settled, read_history
from tests.crash.serving import Caller, Unanswered, free_port, new_event
from tests.crash.support import assert_promises_kept, client, wait_for_another

KILLS = max(10, tiers.amount(80, 200, "PENSTOCK_CRASH_ROUNDS") // 8)
CAST = ("http_publisher", "http_publisher", "http_worker", "http_worker", "http_worker")
LEASE = 1.0


@pytest.mark.timeout(1100 + 4 * KILLS)
@pytest.mark.parametrize("seed", [1])
def test_nothing_is_lost_doubled_or_stuck_over_http(
    seed: int, zygote: Zygote, folder: Path
) -> None:
    rng = random.Random(seed)
    port = free_port()

    def start(role: str) -> Child:
        return zygote.start(role, folder, seed=rng.getrandbits(32), port=port, lease=LEASE)

    with client(folder) as app:
        server, actors = start("http_server"), [start(role) for role in CAST]
        for _ in range(KILLS):
            wait_for_another(app)
            time.sleep(rng.uniform(0, 0.2))
            chance = rng.random()
            if chance < 0.5:
                server.kill()
                server = start("http_server")
            elif chance < 0.9:
                n = rng.randrange(len(CAST))
                actors[n].kill()
                actors[n] = start(CAST[n])
            else:
                oversleep(actors[-1])
        for actor in (*actors[:2], server):
            actor.kill()  # no more events, not even one that the server has received
        server = start("http_server")
        until(lambda: not run_sync(app.store.backlog())[0], "some events are left")
    for actor in (*actors[2:], server):
        actor.kill()
    assert_promises_kept(folder, f"seed {seed}")
    stored = read_store(folder)
    assert sum(job.state is State.DONE for job in stored.jobs.values()) > KILLS


def oversleep(actor: Child) -> None:
    """Stop a worker for longer than a lease; what it held is given to others meanwhile."""
    actor.signal(signal.SIGSTOP)
    time.sleep(2.5 * LEASE)
    actor.signal(signal.SIGCONT)


# Two workers and one event: it is taken from the first, which reports all the same.


def play(zygote: Zygote, folder: Path, **options: Any) -> list[Violation]:
    port = free_port()
    zygote.start("http_server", folder, port=port, lease=600, **options)
    with (
        client(folder, "slow") as slow,
        client(folder, "quick") as quick,
        closing(Caller(slow, port)) as first,
        closing(Caller(quick, port)) as second,
    ):
        publish(first)
        (lost,) = first.pick(1, 60)
        second.insist(f"/events/{lost.id}/reset", {})
        (taken,) = second.pick(1, 60)
        assert taken.id == lost.id
        assert taken.token > lost.token
        first.handle(lost)
        first.report(lost, well=True)
        second.handle(taken)
        second.report(taken, well=True)
    zygote.kill_all()
    return check(read_history(folder), read_store(folder))


def publish(caller: Caller) -> None:
    """As soon as the server is there."""
    caller.insist("/events/subscribe", {"tags": "none", "worker_id": "w", "limit": 1})
    caller.publish([new_event(caller.app)])


def test_server_refuses_a_stale_holder(zygote: Zygote, folder: Path) -> None:
    assert play(zygote, folder) == []
    answers = [note.runs[0][2] for note in read_history(folder) if isinstance(note, Settled)]
    assert answers == [False, True]


def test_server_that_accepts_stale_tokens_is_caught(zygote: Zygote, folder: Path) -> None:
    violations = play(zygote, folder, variant="settles_by_any_token")
    assert {2, 8} & {violation.promise for violation in violations}, violations


def test_server_that_acknowledges_before_it_commits_is_caught(zygote: Zygote, folder: Path) -> None:
    port = free_port()
    server = zygote.start(
        "http_server", folder, port=port, lease=LEASE, variant="acknowledges_before_commit"
    )
    with client(folder, "publisher") as app, closing(Caller(app, port)) as caller:
        publish(caller)
        for _ in range(20):
            caller.publish([new_event(app)])
        server.kill()
        with pytest.raises(Unanswered):
            caller.publish([new_event(app)])
    violations = check(read_history(folder), read_store(folder), drained=False)
    assert 1 in {violation.promise for violation in violations}, violations
    assert not [note for note in read_history(folder) if isinstance(note, Claimed)]
