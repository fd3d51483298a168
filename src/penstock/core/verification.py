"""Verification: which promises can be read off a store, and whether they hold there.

These are the rules. Stores provide the facts, all of one moment; the history checker of the tests
applies the same rules to the stores that it examines.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise

import msgspec

from penstock.core.dedupe import Holding, holder
from penstock.core.dependencies import Edge
from penstock.core.job import Job, LogEntry
from penstock.core.key_line import Queued, T, rearranged
from penstock.core.lifecycle import TRANSITIONS, Event, State, Waiting
from penstock.core.queue import Counts
from penstock.core.restoration import Record

MOST_PROBLEMS = 1_000
"""How many problems are described; all are counted, except within damaged logs."""


class Rule(StrEnum):
    """What a problem is about."""

    LOG = "log"
    LIFE = "life"
    TOKEN = "token"  # noqa: S105 - a fencing token
    KEY = "key"
    DEDUPE = "dedupe"
    DEPENDENCY = "dependency"
    WAITING = "waiting"
    TAG = "tag"
    TOTAL = "total"
    ORPHAN = "orphan"


REPAIRS: Mapping[Rule, str] = {
    Rule.KEY: "arrange the lines of all keys again",
    Rule.DEPENDENCY: "count dependencies again, and resolve those on jobs that ended or are gone",
    Rule.WAITING: "make jobs ready that nothing blocks",
    Rule.TAG: "write the index of tags again",
    Rule.TOTAL: "count the jobs of all queues again",
    Rule.ORPHAN: "remove what belongs to no job, except log entries",
}
"""What a repair does about a problem. What happened to a job cannot be repaired."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A promise that does not hold: which kind, of which job if it is about one, and how."""

    rule: Rule
    text: str
    job_id: int | None = None


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The result: how many jobs and log entries were read, and what is wrong.

    `problems` describes the first ones; `found` counts all, by their kind.
    """

    jobs: int
    entries: int
    found: dict[Rule, int] = {}
    problems: list[Problem] = []

    @property
    def repairable(self) -> list[Rule]:
        """The kinds of problems that were found and can be repaired."""
        return [rule for rule in REPAIRS if rule in self.found]


class Findings:
    """Collects problems while a store is read."""

    def __init__(self) -> None:
        self.jobs = self.entries = 0
        self._found: dict[Rule, int] = {}
        self._problems: list[Problem] = []
        self._totals: dict[tuple[str, State, Waiting | None], int] = {}

    def add(self, problems: Iterable[Problem]) -> None:
        """Add problems."""
        for problem in problems:
            self._found[problem.rule] = self._found.get(problem.rule, 0) + 1
            if len(self._problems) < MOST_PROBLEMS:
                self._problems.append(problem)

    def count(self, job: Job) -> None:
        """Count a job for the totals."""
        self.jobs += 1
        place = (job.queue, job.state, job.waiting)
        self._totals[place] = self._totals.get(place, 0) + 1

    def read(self, record: Record, last: tuple[int, int]) -> None:
        """Check a job with its log; `last` has the highest ids that the store has assigned."""
        self.count(record.job)
        self.entries += len(record.log)
        self.add(check_life(record.job, record.log))
        self.add(check_tokens(record.job, record.log, last))

    def result(self, kept: Counts) -> Verification:
        """Return the result, after comparing the kept totals with what was counted."""
        self.add(check_totals(kept, self._totals))
        return Verification(
            jobs=self.jobs, entries=self.entries, found=self._found, problems=self._problems
        )


def check_life(job: Job, log: Sequence[LogEntry]) -> Iterator[Problem]:
    """Check that the log of a job leads from its enqueueing to its state by allowed moves."""

    def wrong(text: str, rule: Rule = Rule.LIFE) -> Problem:
        return Problem(rule=rule, text=f"job {job.id} {text}", job_id=job.id)

    if not log or (log[0].event, log[0].state) != (Event.ENQUEUED, State.PENDING):
        yield wrong("has a log that does not begin with its enqueueing", Rule.LOG)
        return
    for before, entry in pairwise(log):
        if entry.state not in TRANSITIONS.get((before.state, entry.event), frozenset()):
            yield wrong(f"went from {before.state} by {entry.event} to {entry.state}")
    if any(not entry.actor for entry in log):
        yield wrong("has log entries without an actor", Rule.LOG)
    if (log[-1].state, log[-1].id) != (job.state, job.version):
        yield wrong(f"is {job.state}, but its log ends with {log[-1].state}", Rule.LOG)
    if job.attempt > job.retry.attempts or job.attempt < 0:
        yield wrong(f"is at attempt {job.attempt} of {job.retry.attempts}")
    if job.state is State.RUNNING and (job.expires_at is None or job.worker is None):
        yield wrong("is running without a deadline or a worker")
    if job.state.final and job.finished_at is None:
        yield wrong(f"is {job.state}, but never ended")


def check_tokens(job: Job, log: Sequence[LogEntry], last: tuple[int, int]) -> Iterator[Problem]:
    """Check that tokens are ids of claims, and that no id exceeds those that were assigned."""

    def wrong(text: str) -> Problem:
        return Problem(rule=Rule.TOKEN, text=f"job {job.id} {text}", job_id=job.id)

    ids = [entry.id for entry in log]
    if ids != sorted(set(ids)):
        yield wrong("has log entries whose ids do not grow")
    claims = [entry for entry in log if entry.event is Event.CLAIMED]
    for entry in claims:
        if entry.token != entry.id:
            yield wrong(f"was claimed by entry {entry.id} with token {entry.token}")
    newest = claims[-1].id if claims else 0
    if job.token != newest:
        yield wrong(f"has token {job.token}, but its last claim has {newest}")
    if job.id > last[0] or (ids and ids[-1] > last[1]):
        yield wrong(f"or its log has an id above those that were assigned, {last[0]} and {last[1]}")


def check_needs(
    job: Job, edges: Sequence[Edge], states: Mapping[int, State], expected: Collection[int]
) -> Iterator[Problem]:
    """Check that an unfinished job waits for jobs that have not ended.

    `states` has the states of the jobs that its open `edges` name. Jobs in `expected` were changed
    by other programs; what that means for others is written with the next claim.
    """

    def wrong(text: str) -> Problem:
        return Problem(rule=Rule.DEPENDENCY, text=f"job {job.id} {text}", job_id=job.id)

    if job.state.final or job.id in expected or any(edge.needed in expected for edge in edges):
        return
    if job.needs != len(edges):
        yield wrong(f"waits for {len(edges)} jobs, but counts {job.needs}")
    for edge in edges:
        state = states.get(edge.needed)
        if state is None:
            yield wrong(f"waits for job {edge.needed}, which is gone")
        elif state.final:
            yield wrong(f"waits for job {edge.needed}, which is {state}")


def check_waiting(job: Job, expected: Collection[int]) -> Iterator[Problem]:
    """Check that a pending job waits for a reason; lines of keys are checked on their own."""

    def wrong(text: str) -> Problem:
        return Problem(rule=Rule.WAITING, text=f"job {job.id} {text}", job_id=job.id)

    if (job.state is State.PENDING) != (job.waiting is not None):
        yield wrong(f"is {job.state}, but waits for {job.waiting}")
    if job.id in expected:
        return
    if job.waiting is Waiting.BLOCKED and job.key is None and not job.needs:
        yield wrong("is blocked by nothing")
    if job.waiting in (Waiting.READY, Waiting.SCHEDULED) and job.needs:
        yield wrong(f"is {job.waiting}, although it waits for other jobs")


def check_line(
    key: str, pending: Collection[Queued[T]], running: Collection[int], now: T
) -> Iterator[Problem]:
    """Check that the right job of a key is visible, and no other; see `key_line.rearranged`."""
    for job_id, waiting in rearranged(pending, now, running=bool(running)):
        text = f"job {job_id} of key {key!r:.60} should be {waiting}"
        yield Problem(rule=Rule.KEY, text=text, job_id=job_id)
    if len(running) > 1:
        yield Problem(rule=Rule.KEY, text=f"jobs {sorted(running)} of key {key!r:.60} run together")


def check_dedupe(job: Job, unfinished: Iterable[Holding]) -> Iterator[Problem]:
    """Check that no other job holds the dedupe key of a pending one."""
    if job.state is State.PENDING and job.dedupe is not None:
        rival = holder(job.scope, unfinished, {job.id})
        if rival is not None:
            text = f"jobs {job.id} and {rival} hold the dedupe key {job.dedupe!r:.60} together"
            yield Problem(rule=Rule.DEDUPE, text=text, job_id=job.id)


def check_totals(kept: Counts, counted: Counts) -> Iterator[Problem]:
    """Compare the totals that a store keeps with the jobs that it has."""
    for place in sorted(kept.keys() | counted.keys(), key=str):
        if kept.get(place, 0) != counted.get(place, 0):
            queue, state, waiting = place
            what = f"{state} ({waiting})" if waiting else f"{state}"
            yield Problem(
                rule=Rule.TOTAL,
                text=f"queue {queue!r:.60} has {counted.get(place, 0)} jobs that are {what}, but "
                f"counts {kept.get(place, 0)}",
            )
