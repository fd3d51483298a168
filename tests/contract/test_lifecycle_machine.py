"""Every store against a model that is too simple to be wrong, over random lives of a few jobs."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from penstock.core import lifecycle
from penstock.core.errors import Overtaken, QueueFull, TransitionRefused
from penstock.core.job import Claim, Job, JobId, LogId, NewJob, OnFailure, Retention, Scope
from penstock.core.lifecycle import Event, Move, State, Waiting
from penstock.core.limits import Limit
from penstock.core.queue import QueueSettings
from penstock.core.retry import RetryPolicy
from penstock.core.schedule import Firing, Missed, Rhythm, Schedule, plan, redefined, resumed
from penstock.core.superseding import Tail
from penstock.core.transition import Change
from penstock.stores.journal import compaction
from tests import tiers
from tests.contract.support import (
    MERGED,
    SECOND,
    STORES,
    ManualClock,
    drive,
    everything,
    open_named,
    totals,
)

PENDING, RUNNING = State.PENDING, State.RUNNING
UNFINISHED = {PENDING, RUNNING}
REST = 10 * SECOND
# Steps of the clock are whole seconds, so that no lease or retention ends on a step exactly.
LEASE = timedelta(seconds=25.5)
KEEP = Retention(finished=timedelta(seconds=60.25), failed=timedelta(seconds=120.25))

OUTCOMES: dict[str, lifecycle.Outcome] = {
    "done": lifecycle.Done(result="[1]"),
    "failed": lifecycle.Failed("boom"),
    "broken": lifecycle.Failed("boom", permanent=True),
    "snoozed": lifecycle.Snoozed(5 * SECOND),
    "cancelled": lifecycle.Cancelled(),
}

new_jobs = st.builds(
    NewJob,
    task=st.just("t"),
    payload=st.just("{}"),
    queue=st.sampled_from("ab"),
    priority=st.integers(4, 6),
    delay=st.sampled_from([None, None, 5 * SECOND, 20 * SECOND]),
    key=st.sampled_from([None, None, "k", "l"]),
    dedupe=st.sampled_from([None, "d", "e"]),
    scope=st.sampled_from([Scope.PENDING, Scope.PENDING, Scope.UNFINISHED]),
    tags=st.sampled_from([(), ("x",), ("x", "y"), ("y",)]),
    retry=st.builds(
        RetryPolicy,
        attempts=st.integers(1, 3),
        delay=st.just(REST),
        factor=st.just(1),
        jitter=st.just(0),
    ),
    tenant=st.sampled_from([None, None, None, "m", "n"]),
    throttle=st.sampled_from([None, None, None, "x", "y"]),
    lease=st.just(LEASE),
)
picks = st.integers(0, 1000)
WINDOWS = st.sampled_from([10, 30])
FOREVER = datetime.max.replace(tzinfo=UTC)
ANYTHING = Claim(worker="w", limit=1)


@dataclass
class Known:
    """A job as the model has it."""

    asked: NewJob
    id: int
    run_at: datetime
    state: State = PENDING
    attempt: int = 0
    token: int = 0
    worker: str | None = None
    expires_at: datetime | None = None
    stopping: bool = False
    finished_at: datetime | None = None
    error: str | None = None
    result: str | None = None
    open: dict[int, OnFailure] = field(default_factory=dict)


@dataclass
class Model:
    """The jobs in a dict, every question answered by looking at all of them."""

    jobs: dict[int, Known] = field(default_factory=dict)
    # Until when a queue is paused.
    paused: dict[str, datetime] = field(default_factory=dict)
    limits: dict[str, int | None] = field(default_factory=dict)
    # How many may run: of a queue, of the task, of a throttle.
    most: dict[tuple[str, str], int | None] = field(default_factory=dict)
    # How many may start within a time, and when which started while there was such a limit.
    rates: dict[str, tuple[int, timedelta]] = field(default_factory=dict)
    starts: dict[str, list[datetime]] = field(default_factory=dict)
    schedules: dict[str, Schedule] = field(default_factory=dict)
    logged: list[tuple[int, Event, State, str]] = field(default_factory=list)

    def copy(self) -> "Model":
        jobs = {place: copy(job) for place, job in self.jobs.items()}
        for job in jobs.values():
            job.open = dict(job.open)
        return replaced(self, jobs=jobs, logged=list(self.logged))

    def rival(self, dedupe: str | None, scope: Scope, but: int | None = None) -> Known | None:
        same = [
            job
            for job in self.jobs.values()
            if dedupe is not None and job.asked.dedupe == dedupe and job.id != but
        ]
        for job in same:
            if job.state is PENDING:
                return job
        for job in same:
            if job.state is RUNNING and Scope.UNFINISHED in (scope, job.asked.scope):
                return job
        return None

    def waiting(self, job: Known, now: datetime) -> Waiting | None:
        if job.state is not PENDING:
            return None
        if job.open:
            return Waiting.BLOCKED
        if job.asked.key is not None:
            line = [
                other
                for other in self.jobs.values()
                if other.asked.key == job.asked.key and other.state in UNFINISHED
            ]
            if any(other.state is RUNNING or other.id < job.id for other in line):
                return Waiting.BLOCKED
        return Waiting.READY if job.run_at <= now else Waiting.SCHEDULED

    def fitting(self, wanted: Claim, now: datetime) -> list[Known]:
        """The ready jobs that a claim asks for, whatever limits say, in their order."""
        fitting = [
            job
            for job in self.jobs.values()
            if self.waiting(job, now) is Waiting.READY
            and not self.is_paused(job.asked.queue, now)
            and (wanted.queues is None or job.asked.queue in wanted.queues)
            and (not wanted.tags or set(job.asked.tags) & set(wanted.tags))
        ]
        return sorted(fitting, key=lambda job: (-job.asked.priority, job.run_at, job.id))

    def is_paused(self, queue: str, now: datetime) -> bool:
        return self.paused.get(queue, now) > now

    def claimable(self, wanted: Claim, now: datetime) -> list[Known]:
        """What a claim returns where tenants do not take turns."""
        taken: list[Known] = []
        for job in self.fitting(wanted, now):
            if len(taken) < wanted.limit and self.has_room(job, taken, now):
                taken.append(job)
        return taken

    def has_room(self, job: Known, taken: Iterable[Known], now: datetime) -> bool:
        """Whether no limit keeps a ready job from starting, given what runs and was taken."""
        if (rate := self.rates.get(job.asked.queue)) is not None:
            starts = self.counted(job.asked.queue, rate[1], now)
            if len(starts) + [one.asked.queue for one in taken].count(job.asked.queue) >= rate[0]:
                return False
        busy = [*(one for one in self.jobs.values() if one.state is RUNNING), *taken]
        rooms: list[tuple[int | None, list[str | None]]] = [
            (self.most.get(("queue", job.asked.queue)), [one.asked.queue for one in busy]),
            (self.most.get(("task", "t")), [one.asked.task for one in busy]),
        ]
        counted = [job.asked.queue, job.asked.task]
        if job.asked.throttle is not None:
            most = self.most.get(("throttle", job.asked.throttle))
            rooms.append((1 if most is None else most, [one.asked.throttle for one in busy]))
            counted.append(job.asked.throttle)
        return all(
            most is None or names.count(name) < most
            for (most, names), name in zip(rooms, counted, strict=True)
        )

    def counted(self, queue: str, window: timedelta, now: datetime) -> list[datetime]:
        """The starts that lie in a window which ends now."""
        return [at for at in self.starts.get(queue, []) if now - window < at]

    def start(self, queue: str, now: datetime) -> None:
        if (rate := self.rates.get(queue)) is not None:
            self.starts[queue] = [*self.counted(queue, rate[1], now), now]

    def tail(self, key: str | None) -> Known | None:
        """The newest pending job of a key."""
        line = [job for job in self.jobs.values() if job.asked.key == key and job.state is PENDING]
        return max(line, key=lambda job: job.id, default=None)

    def release(self, actor: str, now: datetime) -> None:
        """Tell those that wait for a job that it has ended, and those behind them."""
        told = True
        while told:
            told = False
            for job in self.jobs.values():
                for needed in [one for one in job.open if self.jobs[one].state.final]:
                    told = True
                    rule = job.open.pop(needed)
                    self.tell(job, self.jobs[needed].state, rule, actor, now)

    def ahead(self, place: int) -> set[int]:
        """A job and all that have to end before it begins."""
        ahead, found = set[int](), [place]
        while found:
            job = self.jobs[found.pop()]
            if job.id not in ahead:
                ahead.add(job.id)
                found += [*job.open, *(one.id for one in self.line(job) if job.state is PENDING)]
        return ahead

    def line(self, job: Known) -> list[Known]:
        """The unfinished jobs of its key that come before a job."""
        return [
            one
            for one in self.jobs.values()
            if job.asked.key is not None
            and (one.asked.key, one.id != job.id) == (job.asked.key, True)
            and (one.state is RUNNING or (one.state is PENDING and one.id < job.id))
        ]

    def hand_over(self, ended: Known, successor: Known) -> None:
        """Those that wait for the one wait for the other, unless that waits for them."""
        for job in self.jobs.values():
            if ended.id in job.open and job.id not in self.ahead(successor.id):
                job.open = {successor.id: job.open[ended.id], **job.open}
                del job.open[ended.id]

    def waits_for_itself(self, job: Known) -> bool:
        """Whether a cancelled job, back in its key, would wait for one that comes after it."""
        others = [self.jobs[one] for one in self.ahead(job.id) - {job.id}]
        return job.state is State.CANCELLED and any(
            one.asked.key == job.asked.key and one.id > job.id
            for one in others
            if job.asked.key is not None and one.state in UNFINISHED
        )

    def tell(self, job: Known, state: State, rule: OnFailure, actor: str, now: datetime) -> None:
        succeeded = state in {State.DONE, State.SUPERSEDED}
        if job.state is PENDING and not succeeded and rule is OnFailure.CANCEL:
            self.end(job, State.CANCELLED, now)
            self.log(job, Event.CANCELLED, actor)

    def log(self, job: Known, event: Event, actor: str) -> None:
        self.logged.append((job.id, event, job.state, actor))

    def end(self, job: Known, state: State, now: datetime) -> None:
        job.state, job.finished_at = state, now
        job.expires_at, job.stopping = None, False

    def back(self, job: Known, run_at: datetime, now: datetime) -> None:
        rival = self.rival(job.asked.dedupe, job.asked.scope, but=job.id)
        if job.stopping:
            self.end(job, State.CANCELLED, now)
        elif rival is None and not self.waits_for_itself(job):
            job.state, job.run_at = PENDING, run_at
            job.worker = job.expires_at = job.finished_at = None
        elif rival is not None and job.state is RUNNING:
            self.end(job, State.SUPERSEDED, now)
            self.hand_over(job, rival)
        else:
            raise TransitionRefused

    def settle(self, job: Known, outcome: str, now: datetime) -> None:
        """How a run ended, and so what becomes of the job."""
        left = job.attempt < job.asked.retry.attempts
        if outcome in {"failed", "broken", "expired"}:
            job.error = (
                f"the lease of worker {job.worker} ran out" if outcome == "expired" else "boom"
            )
        if outcome == "done":
            self.end(job, State.DONE, now)
            job.error, job.result = None, "[1]"
        elif outcome == "cancelled" or (outcome == "broken" and job.stopping):
            self.end(job, State.CANCELLED, now)
        elif outcome == "snoozed":
            job.attempt -= 1
            self.back(job, now + 5 * SECOND, now)
        elif outcome == "broken" or not (left or job.stopping):
            self.end(job, State.FAILED, now)
        else:
            scattered = max(REST, LEASE) / 2 if job.attempt > 1 else 0 * SECOND
            self.back(job, now + (REST if outcome == "failed" else scattered), now)
        event = {"broken": Event.FAILED}.get(outcome) or Event(outcome)
        self.log(job, event, "w")


class Life(RuleBasedStateMachine):
    """Does everything to a store that can be done to it, and to a model."""

    store_name = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-machine-"))
        self.clock = ManualClock()
        self.store = open_named(self.store_name, self.folder, self.clock)
        self.model = Model()
        self.claimed: list[Job] = []
        self.highest = 0
        self.read: LogId = LogId(0)
        self.compared = 0
        self.newest_entry: dict[int, int] = {}

    def teardown(self) -> None:
        drive(self.store.close())
        shutil.rmtree(self.folder)

    # What can be done

    @precondition(lambda self: self.store_name == "journal")
    @rule()
    def open_again(self) -> None:
        """All that is in memory only is lost."""
        drive(self.store.close())
        self.store = open_named(self.store_name, self.folder, self.clock)

    @initialize(batch=st.lists(new_jobs, min_size=2, max_size=6))
    def begin(self, batch: list[NewJob]) -> None:
        self.add(batch)

    @rule(batch=st.lists(new_jobs, min_size=1, max_size=3))
    def add(self, batch: list[NewJob]) -> None:
        self.put(batch, lambda: self.store.add(batch, actor="p"))

    def put(self, batch: Sequence[NewJob], write: Callable[[], Any]) -> list[Job]:
        """Let the store write these jobs, by whatever verb; none if they do not fit in."""
        trial = self.model.copy()
        asked: list[int] = []
        for new in batch:
            rival = trial.rival(new.dedupe, new.scope)
            if rival is None:
                due = new.run_at or self.now + (new.delay or 0 * SECOND)
                fresh = Known(new, 10**9 + len(asked), due)
                needed = [*new.after, *(asked[place] for place in new.follows)]
                fresh.open = dict.fromkeys(needed, new.on_failure)
                trial.jobs[fresh.id] = rival = fresh
            asked.append(rival.id)
        full = self.over_limit(trial)
        if full:
            with pytest.raises(QueueFull):
                drive(write())
            return []
        answer: list[Job] = drive(write())
        names: dict[int, int] = {}
        for new, place, job in zip(batch, asked, answer, strict=True):
            if place >= 10**9 and place not in names:
                assert not job.duplicate
                assert job.id > self.highest
                self.highest = names[place] = job.id
                known = Known(new, job.id, trial.jobs[place].run_at)
                open_ends = trial.jobs[place].open
                known.open = {names.get(one, one): rule for one, rule in open_ends.items()}
                self.model.jobs[job.id] = known
                self.model.log(known, Event.ENQUEUED, "p")
            else:
                assert job.duplicate
                assert job.id == names.get(place, place)
        self.model.release("p", self.now)
        return answer

    @precondition(lambda self: self.model.jobs)
    @rule(
        batch=st.lists(new_jobs, min_size=1, max_size=3),
        needed=st.lists(picks, max_size=3),
        on_failure=st.sampled_from(OnFailure),
    )
    def add_after(self, batch: list[NewJob], needed: list[int], on_failure: OnFailure) -> None:
        stored = list(self.model.jobs)
        after = tuple(JobId(stored[pick % len(stored)]) for pick in needed)
        self.add(
            [
                replace(
                    new,
                    after=after if place == 0 else (),
                    follows=() if place == 0 else (place - 1,),
                    on_failure=on_failure,
                )
                for place, new in enumerate(batch)
            ]
        )

    @precondition(lambda self: self.of(RUNNING))
    @rule(pick=picks, outcome=st.sampled_from(["", "failed", "snoozed"]))
    def add_again(self, pick: int, outcome: str) -> None:
        """What a "run again" does; and then the first run wants another attempt."""
        self.add([replace(self.pick(pick, RUNNING)[0].asked, after=(), follows=())])
        if outcome:
            self.settle([(pick, outcome)])

    @rule(
        new=new_jobs.filter(lambda new: new.key is not None),
        replaces=st.booleans(),
        stale=st.sampled_from([False, False, False, True]),
        needed=st.lists(picks, max_size=1),
    )
    def supersede(self, new: NewJob, replaces: bool, stale: bool, needed: list[int]) -> None:
        stored = list(self.model.jobs)
        after = tuple(JobId(stored[pick % len(stored)]) for pick in needed if stored)
        new = replace(new, supersede=True, after=after)
        newest = self.model.tail(new.key)
        found = [] if newest is None else drive(self.store.get([JobId(newest.id)]))
        if stale:
            job = replace(found[0], version=LogId(found[0].version - 1)) if found else None
            others = [one for one in self.of(PENDING) if one.asked.key != new.key]
            if job is None and others:
                (job,) = drive(self.store.get([JobId(others[0].id)]))
            if job is not None:
                with pytest.raises(Overtaken):
                    drive(self.store.add([new], actor="p", tail=Tail(job=job, replaces=replaces)))
            return
        tail = Tail(job=found[0] if found else None, replaces=replaces)
        if rival := self.model.rival(new.dedupe, new.scope):
            [answer] = drive(self.store.add([new], actor="p", tail=tail))
            assert (answer.id, answer.duplicate) == (rival.id, True)
            return
        leaves = newest if replaces else None
        pending = [one for one in self.of(PENDING) if one is not leaves]
        after_it = sum(one.asked.queue == new.queue for one in pending) + 1
        before = sum(one.asked.queue == new.queue for one in self.of(PENDING))
        limit = self.model.limits.get(new.queue)
        if limit is not None and after_it > max(limit, before):
            with pytest.raises(QueueFull):
                drive(self.store.add([new], actor="p", tail=tail))
            return
        [job] = drive(self.store.add([new], actor="p", tail=tail))
        assert job.id > self.highest
        self.highest = job.id
        known = Known(new, job.id, self.now + (new.delay or 0 * SECOND))
        known.open = dict.fromkeys(after, new.on_failure)
        self.model.jobs[job.id] = known
        self.model.log(known, Event.ENQUEUED, "p")
        if leaves is not None:
            known.open = {**leaves.open, **known.open}
            self.model.hand_over(leaves, known)
            self.model.end(leaves, State.SUPERSEDED, self.now)
            self.model.log(leaves, Event.SUPERSEDED, "p")
        self.model.release("p", self.now)

    @precondition(lambda self: self.of(PENDING))
    @rule(
        chosen=st.lists(
            st.tuples(picks, st.sampled_from(["cancel", "reset", "low", "high", "done", "broken"])),
            min_size=2,
            max_size=4,
        )
    )
    def many_moves_at_once(self, chosen: list[tuple[int, str]]) -> None:
        """Settled, cancelled, reset and reprioritised in one call, also those that need others."""
        moves: list[tuple[Job, Move]] = []
        trial = self.model.copy()
        seen: set[int] = set()
        for pick, what in chosen:
            state = RUNNING if what in OUTCOMES else PENDING
            if not self.of(state):
                continue
            place = self.pick(pick, state)[0].id
            if place in seen:
                continue
            seen.add(place)
            known, [job] = trial.jobs[place], drive(self.store.get([JobId(place)]))
            if what in OUTCOMES:
                trial.settle(known, what, self.now)
                moves.append((job, lifecycle.advance(job, OUTCOMES[what])))
            elif what == "cancel":
                trial.end(known, State.CANCELLED, self.now)
                trial.log(known, Event.CANCELLED, "w")
                moves.append((job, lifecycle.cancel(job)))
            elif what == "reset":
                trial.back(known, self.now, self.now)
                known.attempt, known.error = 0, None
                trial.log(known, Event.RESET, "w")
                moves.append((job, lifecycle.reset(job)))
            else:
                priority = 4 if what == "low" else 6
                known.asked = replace(known.asked, priority=priority)
                trial.log(known, Event.REPRIORITISED, "w")
                moves.append((job, lifecycle.reprioritise(job, priority)))
        trial.release("w", self.now)
        self.model = trial
        for answer in self.write(moves, "w"):
            assert answer is not None
            assert drive(self.store.get([answer.id])) == [answer]

    @rule(limit=st.integers(1, 4))
    def claim_anything(self, limit: int) -> None:
        self.claim(None, (), limit)

    @precondition(lambda self: self.model.claimable(ANYTHING, self.now))
    @rule(outcome=st.sampled_from(sorted(OUTCOMES)))
    def claim_and_settle(self, outcome: str) -> None:
        self.claim(None, (), 1)
        self.settle_as_an_old_worker(-1, outcome)

    @rule(
        queues=st.sampled_from([None, ("a",), ("b",), ("b", "a")]),
        tags=st.sampled_from([(), (), ("x",), ("x", "y")]),
        limit=st.integers(1, 3),
    )
    def claim_some(self, queues: tuple[str, ...] | None, tags: tuple[str, ...], limit: int) -> None:
        self.claim(queues, tags, limit)

    def claim(self, queues: tuple[str, ...] | None, tags: tuple[str, ...], limit: int) -> None:
        wanted = Claim(worker="w", limit=limit, queues=queues, tags=tags)
        fitting = self.model.fitting(wanted, self.now)
        given = drive(self.store.claim(wanted))
        if not any(job.asked.tenant for job in fitting):
            expected = self.model.claimable(wanted, self.now)
            assert [job.id for job in given] == [known.id for known in expected]
        else:
            self.shares_are_within_the_rules(given, fitting, limit)
        for job, known in [(job, self.model.jobs[job.id]) for job in given]:
            assert job.token > max((known.token for known in self.model.jobs.values()), default=0)
            known.state, known.worker, known.token = RUNNING, "w", job.token
            known.attempt, known.expires_at = known.attempt + 1, self.now + LEASE
            self.model.log(known, Event.CLAIMED, "w")
            self.model.start(job.queue, self.now)
        self.claimed += given

    def shares_are_within_the_rules(
        self, given: list[Job], fitting: list[Known], limit: int
    ) -> None:
        """Whoever's turn it is: no limit is passed, nobody is passed over for a lower priority."""
        taken: list[Known] = []
        for job in given:
            known = self.model.jobs[job.id]
            assert known in fitting
            assert self.model.has_room(known, taken, self.now)
            taken.append(known)
        assert len({job.id for job in taken}) == len(taken) <= limit
        rest = [job for job in fitting if job not in taken]
        left = [job for job in rest if self.model.has_room(job, taken, self.now)]
        assert len(taken) == limit or not left
        lowest = min((job.asked.priority for job in taken), default=0)
        assert all(job.asked.priority <= lowest for job in left)
        for one in taken:  # within a share, in order
            behind = [job for job in left if share(job) == share(one)]
            assert all((one.run_at, one.id) < (job.run_at, job.id) for job in behind)

    @precondition(lambda self: self.of(RUNNING))
    @rule(
        chosen=st.lists(st.tuples(picks, st.sampled_from(sorted(OUTCOMES))), min_size=1, max_size=3)
    )
    def settle(self, chosen: list[tuple[int, str]]) -> None:
        running = self.of(RUNNING)
        outcomes = {running[pick % len(running)].id: outcome for pick, outcome in chosen}
        jobs = drive(self.store.get([JobId(place) for place in outcomes]))
        for place, outcome in outcomes.items():
            self.model.settle(self.model.jobs[place], outcome, self.now)
        self.model.release("w", self.now)
        moves = [lifecycle.advance(job, OUTCOMES[outcomes[job.id]]) for job in jobs]
        assert None not in self.write(list(zip(jobs, moves, strict=True)), "w")

    @precondition(lambda self: self.claimed)
    @rule(pick=picks, outcome=st.sampled_from(sorted(OUTCOMES)))
    def settle_as_an_old_worker(self, pick: int, outcome: str) -> None:
        job = self.claimed[pick % len(self.claimed)]
        found = drive(self.store.get([job.id]))
        stale = [job.version] != [now.version for now in found]
        if not stale:
            self.model.settle(self.model.jobs[job.id], outcome, self.now)
            self.model.release("w", self.now)
        [moved] = self.write([(job, lifecycle.advance(job, OUTCOMES[outcome]))], "w")
        assert (moved is None) is stale
        for now in found if stale else []:
            self.model.log(self.model.jobs[job.id], Event.REFUSED, "late")
            note = lifecycle.refuse(now, job.token, "w")
            assert self.write([(now, note)], "late") != [None]

    @precondition(lambda self: self.of(PENDING, RUNNING))
    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        known, job = self.pick(pick, PENDING, RUNNING)
        if known.state is RUNNING:
            known.stopping = True
            self.model.log(known, Event.CANCEL_REQUESTED, "me")
        else:
            self.model.end(known, State.CANCELLED, self.now)
            self.model.log(known, Event.CANCELLED, "me")
            self.model.release("me", self.now)
        assert self.write([(job, lifecycle.cancel(job))], "me") != [None]

    @precondition(lambda self: self.of(PENDING, RUNNING, State.FAILED, State.CANCELLED))
    @rule(pick=picks)
    def reset(self, pick: int) -> None:
        known, job = self.pick(pick, PENDING, RUNNING, State.FAILED, State.CANCELLED)
        known.stopping = False
        try:
            self.model.back(known, self.now, self.now)
        except TransitionRefused:
            with pytest.raises(TransitionRefused):
                self.write([(job, lifecycle.reset(job, forced=True))], "me")
            return
        known.attempt, known.error = 0, None
        self.model.log(known, Event.RESET, "me")
        self.model.release("me", self.now)  # of one that another has taken the place of
        assert self.write([(job, lifecycle.reset(job, forced=True))], "me") != [None]

    @precondition(lambda self: self.of(RUNNING))
    @rule(limit=st.integers(1, 3), silence=st.sampled_from([0, 10, 30]))
    def expire(self, limit: int, silence: int) -> None:
        self.clock.advance(silence * SECOND)
        past = [job for job in self.of(RUNNING) if job.expires_at and job.expires_at <= self.now]
        past.sort(key=lambda job: job.expires_at or self.now)
        found = drive(self.store.expired(limit))
        assert [job.expires_at for job in found] == [job.expires_at for job in past[:limit]]
        assert {job.id for job in found} <= {job.id for job in past}
        for job in found:
            self.model.settle(self.model.jobs[job.id], "expired", self.now)
        self.model.release("w", self.now)
        moves = [(job, lifecycle.advance(job, lifecycle.Expired())) for job in found]
        assert None not in self.write(moves, "w")

    @precondition(lambda self: self.claimed)
    @rule(chosen=st.lists(picks, min_size=1, max_size=3, unique=True))
    def renew(self, chosen: list[int]) -> None:
        leases = {job.token: job for job in (self.claimed[n % len(self.claimed)] for n in chosen)}
        held = [
            self.model.jobs[job.id]
            for token, job in leases.items()
            if job.id in self.model.jobs
            and (self.model.jobs[job.id].state, self.model.jobs[job.id].token) == (RUNNING, token)
        ]
        for known in held:
            known.expires_at = self.now + LEASE
        renewed = drive(self.store.renew([job.lease for job in leases.values()]))
        assert [job.id for job in renewed] == [known.id for known in held]

    @rule(queue=st.sampled_from("ab"))
    def ask_for_ready_tags(self, queue: str) -> None:
        fitting = self.model.fitting(Claim(worker="w", limit=1, queues=(queue,)), self.now)
        most = self.model.most.get(("queue", queue))
        running = [job for job in self.of(RUNNING) if job.asked.queue == queue]
        if most is not None and len(running) >= most:
            fitting = []
        rate = self.model.rates.get(queue)
        if rate is not None and len(self.model.counted(queue, rate[1], self.now)) >= rate[0]:
            fitting = []
        expected = {tag for job in fitting for tag in job.asked.tags}
        assert drive(self.store.ready_tags(queue)) == sorted(expected)

    @rule()
    def ask_for_the_oldest_ready(self) -> None:
        oldest: dict[str, datetime] = {}
        for job in self.model.jobs.values():
            if self.model.waiting(job, self.now) is Waiting.READY:
                queue = job.asked.queue
                oldest[queue] = min(job.run_at, oldest.get(queue, job.run_at))
        assert drive(self.store.oldest_ready()) == oldest

    @precondition(lambda self: self.of(RUNNING))
    @rule(pick=picks)
    def start(self, pick: int) -> None:
        known, job = self.pick(pick, RUNNING)
        known.expires_at = self.now + LEASE
        self.model.log(known, Event.STARTED, "w")
        assert self.write([(job, lifecycle.start(job))], "w") != [None]

    @rule(
        queue=st.sampled_from("ab"),
        duration=st.sampled_from([None, None, 2 * SECOND, timedelta.max]),
    )
    def pause(self, queue: str, duration: timedelta | None) -> None:
        lasts = self.model.paused.pop(queue, None) == FOREVER
        paused = duration is not None
        asked = self.now + duration if duration and duration < timedelta.max else None
        until = None if lasts else asked
        if paused:
            self.model.paused[queue] = until or FOREVER
        settings = QueueSettings(name=queue, paused=paused, paused_until=asked)
        found = drive(self.store.configure(settings))
        assert (found.paused, found.paused_until) == (paused, until)

    @rule(queue=st.sampled_from("ab"), limit=st.sampled_from([None, None, 2, 5]))
    def limit(self, queue: str, limit: int | None) -> None:
        self.model.limits[queue] = limit
        drive(self.store.configure(QueueSettings(name=queue, max_pending=limit)))

    @rule(
        kind=st.sampled_from([("queue", "a"), ("task", "t"), ("throttle", "x")]),
        most=st.sampled_from([None, None, 1, 2]),
    )
    def let_run(self, kind: tuple[Any, str], most: int | None) -> None:
        self.model.most[kind] = most
        if kind[0] == "queue":
            drive(self.store.configure(QueueSettings(name=kind[1], concurrency=most)))
        else:
            drive(self.store.limit(Limit(kind=kind[0], name=kind[1], concurrency=most)))

    @rule(queue=st.sampled_from("ab"), most=st.sampled_from([None, 1, 2]), seconds=WINDOWS)
    def let_start(self, queue: str, most: int | None, seconds: int) -> None:
        rate = None if most is None else (most, seconds * SECOND)
        self.model.rates.pop(queue, None)
        if rate is not None:
            self.model.rates[queue] = rate
        drive(self.store.configure(QueueSettings(name=queue, rate=rate)))

    @rule(
        name=st.sampled_from("rs"),
        job=new_jobs,
        every=st.sampled_from([20, 45]),
        missed=st.sampled_from(Missed),
        overlap=st.booleans(),
        stale=st.sampled_from([False, False, True]),
    )
    def schedule(  # noqa: PLR0917 - what a schedule has
        self, name: str, job: NewJob, every: int, missed: Missed, overlap: bool, stale: bool
    ) -> None:
        stored = self.model.schedules.get(name)
        wanted = Schedule(
            name=name,
            job=replace(job, delay=None),
            rhythm=Rhythm(every=every * SECOND),
            missed=missed,
            overlap=overlap,
        )
        following = redefined(stored, wanted, self.now)
        if stale:
            late = replace(following, version=following.version + 1)
            assert drive(self.store.put_schedule(late)) is None
            return
        written = drive(self.store.put_schedule(following))
        assert written is not None
        assert written == replace(following, version=written.version)
        assert written.version > following.version
        self.model.schedules[name] = written

    @precondition(lambda self: self.model.schedules)
    @rule(name=st.sampled_from("rs"), paused=st.booleans())
    def pause_schedule(self, name: str, paused: bool) -> None:
        if (stored := self.model.schedules.get(name)) is not None:
            changed = replace(stored, paused=True) if paused else resumed(stored, self.now)
            written = drive(self.store.put_schedule(changed))
            assert written is not None
            self.model.schedules[name] = written

    @precondition(lambda self: self.model.schedules)
    @rule(name=st.sampled_from("rs"))
    def drop_schedule(self, name: str) -> None:
        was_there = self.model.schedules.pop(name, None) is not None
        assert drive(self.store.drop_schedule(name)) is was_there

    @precondition(lambda self: self.model.schedules)
    @rule(
        seconds=st.sampled_from([0, 20, 50, 200]), overtaken=st.sampled_from([False, False, True])
    )
    def fire(self, seconds: int, overtaken: bool) -> None:
        """What a worker does about the schedules, and another one a moment too late."""
        self.clock.advance(seconds * SECOND)
        planned = {
            name: schedule.next
            for name, schedule in self.model.schedules.items()
            if schedule.next is not None and not schedule.paused
        }
        due = drive(self.store.due({"t"}, (), 10))
        assert {one.name for one in due.schedules} == {
            name for name, at in planned.items() if at <= self.now
        }
        assert due.next == min((at for at in planned.values() if at > self.now), default=None)
        for schedule in due.schedules:
            assert schedule == self.model.schedules[schedule.name]
            firing = plan(schedule, self.now)
            if overtaken:  # somebody writes the schedule before the plan is carried out
                written = drive(self.store.put_schedule(schedule))
                assert written is not None
                self.model.schedules[schedule.name] = written
                assert drive(self.store.fire(firing, actor="late")) is None
            else:
                self.fire_one(firing)

    def fire_one(self, firing: Firing) -> None:
        before = firing.schedule
        jobs = self.put(firing.jobs, lambda: self.store.fire(firing, actor="p"))
        if firing.jobs and not jobs:  # its queue is full: it stays due
            return
        [after] = drive(self.store.schedules([before.name]))
        assert after.version > before.version
        ran = [job for job in jobs if not job.duplicate]
        last = (ran[-1].run_at, ran[-1].id) if ran else (before.last, before.last_job)
        assert (after.next, after.last, after.last_job) == (firing.next, *last)
        self.model.schedules[before.name] = after
        assert drive(self.store.fire(firing, actor="late")) is None

    @rule(limit=st.sampled_from([1, 100]))
    def prune(self, limit: int) -> None:
        past = {
            job.id
            for job in self.model.jobs.values()
            if job.finished_at and job.finished_at + KEEP.keeps(job.state) <= self.now
        }
        assert drive(self.store.prune(KEEP, limit)) == min(limit, len(past))
        gone = self.model.jobs.keys() - {job.id for job in drive(everything(self.store))}
        assert gone <= past
        for place in gone:
            del self.model.jobs[place]
            assert drive(self.store.log(JobId(place))) == []

    @precondition(lambda self: self.of(PENDING))
    @rule(pick=picks, priority=st.integers(4, 6))
    def reprioritise(self, pick: int, priority: int) -> None:
        known, job = self.pick(pick, PENDING)
        known.asked = replace(known.asked, priority=priority)
        self.model.log(known, Event.REPRIORITISED, "me")
        assert self.write([(job, lifecycle.reprioritise(job, priority))], "me") != [None]

    @precondition(lambda self: self.model.jobs)
    @rule(chosen=st.lists(picks, min_size=1, max_size=3))
    def delete(self, chosen: list[int]) -> None:
        places = sorted(self.model.jobs)
        wanted = {JobId(places[n % len(places)]) for n in chosen}
        jobs = drive(self.store.get(sorted(wanted)))
        final = [job.id for job in jobs if self.model.jobs[job.id].state.final]
        assert sorted(drive(self.store.delete(jobs))) == final
        for place in final:
            del self.model.jobs[place]

    @rule(seconds=st.sampled_from([1, 5, 10, 30, 100]))
    def advance_clock(self, seconds: int) -> None:
        self.clock.advance(seconds * SECOND)

    # What has to hold after each

    @invariant()
    def store_is_as_it_should_be(self) -> None:
        found = drive(everything(self.store))
        self.jobs_are_those_of_the_model(found)
        self.promises_hold(found)
        self.log_grew_by_one_entry_for_each_transition(found)
        stored = {one.name: one for one in drive(self.store.schedules())}
        assert stored == self.model.schedules

    def jobs_are_those_of_the_model(self, found: list[Job]) -> None:
        assert [job.id for job in found] == sorted(self.model.jobs)
        for job in found:
            known = self.model.jobs[job.id]
            assert (job.state, job.attempt, job.token) == (known.state, known.attempt, known.token)
            assert (job.run_at, job.expires_at) == (known.run_at, known.expires_at)
            assert (job.worker, job.finished_at) == (known.worker, known.finished_at)
            assert (job.error, job.result_json) == (known.error, known.result)
            assert job.cancel_requested == known.stopping
            # One that was superseded never comes back: whom it would wait for then means nothing.
            assert job.state is State.SUPERSEDED or job.needs == len(known.open)
            waits = self.model.waiting(known, self.now)
            # A job that fell due may stay scheduled until somebody claims, or asks for tags.
            late = waits is Waiting.READY and job.waiting is Waiting.SCHEDULED
            assert job.waiting is waits or late
        assert drive(totals(self.store)) == Counter(
            (job.queue, job.state, job.waiting) for job in found
        )

    def promises_hold(self, found: list[Job]) -> None:
        running = Counter(job.key for job in found if job.state is RUNNING and job.key)
        assert all(n == 1 for n in running.values())
        pending = Counter(job.dedupe for job in found if job.state is PENDING and job.dedupe)
        assert all(n == 1 for n in pending.values())
        assert all((job.expires_at is not None) == (job.state is RUNNING) for job in found)
        unfinished = [job.id for job in found if not job.state.final]
        left, newest = drive(self.store.backlog())
        assert (left, newest) == (len(unfinished), max(unfinished, default=newest))

    def log_grew_by_one_entry_for_each_transition(self, found: list[Job]) -> None:
        entries = drive(self.store.log(after=self.read))
        wrote = self.model.logged[self.compared :]
        told = [(entry.job_id, entry.event, entry.state, entry.actor) for entry in entries]
        # Within one call the order of different jobs is the store's own.
        assert sorted(told, key=by_job) == sorted(wrote, key=by_job)
        for entry in entries:
            assert entry.id > self.read
            assert entry.at == self.now
            self.read = entry.id
            self.newest_entry[entry.job_id] = entry.id
        self.compared = len(self.model.logged)
        for job in found:
            assert job.version == self.newest_entry[job.id]

    # In short

    @property
    def now(self) -> datetime:
        return self.clock.now

    def of(self, *states: State) -> list[Known]:
        return [job for job in self.model.jobs.values() if job.state in states]

    def pick(self, pick: int, *states: State) -> tuple[Known, Job]:
        jobs = self.of(*states)
        known = jobs[pick % len(jobs)]
        [job] = drive(self.store.get([JobId(known.id)]))
        return known, job

    def write(self, moves: list[tuple[Job, Move]], actor: str) -> list[Job | None]:
        changes = [Change(job, move) for job, move in moves]
        return drive(self.store.transition(changes, actor=actor))

    def over_limit(self, trial: Model) -> bool:
        before = Counter(job.asked.queue for job in self.of(PENDING))
        after = Counter(job.asked.queue for job in trial.jobs.values() if job.state is PENDING)
        limits = {queue: limit for queue, limit in self.model.limits.items() if limit is not None}
        return any(after[queue] > max(limit, before[queue]) for queue, limit in limits.items())


def share(job: Known) -> tuple[str, int, str | None]:
    return job.asked.queue, job.asked.priority, job.asked.tenant


def by_job(entry: tuple[int, Event, State, str]) -> int:
    return entry[0]


# Ample, because a failure takes minutes to shrink to its shortest story.
@pytest.mark.parametrize("name", [*STORES, *MERGED])
def test_random_lives_end_as_the_model_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SMALLEST", 3_000)  # a snapshot every few transactions
    machine = type("Life", (Life,), {"store_name": name})
    run_state_machine_as_test(
        machine,
        settings=settings(
            # A step takes three times as long on PostgreSQL.
            max_examples=tiers.amount(8, 40)
            if name.startswith("postgres")
            else tiers.amount(25, 120),
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
