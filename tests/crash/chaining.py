"""Clients whose jobs wait for others and replace others, and what their history has to show."""

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from penstock.core.dependencies import Edge
from penstock.core.job import Job, JobId, LogEntry, NewJob, OnFailure
from penstock.core.lifecycle import Done, Failed, State
from penstock.core.lifecycle import Event as Happened
from penstock.engine.penstock import Penstock, run_sync
from penstock.stores.sql.additions import Additions
from penstock.stores.sql.transitions import Transitions
from tests.crash.client import Client
from tests.crash.history import Stored, Violation
from tests.crash.recording import Event, Started, store_url
from tests.crash.variants import rewrite

BACKLOG = 60
DEEDS = [["done"], ["done"], ["slow"], ["fail", "done"], ["snooze"], ["permanent"], ["cancel"]]
FREEING = frozenset({State.DONE, State.SUPERSEDED})


def weaver(app: Client, options: dict[str, Any]) -> None:
    """Enqueues chains, jobs after some that were stored before, and ones that replace others."""
    rng, known = app.rng, list[JobId]()
    while True:
        way = rng.randrange(4)
        if run_sync(app.store.backlog())[0] > BACKLOG:
            time.sleep(0.005)
        elif way == 0:
            known += [job.id for job in run_sync(app.enqueue_many(chain(app, rng.randint(2, 5))))]
        elif way == 1:
            after = tuple(rng.sample(known, min(len(known), rng.randint(1, 3))))
            run_sync(app.enqueue_many([woven(app, after=after)]))
        else:
            new = app.new(key=f"s{rng.randrange(3)}", supersede=True, does=rng.choice(DEEDS))
            known += [job.id for job in run_sync(app.enqueue_many([new]))]
        del known[:-20]
        time.sleep(rng.uniform(0, 0.003))


def chain(app: Client, length: int, **options: Any) -> list[NewJob]:
    """Jobs one after the other; their correlation says so."""
    name = f"chain {app.mark()}"
    jobs = [woven(app, correlation=name, **options) for _ in range(length)]
    return [replace(job, follows=(n - 1,) if n else ()) for n, job in enumerate(jobs)]


def woven(app: Client, **options: Any) -> NewJob:
    rng = app.rng
    if rng.random() < 0.3:
        options.setdefault("key", f"k{rng.randrange(3)}")
    options.setdefault("does", rng.choice(DEEDS))
    options.setdefault("on_failure", rng.choice([*OnFailure]))
    return app.new(priority=rng.randrange(11), **options)


def unravel(app: Client, options: dict[str, Any]) -> None:
    """A chain whose first job fails, one that goes well, and two jobs in the place of others."""
    broken = options.get("broken")
    if broken is not None:
        BROKEN[broken]()
    told = {"key": None, "on_failure": OnFailure.CANCEL, "does": ["done"]}
    [bad, *_] = run_sync(app.enqueue_many(chain(app, 3, **told)))
    run_sync(app.enqueue_many(chain(app, 3, **told)))
    for _ in range(3):
        run_sync(app.enqueue_many([app.new(key="s", supersede=True)]))
    for _ in range(5):
        for job in run_sync(app.leases.claim(worker=app.connection.actor, limit=9)):
            outcome = Failed("no", permanent=True) if job.id == bad.id else Done()
            run_sync(app.leases.settle_held([(app.handle(job), outcome)]))
    run_sync(app.close())


ROLES = (weaver, unravel)


# Broken variants


def starts_what_waits() -> None:
    real = Additions._take

    def take(self: Additions, new: NewJob, needs: int = 0) -> Job:
        return real(self, new, 0)

    Additions._take = take  # type: ignore[method-assign] # breaks it on purpose


def ignores_failures() -> None:
    def abandon(self: Transitions, lost: Mapping[int, tuple[int, State, str]]) -> None:
        pass

    Transitions.abandon = abandon  # type: ignore[method-assign] # breaks it on purpose


def runs_the_superseded() -> None:
    rewrite("move", "stage = ?3,", "stage = iif(?3 = 7, 0, ?3),")


def forgets_who_waits() -> None:
    rewrite("add_edges", "FROM json_each(?)", "FROM json_each(?) WHERE false")


