"""The history checker: what clients asked and were told, held against what the store contains.

`check` returns every violation it finds, each with the number of the promise in design.md that
was broken. It trusts nothing that a client did not write down before or after its call, and takes
keys, dedupe keys and queues from what was asked for, not from the store.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from penstock.core.job import Job, LogEntry, Scope
from penstock.core.lifecycle import Event as Happened
from penstock.core.lifecycle import State, Waiting
from penstock.core.query import JobQuery
from penstock.core.queue import Counts, Queue
from penstock.core.times import to_micros
from penstock.core.verification import check_life, check_tokens, check_totals
from penstock.engine.penstock import Penstock, run_sync
from tests.crash.recording import (
    Asked,
    AskedJob,
    Claimed,
    Effect,
    Ended,
    Event,
    Refused,
    Settled,
    Started,
    Steered,
    Steering,
    Told,
    Trouble,
    mark_of,
    store_url,
)
from tests.crash.serialisability import INFINITE, Duplicate, Operation, misplaced, stale

N = TypeVar("N")

_PAGE = 10_000
CRON = "cron/"
"""How the marks of jobs begin that a schedule enqueues, again and again."""
_SETTLES = frozenset({Happened.DONE, Happened.FAILED, Happened.SNOOZED, Happened.CANCELLED})


class Violation(NamedTuple):
    promise: int
    text: str


class Stored(NamedTuple):
    """All that a store says about itself."""

    jobs: Mapping[int, Job]
    log: Sequence[LogEntry]
    chains: Mapping[int, Sequence[LogEntry]]
    counts: Counts
    queues: Sequence[Queue]


class Run(NamedTuple):
    """One lease in the log: from its claim to the entry that ended it."""

    claim: LogEntry
    end: LogEntry | None

    @property
    def settled(self) -> bool:
        """Whether its worker ended it; else it fell silent, and may go on for a while."""
        return self.end is not None and self.end.event in _SETTLES


def read_store(folder: Path) -> Stored:
    app = Penstock(store_url(folder))
    try:
        return run_sync(read_all(app))
    finally:
        run_sync(app.close())


async def read_all(app: Penstock) -> Stored:
    jobs: dict[int, Job] = {}
    while page := await app.find(
        JobQuery(newest_first=False, limit=_PAGE, after=next(reversed(jobs.values())).id)
        if jobs
        else JobQuery(newest_first=False, limit=_PAGE)
    ):
        jobs.update((job.id, job) for job in page)
    log: list[LogEntry] = []
    while entries := await app.log(after=log[-1].id if log else None, limit=_PAGE):
        log += entries
    chains = {job_id: await app.log(job_id) for job_id in jobs}
    return Stored(jobs, log, chains, await app.count(), await app.queues.list())


def check(
    history: Sequence[Event],
    stored: Stored,
    *,
    drained: bool = True,
    removable: frozenset[int] = frozenset(),
    steady_clock: bool = True,
) -> list[Violation]:
    """Every broken promise. `drained`: nothing may be left to do; `removable`: finished jobs that
    retention was allowed to take. Without a `steady_clock`, times in the log prove nothing."""
    facts = _Facts(history, stored, removable)
    found = itertools.chain(
        _acknowledged_is_kept(facts),
        _what_was_asked_once_is_stored_once(facts),
        _one_lease(facts, steady_clock=steady_clock),
        _workers_hold_what_they_were_given(facts),
        _settles_are_true(facts),
        _effects_follow_tokens(facts),
        _enqueue_order_is_kept(facts),
        _key_order_is_kept(facts),
        _handlers_of_a_key_take_turns(facts),
        _nothing_is_stuck(facts, drained=drained),
        _attempts_are_limited(facts),
        _waits_for_a_reason(facts),
        _dedupe_and_limits_hold(facts),
        _running_jobs_keep_no_pending_ones_away(facts),
        _batches_are_whole(facts),
        _keys_are_serialisable(facts),
        _log_is_whole(facts),
        _totals_agree(facts),
        _pause_holds(facts),
        _done_means_done(facts),
        (Violation(0, f"{note.client}: {note.error}") for note in facts.all_of(Trouble)),
    )
    return sorted(set(found))


class _Facts:
    """The history and the store, looked at from the sides that the promises need."""

    def __init__(self, history: Sequence[Event], stored: Stored, removable: frozenset[int]) -> None:
        self.history = history
        self.stored = stored
        self.removable = removable
        self.calls = {(note.client, note.call): note for note in self.all_of(Asked)}
        self.told = {(note.client, note.call): note for note in self.all_of(Told)}
        self.refused = {(note.client, note.call): note for note in self.all_of(Refused)}
        self.marks: dict[str, list[int]] = defaultdict(list)
        for job in stored.jobs.values():
            self.marks[mark_of(job.payload)].append(job.id)
        self.asked = dict(self._asked())
        self._entries: dict[int, list[LogEntry]] = defaultdict(list)
        for entry in stored.log:
            self._entries[entry.job_id].append(entry)
        self.logged = frozenset(self._entries)
        self.runs = {run.claim.token: run for run in self._leases()}

    def all_of(self, kind: type[N]) -> list[N]:
        return [note for note in self.history if isinstance(note, kind)]

    def _asked(self) -> Iterator[tuple[int, AskedJob]]:
        """What was asked for, by the id it got: told, or found by its mark."""
        for call, note in self.calls.items():
            answers = self.told[call].jobs if call in self.told else []
            for job, (job_id, duplicate) in zip(note.jobs, answers, strict=False):
                if not duplicate:
                    yield job_id, job
            for job in note.jobs:
                for job_id in self.marks.get(job.mark, ()):
                    yield job_id, job

    def _leases(self) -> Iterator[Run]:
        for entries in self._entries.values():
            claim = None
            for entry in entries:
                if entry.event is Happened.CLAIMED:
                    if claim is not None:
                        yield Run(claim, None)
                    claim = entry
                elif claim is not None and entry.state is not State.RUNNING:
                    yield Run(claim, entry)
                    claim = None
            if claim is not None:
                yield Run(claim, None)

    def entries(self, job_id: int) -> Sequence[LogEntry]:
        """The log of one job, out of the log of all."""
        return self._entries[job_id] if job_id in self.logged else []

    def gone(self, job_id: int) -> bool:
        return job_id not in self.stored.jobs and job_id in self.removable


# Promise 1


def _acknowledged_is_kept(facts: _Facts) -> Iterator[Violation]:
    for call, told in facts.told.items():
        for job, (job_id, duplicate) in zip(facts.calls[call].jobs, told.jobs, strict=True):
            stored = facts.stored.jobs.get(job_id)
            if facts.gone(job_id):
                continue
            if stored is None:
                yield Violation(1, f"job {job_id} ({job.mark}) was acknowledged and is gone")
            elif duplicate and stored.dedupe != job.dedupe:
                yield Violation(5, f"{job.mark} was answered with job {job_id} of other dedupe")
            elif not duplicate and mark_of(stored.payload) != job.mark:
                yield Violation(1, f"job {job_id} was acknowledged as {job.mark} and is another")


def _what_was_asked_once_is_stored_once(facts: _Facts) -> Iterator[Violation]:
    repeated = {job.mark for call in facts.calls.values() if call.repeats for job in call.jobs}
    for mark, ids in facts.marks.items():
        late = mark in repeated and _came_late(facts, ids)
        if len(ids) > 1 and not late and not mark.startswith(CRON):
            yield Violation(1, f"{mark} was enqueued once and stored as jobs {ids}")
    for call in facts.refused:
        for job in facts.calls[call].jobs:
            if job.mark in facts.marks:
                yield Violation(1, f"{job.mark} was refused and is stored")


def _came_late(facts: _Facts, ids: Sequence[int]) -> bool:
    """Whether each copy of a job was stored when the key of the one before was free again.

    The dedupe key of a repeated request holds as long as its job is unfinished; one that the
    caller chose with the scope `PENDING`, only until it starts.
    """
    return all(
        any(entry.id < facts.entries(later)[0].id and _frees(facts, entry) for entry in entries)
        for earlier, later in itertools.pairwise(sorted(ids))
        for entries in [facts.entries(earlier)]
    )


def _frees(facts: _Facts, entry: LogEntry) -> bool:
    """Whether an entry of the log takes the dedupe key from its job."""
    is_pending = facts.asked[entry.job_id].scope is Scope.PENDING
    own = facts.asked[entry.job_id].dedupe is not None
    return entry.state.final or (is_pending and own and entry.state is State.RUNNING)


# Promise 2


def _one_lease(facts: _Facts, *, steady_clock: bool) -> Iterator[Violation]:
    highest = 0
    for entry in facts.stored.log:
        if entry.event is Happened.CLAIMED:
            if entry.token is None or entry.token <= highest:
                yield Violation(2, f"claim {entry.id} has token {entry.token} after {highest}")
            highest = max(highest, entry.token or 0)
    for run in facts.runs.values():
        job = facts.stored.jobs.get(run.claim.job_id)
        if run.end is None and job is not None and job.token != run.claim.token:
            yield Violation(2, f"job {job.id} was claimed again while token {run.claim.token} held")
        early = (
            job is not None and run.end is not None and run.end.at - run.claim.at < job.lease_time
        )
        if steady_clock and early and run.end and run.end.event is Happened.EXPIRED:
            yield Violation(2, f"lease {run.claim.token} was taken back before its time")


def _workers_hold_what_they_were_given(facts: _Facts) -> Iterator[Violation]:
    for given in facts.all_of(Claimed):
        for job_id, token in given.runs:
            yield from _known_claim(facts, job_id, token, given.client)
    for started in facts.all_of(Started):
        yield from _known_claim(facts, started.job, started.token, started.client)


def _known_claim(facts: _Facts, job_id: int, token: int, client: str) -> Iterator[Violation]:
    if facts.gone(job_id):
        return
    run = facts.runs.get(token)
    if run is None or run.claim.job_id != job_id or run.claim.actor != client:
        yield Violation(2, f"{client} holds job {job_id} by token {token}, unknown to the log")


def _settles_are_true(facts: _Facts) -> Iterator[Violation]:
    taken: Counter[int] = Counter()
    for note in facts.all_of(Settled):
        for job_id, token, accepted in note.runs:
            if facts.gone(job_id):
                continue
            run = facts.runs.get(token)
            if accepted:
                taken[token] += 1
                if run is None or not run.settled or taken[token] > 1:
                    yield Violation(2, f"{note.client} settled job {job_id} by stale token {token}")
            elif not any(
                entry.event is Happened.REFUSED and f"token {token} " in (entry.reason or "")
                for entry in facts.entries(job_id)
            ):
                yield Violation(2, f"the refusal of token {token} of job {job_id} is not logged")


def _effects_follow_tokens(facts: _Facts) -> Iterator[Violation]:
    applied: dict[int, list[int]] = defaultdict(list)
    for effect in facts.all_of(Effect):
        if effect.applied:
            applied[effect.job].append(effect.token)
        elif (run := facts.runs.get(effect.token)) is not None and run.settled:
            yield Violation(2, f"token {effect.token} was fenced off, but settled its job")
    for job_id, tokens in applied.items():
        if tokens != sorted(tokens):
            yield Violation(2, f"effects of job {job_id} in the order of tokens {tokens}")
        done = [e.token for e in facts.entries(job_id) if e.event is Happened.DONE]
        if done and done[-1] != tokens[-1]:
            yield Violation(2, f"job {job_id} done by {done[-1]}, but {tokens[-1]} acted last")


# Promise 3


def _enqueue_order_is_kept(facts: _Facts) -> Iterator[Violation]:
    """An enqueue that was answered before another was asked for has the lower ids."""
    highest, told = 0, sorted(facts.told.items(), key=lambda item: item[1].at)
    answered = 0
    for call, asked in sorted(facts.calls.items(), key=lambda item: item[1].at):
        while answered < len(told) and told[answered][1].at < asked.at:
            highest = max([highest, *_new_ids(told[answered][1])])
            answered += 1
        if call in facts.told:
            ids = _new_ids(facts.told[call])
            # The second time, a request stores only those of its jobs that have ended.
            is_ordered = facts.calls[call].repeats or ids == sorted(ids)
            if not is_ordered or (ids and min(ids) <= highest):
                yield Violation(3, f"ids {ids} were given after id {highest}")


def _new_ids(told: Told) -> list[int]:
    return [job_id for job_id, duplicate in told.jobs if not duplicate]


def _key_order_is_kept(facts: _Facts) -> Iterator[Violation]:
    unfinished: dict[str, dict[int, State]] = defaultdict(dict)
    for entry in facts.stored.log:
        asked = facts.asked.get(entry.job_id)
        if asked is None or asked.key is None:
            continue
        others = unfinished[asked.key]
        if entry.event is Happened.CLAIMED:
            for other, state in others.items():
                if other < entry.job_id:
                    yield Violation(
                        3, f"key {asked.key}: job {entry.job_id} began before job {other} ended"
                    )
                elif other > entry.job_id and state is State.RUNNING:
                    yield Violation(3, f"key {asked.key}: {entry.job_id} and {other} run together")
        if entry.state.final:
            others.pop(entry.job_id, None)
        else:
            others[entry.job_id] = entry.state


def _handlers_of_a_key_take_turns(facts: _Facts) -> Iterator[Violation]:
    """As the handlers saw it. One whose lease ran out may overlap with the next for a while."""
    ends = {(note.job, note.token): note.at for note in facts.all_of(Ended)}
    turns: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for note in facts.all_of(Started):
        run = facts.runs.get(note.token)
        asked = facts.asked.get(note.job)
        if run is not None and run.settled and asked is not None:
            end = ends.get((note.job, note.token), note.at)
            turns[f"job {note.job}"].append((note.at, end, note.job))
            if asked.key is not None:
                turns[f"key {asked.key}"].append((note.at, end, note.job))
    for whose, intervals in turns.items():
        for (_, end, job_id), (start, _, next_id) in itertools.pairwise(sorted(intervals)):
            if start < end:
                promise = 3 if whose.startswith("key") else 2
                yield Violation(promise, f"{whose}: jobs {job_id} and {next_id} ran together")
            elif next_id < job_id:
                yield Violation(3, f"{whose}: job {job_id} ran before job {next_id}")


# Promise 4


def _nothing_is_stuck(facts: _Facts, *, drained: bool) -> Iterator[Violation]:
    for job in facts.stored.jobs.values():
        if job.attempt > job.retry.attempts:
            yield Violation(4, f"job {job.id} is at attempt {job.attempt}")
        if drained and not job.state.final:
            yield Violation(4, f"job {job.id} is left {job.state} ({job.waiting})")
        if job.state is State.RUNNING and job.expires_at is None:
            yield Violation(4, f"job {job.id} runs without a deadline")


def _attempts_are_limited(facts: _Facts) -> Iterator[Violation]:
    for job_id in facts.logged:
        job_or_none = facts.stored.jobs.get(job_id)
        if job_or_none is None:
            continue
        used = 0
        for entry in facts.entries(job_id):
            if entry.event is Happened.RESET:
                used = 0
            used += (entry.event is Happened.CLAIMED) - (entry.event is Happened.SNOOZED)
            if used > job_or_none.retry.attempts:
                yield Violation(4, f"job {job_id} began attempt {used}")
    for started in facts.all_of(Started):
        job_or_none = facts.stored.jobs.get(started.job)
        if job_or_none is not None and started.attempt > job_or_none.retry.attempts:
            yield Violation(4, f"job {started.job} ran attempt {started.attempt}")


def _waits_for_a_reason(facts: _Facts) -> Iterator[Violation]:
    """Of each key the oldest unfinished job is visible, and no other."""
    heads: dict[str, Job] = {}
    for job in sorted(facts.stored.jobs.values(), key=lambda job: job.id):
        if job.state.final or job.key is None:
            if job.waiting is Waiting.BLOCKED:
                yield Violation(4, f"job {job.id} is blocked by nothing")
            continue
        head = heads.setdefault(job.key, job)
        if (job is head) == (job.waiting is Waiting.BLOCKED):
            yield Violation(4, f"job {job.id} is {job.waiting}, its key's head is {head.id}")


# Promise 5


def _dedupe_and_limits_hold(facts: _Facts) -> Iterator[Violation]:
    limits = {queue.name: queue.max_pending for queue in facts.stored.queues}
    states: dict[int, State] = {}
    holders: dict[str, set[int]] = defaultdict(set)
    pending: Counter[str] = Counter()
    for entry in facts.stored.log:
        asked = facts.asked.get(entry.job_id)
        if asked is None:
            continue
        before = states.get(entry.job_id)
        states[entry.job_id] = entry.state
        pending[asked.queue] += (entry.state is State.PENDING) - (before is State.PENDING)
        limit = limits.get(asked.queue)
        if entry.event is Happened.ENQUEUED and limit is not None and pending[asked.queue] > limit:
            yield Violation(5, f"queue {asked.queue} took job {entry.job_id} beyond {limit}")
        if asked.dedupe is None:
            continue
        same = holders[asked.dedupe]
        same.add(entry.job_id) if not entry.state.final else same.discard(entry.job_id)
        if entry.state is State.PENDING and before is not State.PENDING:
            yield from _rivals(facts, entry.job_id, same, states)


def _rivals(
    facts: _Facts, job_id: int, same: Iterable[int], states: Mapping[int, State]
) -> Iterator[Violation]:
    jobs = facts.stored.jobs
    for other in same:
        if other == job_id:
            continue
        scopes = {jobs[n].scope for n in (job_id, other) if n in jobs}
        if states[other] is State.PENDING or Scope.UNFINISHED in scopes:
            yield Violation(5, f"jobs {job_id} and {other} hold one dedupe key at once")


def _running_jobs_keep_no_pending_ones_away(facts: _Facts) -> Iterator[Violation]:
    """Between two jobs with the scope `PENDING`, one that has begun holds its key no longer."""
    turns = _certain_runs(facts)
    for call, told in facts.told.items():
        asked = facts.calls[call]
        for job, (job_id, duplicate) in zip(asked.jobs, told.jobs, strict=True):
            holder = facts.asked.get(job_id)
            if duplicate and holder and job.scope is holder.scope is Scope.PENDING:
                for started, ended in turns[job_id]:
                    if started < asked.at and told.at < ended:
                        yield Violation(5, f"{job.mark} was answered with job {job_id}, which ran")


def _certain_runs(facts: _Facts) -> Mapping[int, Sequence[tuple[int, int]]]:
    """When jobs ran for certain: from the start of a handler to its end, if that was settled."""
    ends = {(note.job, note.token): note.at for note in facts.all_of(Ended)}
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for note in facts.all_of(Started):
        run, ended = facts.runs.get(note.token), ends.get((note.job, note.token))
        settle = run.end if run is not None and run.settled else None
        # A cancelled one may have ended before its handler did.
        if ended is not None and settle and settle.event is not Happened.CANCELLED:
            found[note.job].append((note.at, ended))
    return found


def _batches_are_whole(facts: _Facts) -> Iterator[Violation]:
    for call, asked in facts.calls.items():
        if call in facts.told or call in facts.refused:
            continue
        # A job with a dedupe key may be missing because another holds it.
        plain = [job.mark for job in asked.jobs if job.dedupe is None]
        there = [mark for mark in plain if mark in facts.marks]
        deduped = [job.mark for job in asked.jobs if job.dedupe and job.mark in facts.marks]
        if len(there) not in (0, len(plain)) or (plain and deduped and not there):
            yield Violation(5, f"of the batch {plain} only {there + deduped} is stored")


def _keys_are_serialisable(facts: _Facts) -> Iterator[Violation]:
    enqueues, ends = dict(_enqueues(facts)), dict(_ends(facts))
    histories = [
        (f"{kind} {name}", operation)
        for job_id, asked in facts.asked.items()
        for kind, name in (("key", asked.key), ("dedupe key", asked.dedupe))
        if name is not None
        for operation in (enqueues.get(job_id), ends.get(job_id))
        if operation is not None
    ]
    for text in misplaced(histories):
        yield Violation(3 if text.startswith("key") else 5, text)
    for text in stale(_duplicates(facts, enqueues, ends)):
        yield Violation(5, text)


def _enqueues(facts: _Facts) -> Iterator[tuple[int, Operation]]:
    """The enqueue of every job, as its client saw it."""
    for call, asked in facts.calls.items():
        told = facts.told.get(call)
        answers = {} if told is None else dict(told.jobs)
        for job in asked.jobs:
            for job_id in facts.marks.get(job.mark, ()):
                # Another copy of a repeated request may have come later.
                answered = told.at if told and job_id in answers else INFINITE
                if entries := facts.entries(job_id):
                    text = f"the enqueue of job {job_id}"
                    yield job_id, Operation(entries[0].id, asked.at, answered, text)


def _ends(facts: _Facts) -> Iterator[tuple[int, Operation]]:
    """The settle that ended a job for good, as its worker saw it; others are not known exactly."""
    ended = {(note.job, note.token): note.at for note in facts.all_of(Ended)}
    settled = {
        (job_id, token): note.at
        for note in facts.all_of(Settled)
        for job_id, token, accepted in note.runs
        if accepted
    }
    for job_id in facts.logged:
        last = facts.entries(job_id)[-1]
        run = (job_id, last.token or 0)
        if last.state.final and last.event in _SETTLES and run in ended:
            text = f"the end of job {job_id}"
            answered = settled.get(run, INFINITE)
            yield job_id, Operation(last.id, ended[run], answered, text)


def _duplicates(
    facts: _Facts, enqueues: Mapping[int, Operation], ends: Mapping[int, Operation]
) -> Iterator[Duplicate]:
    for call, told in facts.told.items():
        asked = facts.calls[call]
        for job, (job_id, duplicate) in zip(asked.jobs, told.jobs, strict=True):
            if duplicate and job_id in enqueues:
                holder, end = enqueues[job_id], ends.get(job_id)
                yield Duplicate(holder, end, asked.at, told.at, job.mark)


# Promise 6


def _log_is_whole(facts: _Facts) -> Iterator[Violation]:
    ids = [entry.id for entry in facts.stored.log]
    if ids != sorted(set(ids)):
        yield Violation(6, "ids of the log do not grow")
    for job_id in facts.logged - facts.stored.jobs.keys():
        yield Violation(6, f"the log speaks of job {job_id}, which is gone")
    for job in facts.stored.jobs.values():
        entries = facts.entries(job.id)
        if list(facts.stored.chains[job.id]) != entries:
            yield Violation(6, f"the chain of job {job.id} is broken")
        yield from _legal_path(job, entries)


def _legal_path(job: Job, entries: Sequence[LogEntry]) -> Iterator[Violation]:
    for problem in check_life(job, entries):
        yield Violation(4 if "attempt" in problem.text else 6, problem.text)
    for problem in check_tokens(job, entries, (2**53, 2**53)):
        yield Violation(2, problem.text)


def _totals_agree(facts: _Facts) -> Iterator[Violation]:
    counted = Counter((job.queue, job.state, job.waiting) for job in facts.stored.jobs.values())
    for problem in check_totals(facts.stored.counts, counted):
        yield Violation(6, problem.text)


# Promise 7


def _pause_holds(facts: _Facts) -> Iterator[Violation]:
    windows = list(_pauses(facts))
    if not windows:
        return
    for entry in facts.stored.log:
        asked = facts.asked.get(entry.job_id)
        if entry.event is Happened.CLAIMED and asked is not None:
            at = to_micros(entry.at)
            for queue, since, until in windows:
                if queue == asked.queue and since <= at < until:
                    yield Violation(7, f"job {entry.job_id} began while {queue} was paused")


def _pauses(facts: _Facts) -> Iterator[tuple[str, int, int]]:
    """When queues were paused for certain, in microseconds of the wall clock that stores use."""
    told = {(note.client, note.call): note for note in facts.all_of(Steered)}
    steering = facts.all_of(Steering)
    for pause in steering:
        answer = told.get((pause.client, pause.call))
        if not pause.paused or answer is None:
            continue
        until = 2**63
        for other in steering:
            if other.queue == pause.queue and not other.paused:
                ended = told.get((other.client, other.call))
                if ended is None or ended.at > pause.at:  # it may have come after the pause
                    until = min(until, other.wall)
        # The store cuts its clock to whole microseconds.
        yield pause.queue, answer.wall // 1000 + 1, until // 1000 - 1


# Promise 8


def _done_means_done(facts: _Facts) -> Iterator[Violation]:
    ran_well = {(note.job, note.token) for note in facts.all_of(Ended) if note.well}
    for job_id in facts.logged:
        entries = facts.entries(job_id)
        done = [entry for entry in entries if entry.event is Happened.DONE]
        resets = sum(entry.event is Happened.RESET for entry in entries)
        if len(done) > 1 + resets:
            yield Violation(8, f"job {job_id} was done {len(done)} times")
        for entry in done:
            if (job_id, entry.token) not in ran_well:
                yield Violation(8, f"job {job_id} is done, but its handler did not come to an end")
    finished = {job_id for job_id, _ in ran_well}
    for job in facts.stored.jobs.values():
        if job.state is State.DONE and job.id not in finished:
            yield Violation(8, f"job {job.id} is done and never ran")
