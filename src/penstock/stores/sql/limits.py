"""How limits apply: which ready jobs they let a claim take or hold back, and when that changes.

Other claims never come here. Everything is counted in the claim's own transaction: running jobs per
queue from the kept totals, per task and throttle from the rows of running jobs. An expired lease
leaves nothing behind that could be wrong.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import merge
from itertools import groupby
from typing import Any

import msgspec

from penstock.core.choosing import (
    NO_TENANT,
    PRIORITIES,
    Candidate,
    Chosen,
    Stream,
    choose,
    promoted,
    stream_of,
)
from penstock.core.job import Claim, Job
from penstock.core.limits import (
    Held,
    Places,
    QueueLoad,
    Start,
    held_places,
    next_start,
    throttle_limit,
)
from penstock.core.tasks import SetAside, set_aside_as
from penstock.core.times import from_micros
from penstock.stores.sql.database import Freed, Reader, Transaction
from penstock.stores.sql.rows import ages_from, encoded, names
from penstock.stores.sql.rows import queue as queue_of

# How many held jobs a claim sets aside at most, before others get their turn.
_MOST_HELD = 1_000
_TENANTS_AT_ONCE = 20
_MOST_TENANTS_AT_ONCE = 500
_ALL = -1
_EVERY_ONE = 2**62
# Of how many unknown tasks a claim without tasks considers the jobs that are set aside.
MOST_TASKS = 10_000
# The name under which the held jobs of all merged queues are found; no queue has it.
MERGED = ""

_starts = msgspec.json.Decoder(list[Start])
_turns = msgspec.json.Decoder(list[tuple[int, str]])
_priorities = msgspec.json.Decoder(list[int])
_candidates = msgspec.json.Decoder(list[tuple[int, int, str, str | None, int]])
_merged_candidates = msgspec.json.Decoder(list[tuple[int, int, str, str | None, int, str]])

Group = tuple[str, int]
"""A tenant and a priority."""


class _Queue:
    """A queue open to a claim, with its limits and what counts towards them."""

    def __init__(self, row: Sequence[Any], now: int) -> None:
        name, concurrency, rate, window = row[:4]
        starts = [] if row[5] is None else _starts.decode(row[5])
        self.name = name
        self.load = QueueLoad(name, concurrency, row[7], rate, window or 0, starts)
        self.promote_after = None if row[4] is None else ages_from(row[4])
        self.fair = bool(row[6])
        self.turns: dict[int, str] = dict(_turns.decode(row[8]))
        self.priorities = {*_priorities.decode(row[9])}
        self.priorities_of_tenants = {*_priorities.decode(row[10])}
        self.aside: dict[Group, list[str]] = defaultdict(list)
        """The names under which jobs that the claim may take are set aside."""
        self.now = now

    @property
    def room(self) -> int | None:
        """How many of its jobs may start; None for any number."""
        return self.load.room(self.now)

    def add_released(self, tenant: str, priority: int) -> None:
        """Note that jobs which a limit held are ready again."""
        if tenant == NO_TENANT:
            self.priorities.add(priority)
        else:
            self.fair = True
            self.priorities_of_tenants.add(priority)

    def add_aside(self, tenant: str, priority: int, held: str) -> None:
        """Note that jobs which the claim may take are set aside under this name."""
        self.aside[tenant, priority].append(held)
        self.fair = self.fair or tenant != NO_TENANT

    def level(self, priority: int, run_at: int) -> int:
        """The priority that a job has reached by its age, negated."""
        if self.promote_after is None:
            return -priority
        return -promoted(priority, self.now - run_at, self.promote_after)


class _ReadyInSql:
    """The ready jobs of a queue, or those with any of some tags, read in portions as needed."""

    def __init__(self, tx: Transaction, queue: _Queue, wanted: Claim, portion: int) -> None:
        self._tx = tx
        self._queue = queue
        self._tags = wanted.tags
        self._holders = _holders(wanted)
        self._portion = portion
        # The first job of tenants, by priority: queries return it with their names.
        self._firsts: dict[tuple[int, str], tuple[int, int, str, str | None, int]] = {}

    def tenants(self, priority: int, after: str) -> Iterator[str]:
        if not self._tags:
            aside = sorted(
                tenant
                for tenant, level in self._queue.aside
                if level == priority and tenant > after and tenant != NO_TENANT
            )
            if priority not in self._queue.priorities_of_tenants:
                return iter(aside)
            ready = self._tenants("tenants", priority, after)
            return (tenant for tenant, _ in groupby(merge(ready, aside))) if aside else ready
        tagged = (self._tenants("tenants_tagged", priority, after, tag) for tag in self._tags)
        return (tenant for tenant, _ in groupby(merge(*tagged)))

    def jobs(self, priority: int, tenant: str) -> Iterator[Candidate]:
        if self._tags:  # a job that has several of them comes up once for each
            name = "pick_level_tagged"
            more = (tenant, self._holders)
            return merge(*(self._jobs(name, priority, tenant, tag, *more) for tag in self._tags))
        ready = self._ready_jobs(priority, tenant)
        aside = self._queue.aside.get((tenant, priority))
        if not aside:
            return ready
        portion = self._portion
        return merge(ready, *(self._aside_jobs(priority, tenant, held, portion) for held in aside))

    def _ready_jobs(self, priority: int, tenant: str) -> Iterator[Candidate]:
        if tenant == NO_TENANT:
            if priority not in self._queue.priorities:
                return iter(())
            return self._jobs("pick_level", priority, tenant)
        return self._jobs("pick_share", priority, tenant, tenant)

    def _aside_jobs(
        self, priority: int, tenant: str, held: str, portion: int
    ) -> Iterator[Candidate]:
        group = (self._queue.name, priority, tenant, held, "[]")
        for run_at, job_id, task, throttle, version, queue in _aside(self._tx, group, portion):
            level = self._queue.level(priority, run_at)
            yield Candidate(level, run_at, job_id, queue, task, throttle, tenant or None, version)

    def _tenants(self, name: str, priority: int, after: str, *tag: str) -> Iterator[str]:
        at_once = max(_TENANTS_AT_ONCE, self._portion + 1)  # a claim looks one ahead
        while True:
            parameters = (self._queue.name, priority, after, at_once, *tag)
            found = self._tx.execute(name, parameters).fetchall()
            for tenant, *first in found:
                if first:
                    self._firsts[priority, tenant] = tuple(first)
                yield tenant
            if len(found) < at_once:
                return
            after = found[-1][0]
            at_once = min(2 * at_once, _MOST_TENANTS_AT_ONCE)

    def _jobs(
        self, name: str, priority: int, tenant: str, *more: str | None
    ) -> Iterator[Candidate]:
        run_at, job_id = -(2**63), 0
        queue, portion = self._queue, self._portion
        if not self._tags and (first := self._firsts.pop((priority, tenant), None)):
            run_at, job_id, task, throttle, version = first
            level = queue.level(priority, run_at)
            yield Candidate(level, run_at, job_id, queue.name, task, throttle, tenant, version)
        while True:
            parameters = (queue.name, priority, run_at, job_id, portion, *more)
            found = _candidates.decode(self._tx.execute(name, parameters).fetchone()[0])
            for run_at, job_id, task, throttle, version in found:
                yield Candidate(
                    queue.level(priority, run_at), run_at, job_id, queue.name, task, throttle,
                    tenant or None, version,
                )  # fmt: skip
            if len(found) < portion:
                return
            portion = min(2 * portion, _MOST_HELD)  # it walks over held ones


def _aside(
    tx: Transaction, group: tuple[str, int, str, str, str], portion: int
) -> Iterator[tuple[int, int, str, str | None, int, str]]:
    """Yield the jobs of a queue, priority and tenant that are set aside under a name, in order."""
    queue, priority, tenant, held, besides = group
    run_at, job_id = -(2**63), 0
    while True:
        parameters = (queue, priority, run_at, job_id, portion, held, tenant, besides)
        found = _merged_candidates.decode(tx.execute("pick_aside", parameters).fetchone()[0])
        yield from found
        if len(found) < portion:
            return
        run_at, job_id = found[-1][:2]
        portion = min(2 * portion, _MOST_HELD)


class _Merged:
    """The ready jobs of all queues without an index of their own, except those `besides`."""

    def __init__(self, tx: Transaction, wanted: Claim, portion: int) -> None:
        self._tx = tx
        self._besides = encoded(wanted.except_queues)
        self._tags = wanted.tags
        self._holders = _holders(wanted)
        self._portion = portion
        self.aside: dict[int, list[str]] = defaultdict(list)
        """The names under which jobs that the claim may take are set aside, by priority."""

    @cached_property
    def _levels(self) -> set[int]:
        """The priorities of ready jobs."""
        return {priority for (priority,) in self._tx.execute("merged_levels").fetchall()}

    def stream(self) -> Stream:
        """Highest priority first, then earliest due, then lowest id."""
        for priority in PRIORITIES:
            for job in self._jobs(priority):  # noqa: UP028 - it takes no sent values
                yield job

    def _jobs(self, priority: int) -> Iterator[Candidate]:
        if not self._tags:
            aside = [self._aside_level(priority, held) for held in self.aside.get(priority, ())]
            if priority not in self._levels:
                return merge(*aside)
            return merge(self._level("pick_merged_level", priority), *aside)
        name = "pick_merged_level_tagged"  # a job with several of them comes up for each
        return merge(*(self._level(name, priority, tag, self._holders) for tag in self._tags))

    def _aside_level(self, priority: int, held: str) -> Iterator[Candidate]:
        group = (MERGED, priority, NO_TENANT, held, self._besides)
        for run_at, job_id, task, throttle, version, queue in _aside(
            self._tx, group, self._portion
        ):
            yield Candidate(-priority, run_at, job_id, queue, task, throttle, None, version)

    def _level(self, name: str, priority: int, *tag: str | None) -> Iterator[Candidate]:
        run_at, job_id, portion = -(2**63), 0, self._portion
        while True:
            parameters = (self._besides, priority, run_at, job_id, portion, *tag)
            found = _merged_candidates.decode(self._tx.execute(name, parameters).fetchone()[0])
            for run_at, job_id, task, throttle, version, queue in found:
                yield Candidate(-priority, run_at, job_id, queue, task, throttle, None, version)
            if len(found) < portion:
                return
            portion = min(2 * portion, _MOST_HELD)  # it walks over held ones


def _holders(wanted: Claim) -> str | None:
    """Return the names under which jobs that the claim may take are set aside; None for all."""
    return None if wanted.tasks is None else wanted.tasks.encoded_holders


class LimitedClaim:
    """One claim: what it may take, in which order, and what it finds held."""

    def __init__(self, tx: Transaction, wanted: Claim) -> None:
        self._tx = tx
        self._wanted = wanted

    def choose(self, names: Collection[str], *, merged: bool) -> list[int] | None:
        """Return the ids of the jobs to start.

        None if there may be some behind those that were set aside now: another transaction goes on,
        so that none keeps other writers waiting. Looks at these queues, and at all without an index
        of their own if `merged`.
        """
        chosen = self._choose(names, merged)
        if chosen.gave_up and not chosen.taken:
            return None
        return [job.id for job in chosen.taken]

    def _choose(self, names: Collection[str], merged: bool) -> Chosen:  # noqa: FBT001
        found = self._tx.execute("open_queues", (encoded(list(names)),)).fetchall()
        queues = {row[0]: _Queue(row, self._tx.now) for row in found}
        places = places_of(self._tx, {name: queue.room for name, queue in queues.items()})
        by_tag = bool(self._wanted.tags)
        portion = max(1, min(self._wanted.limit, 100))
        others = _Merged(self._tx, self._wanted, portion)
        if not by_tag:
            self._release(places, queues, merged)
            self._find_aside(queues, others)
        streams = [
            self._stream(queue) for name, queue in queues.items() if places.queue_is_open(name)
        ]
        if merged:
            streams.append(others.stream())
        chosen = choose(
            streams,
            self._wanted.limit,
            places,
            _MOST_HELD,
            self._wanted.knows,
            # By tag, a claim also meets jobs that limits hold; it cannot set them aside again.
            holds_for_limits=not by_tag,
        )
        self._hold(chosen)
        self._record(chosen, queues)
        return chosen

    def _stream(self, queue: _Queue) -> Stream:
        portion = max(1, min(self._wanted.limit, 100))
        return stream_of(
            _ReadyInSql(self._tx, queue, self._wanted, portion),
            # By tag, a claim also meets held jobs, whose tenants the queue does not count.
            fair=queue.fair or bool(self._wanted.tags),
            ages=queue.promote_after is not None,
            last=lambda: queue.turns,
        )

    def _release(
        self,
        places: Places,
        queues: Mapping[str, _Queue],
        merged: bool,  # noqa: FBT001
    ) -> None:
        """Release held jobs that have room to start now.

        Only in queues that this claim takes from: it meets them and takes or holds each, so that
        a claim without a result writes nothing.
        """
        for (held,) in self._tx.execute("holding_limits").fetchall():
            room = _room_of(places, held)
            if room is not None and room <= 0:
                continue
            for tenant, queue, priority in self._tx.execute("held_groups", (held,)).fetchall():
                if (merged and queue == MERGED) or (
                    queue in queues and places.queue_is_open(queue)
                ):
                    limit = _ALL if room is None else room
                    group = (held, tenant, queue, priority, limit)
                    self._tx.execute("release_held", (*group, encoded(self._wanted.except_queues)))
                    self._tx.written = True
                    if queue in queues:
                        queues[queue].add_released(tenant, priority)

    def _find_aside(self, queues: Mapping[str, _Queue], others: _Merged) -> None:
        """Find the jobs that other claims have set aside, and that this one may take."""
        if self._wanted.tasks is None:
            found = self._tx.execute("holding_tasks", (MOST_TASKS,)).fetchall()
        else:
            holders = (self._wanted.tasks.encoded_holders,)
            found = self._tx.execute("holding_tasks_among", holders).fetchall()
        for (held,) in found:
            for tenant, queue, priority in self._tx.execute("held_groups", (held,)).fetchall():
                if queue in queues:
                    queues[queue].add_aside(tenant, priority, held)
                elif queue == MERGED:
                    others.aside[priority].append(held)

    def _hold(self, chosen: Chosen) -> None:
        """Set held jobs aside, so that the next claim does not meet them."""
        groups: dict[str, list[int]] = defaultdict(list)
        for job_id, (kind, name) in chosen.held.items():
            groups[f"{kind}:{name}"].append(job_id)
        for held, ids in groups.items():
            self._tx.execute("hold_jobs", (held, encoded(ids)))
            self._tx.written = True
        if chosen.gave_up and chosen.taken:
            self._tx.notify = True  # there may be more to take behind those

    def _record(self, chosen: Chosen, queues: Mapping[str, _Queue]) -> None:
        """Record whose turn it was, and what started in queues with a rate."""
        turns = {
            (job.queue, job.level): job.tenant or NO_TENANT
            for job in chosen.taken
            if job.queue in queues and queues[job.queue].fair
        }
        for (name, level), tenant in turns.items():
            self._tx.execute("set_turn", (name, level, tenant))
        for name, n in Counter(job.queue for job in chosen.taken).items():
            queue = queues.get(name)
            starts = None if queue is None else queue.load.started(n, self._tx.now)
            if queue is None or starts is None:
                continue
            self._tx.execute("set_starts", (name, encoded(starts)))
            left = queue.load._replace(concurrency=None, starts=starts).room(self._tx.now)
            if left is not None and left <= 0:
                # Waiters have to look when the rate allows the next start.
                self._tx.notify = self._tx.notify_others = True


def places_of(reader: Reader, queues: Mapping[str, int | None]) -> Places:
    """Return the free slots, by the stored limits and what runs now."""
    limits: dict[str, dict[str, int]] = {"task": {}, "throttle": {}}
    for kind, name, concurrency in reader.execute("limits").fetchall():
        if kind in limits:
            limits[kind][name] = concurrency
    running: dict[str, int] = {}
    if limits["task"]:
        parameters = (encoded(list(limits["task"])),)
        running = dict(reader.execute("running_by_task", parameters).fetchall())
    tasks = {name: limit - running.get(name, 0) for name, limit in limits["task"].items()}

    def throttle_room(name: str) -> int:
        (n,) = reader.execute("running_of_throttle", (name,)).fetchone()
        return throttle_limit(limits["throttle"], name) - int(n)

    return Places(queues=queues, tasks=tasks, throttle=throttle_room)


def _room_of(places: Places, held: str) -> int | None:
    """Return how many more held jobs of a limit may start; None if the limit was lifted."""
    kind, name = held.split(":", 1)
    return places.task(name) if kind == "task" else places.throttle(name)


def has_waiting_jobs(reader: Reader, freed: Collection[Freed]) -> bool:
    """Return whether a limit that these jobs counted towards has room, and jobs to fill it."""
    queues = encoded({queue for queue, _, _ in freed})
    if reader.execute("any_queue_has_room", (queues, reader.clock())).fetchone()[0]:
        return True
    names = {f"task:{task}" for _, task, _ in freed}
    names |= {f"throttle:{throttle}" for _, _, throttle in freed if throttle is not None}
    holding = reader.execute("holding_limits_among", (encoded(names),)).fetchall()
    places = places_of(reader, {})
    return any((_room_of(places, held) or 0) > 0 for (held,) in holding)


def held_by(reader: Reader, job: Job) -> list[Held]:
    """See `Store.held`."""
    now = reader.clock()
    held: list[Held] = []
    for row in reader.execute("open_queues", (encoded([job.queue]),)).fetchall():
        held += _Queue(row, now).load.held(now)
    limits = reader.execute("limits").fetchall()
    for kind, name, limit in limits:
        if (kind, name) == ("task", job.task):
            running = dict(reader.execute("running_by_task", (encoded([name]),)).fetchall())
            held += held_places("task", name, running.get(name, 0), limit)
    if job.throttle is not None:
        prefixes = {name: limit for kind, name, limit in limits if kind == "throttle"}
        (taken,) = reader.execute("running_of_throttle", (job.throttle,)).fetchone()
        limit = throttle_limit(prefixes, job.throttle)
        held += held_places("throttle", job.throttle, taken, limit)
    return held


def set_aside(reader: Reader, most: int | None) -> list[SetAside]:
    """See `Store.set_aside`."""
    return [
        SetAside(*set_aside_as(held), queue=queue, jobs=jobs, oldest=from_micros(oldest))
        for held, queue, jobs, oldest in reader.execute(
            "set_aside", (_EVERY_ONE if most is None else most,)
        ).fetchall()
    ]


def ready_tags(
    reader: Reader, queue: str, limit: int, among: Sequence[str] | None, now: int
) -> list[str]:
    """See `Store.ready_tags`; of the jobs that are ready already."""
    stored = reader.execute("queue", (queue,)).fetchone()
    if stored is None or queue_of(stored, now).paused:
        return []
    for row in reader.execute("open_queues", (encoded([queue]),)).fetchall():
        room = _Queue(row, now).room
        if room is not None and room <= 0:
            return []
    if among is None:
        found = reader.execute("ready_tags", (queue, limit))
    else:
        found = reader.execute("ready_tags_among", (queue, limit, encoded(sorted({*among}))))
    return names.decode(found.fetchone()[0])


def next_change(reader: Reader, after: int) -> tuple[int | None, int]:
    """Return when the next job may become claimable by itself, after an instant, and the time.

    A job falls due, a pause ends, or a rate allows the next start.
    """
    due, is_rated, now = reader.next_change(after)
    if not is_rated:
        return due, now
    loads = [
        QueueLoad("", rate=rate, window=window, starts=_starts.decode(starts))
        for rate, window, starts in reader.execute("rates_in_force", (now,)).fetchall()
    ]
    start = next_start(loads, after)
    return min((at for at in (due, start) if at is not None), default=None), now