BROKEN: Mapping[str, Callable[[], None]] = {
    "starts what waits": starts_what_waits,
    "ignores failures": ignores_failures,
    "runs the superseded": runs_the_superseded,
    "forgets who waits": forgets_who_waits,
}


# The checker


def read_edges(folder: Path, stored: Stored) -> list[Edge]:
    app = Penstock(store_url(folder))
    try:
        return run_sync(app.store.edges([JobId(job_id) for job_id in stored.jobs]))
    finally:
        run_sync(app.close())


def check_chains(
    history: Sequence[Event], stored: Stored, edges: Sequence[Edge]
) -> list[Violation]:
    """Whatever began too early, although it should not have, or waits for nothing."""
    needed: dict[int, list[Edge]] = defaultdict(list)
    for edge in edges:
        needed[edge.job_id].append(edge)
    return [
        *_chains_are_whole(stored, needed),
        *_nothing_begins_too_early(stored, needed),
        *_superseded_never_run(history, stored),
        *_edges_are_resolved(stored, edges),
        *_abandoned_for_a_reason(stored, needed),
    ]


def _chains_are_whole(stored: Stored, needed: Mapping[int, Sequence[Edge]]) -> Iterator[Violation]:
    chains: dict[str, list[int]] = defaultdict(list)
    for job in stored.jobs.values():
        if job.correlation is not None:
            chains[job.correlation].append(job.id)
    for ids in chains.values():
        for before, job_id in itertools.pairwise(sorted(ids)):
            if before not in {edge.needed for edge in needed.get(job_id, ())}:
                yield Violation(1, f"job {job_id} forgot that it follows job {before}")


def _nothing_begins_too_early(
    stored: Stored, needed: Mapping[int, Sequence[Edge]]
) -> Iterator[Violation]:
    states: dict[int, State] = {}
    for entry in stored.log:
        if entry.event is Happened.CLAIMED:
            for edge in needed.get(entry.job_id, ()):
                state = states[edge.needed]
                if not state.final:
                    yield Violation(3, f"job {entry.job_id} began, job {edge.needed} is {state}")
                elif edge.on_failure is OnFailure.CANCEL and state not in FREEING:
                    yield Violation(3, f"job {entry.job_id} began after {edge.needed} was {state}")
        states[entry.job_id] = entry.state


def _superseded_never_run(history: Sequence[Event], stored: Stored) -> Iterator[Violation]:
    """Nobody is given them or runs them from then on; a token is the number of its log entry."""
    since = {entry.job_id: entry.id for entry in stored.log if entry.event is Happened.SUPERSEDED}
    for entry in stored.log:
        if entry.event is Happened.CLAIMED and entry.id > since.get(entry.job_id, entry.id):
            yield Violation(3, f"job {entry.job_id} was claimed after it was superseded")
    for note in history:
        if isinstance(note, Started) and note.token > since.get(JobId(note.job), note.token):
            yield Violation(3, f"job {note.job} ran after it was superseded")


def _edges_are_resolved(stored: Stored, edges: Sequence[Edge]) -> Iterator[Violation]:
    for edge in edges:
        if edge.resolved is not stored.jobs[edge.needed].state.final:
            yield Violation(4, f"job {edge.job_id} does not know how job {edge.needed} stands")
    left: dict[int, int] = defaultdict(int)
    for edge in edges:
        left[edge.job_id] += not edge.resolved
    for job in stored.jobs.values():
        if job.needs != left[job.id]:
            yield Violation(4, f"job {job.id} waits for {job.needs}, of {left[job.id]} that last")


def _abandoned_for_a_reason(
    stored: Stored, needed: Mapping[int, Sequence[Edge]]
) -> Iterator[Violation]:
    for job_id, edges in needed.items():
        ends = {stored.jobs[edge.needed].state for edge in edges}
        strict = any(edge.on_failure is OnFailure.CANCEL for edge in edges)
        if _was_abandoned(stored.chains[job_id]) and not (strict and ends - FREEING):
            yield Violation(4, f"job {job_id} was cancelled, although all went well")


def _was_abandoned(log: Sequence[LogEntry]) -> bool:
    return log[-1].event is Happened.CANCELLED and log[-1].token is None
