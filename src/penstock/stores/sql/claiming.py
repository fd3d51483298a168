"""Claims where limits, tenants or ages have a say; the others never come here.

Everything that is counted is counted in the claim's own transaction: running jobs per queue from
the kept totals, per task and throttle from the rows of running jobs. A lease that is taken back
leaves nothing behind that could be wrong.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
    Start,
    free_at,
    rate_taken,
    started,
    throttle_limit,
)
from penstock.core.tables import Cursor
from penstock.core.times import from_micros
from penstock.stores.sql.rows import ages_from, encoded, names
from penstock.stores.sql.rows import queue as queue_of
from penstock.stores.sql.transaction import Freed, Transaction

Execute = Callable[..., Cursor]

# How many held jobs a claim puts out of the way at most, before others get their turn.
_PATIENCE = 1_000
_TENANTS_AT_ONCE = 20
_MOST_TENANTS_AT_ONCE = 500
_ALL = -1
# Where the held jobs of merged queues stand; no queue is called so.
MERGED = ""

_starts = msgspec.json.Decoder(list[Start])
_turns = msgspec.json.Decoder(list[tuple[int, str]])
_priorities = msgspec.json.Decoder(list[int])
_candidates = msgspec.json.Decoder(list[tuple[int, int, str, str | None]])
_merged_candidates = msgspec.json.Decoder(list[tuple[int, int, str, str | None, str]])


class _Queue:
    """A queue that is open to this claim, with what its limits say."""

    def __init__(self, row: Sequence[Any], now: int) -> None:
        self.name, self.concurrency, self.rate, self.window = row[:4]
        self.promote_after = None if row[4] is None else ages_from(row[4])
        self.starts = [] if row[5] is None else _starts.decode(row[5])
        self.fair, self.running = bool(row[6]), row[7]
        self.turns: dict[int, str] = dict(_turns.decode(row[8]))
        self.priorities = {*_priorities.decode(row[9])}
        self.priorities_of_tenants = {*_priorities.decode(row[10])}
        self.now = now

    @property
    def room(self) -> int | None:
        """How many of its jobs may start; None for any number."""
        rooms = []
        if self.concurrency is not None:
            rooms.append(self.concurrency - self.running)
        if self.rate is not None:
            rooms.append(self.rate - rate_taken(self.starts, self.now, self.window))
        return min(rooms, default=None)

    def is_released(self, tenant: str, priority: int) -> None:
        """Note that jobs which a limit held are ready again."""
        if tenant == NO_TENANT:
            self.priorities.add(priority)
        else:
            self.fair = True
            self.priorities_of_tenants.add(priority)

    def level(self, priority: int, run_at: int) -> int:
        """The priority that a job has come to by its age, negated."""
        if self.promote_after is None:
            return -priority
        return -promoted(priority, self.now - run_at, self.promote_after)


class _Ready:
    """The ready jobs of a queue, or those with any of some tags, read by portions as wanted."""

    def __init__(self, tx: Transaction, queue: _Queue, tags: Sequence[str], portion: int) -> None:
        self._tx = tx
        self._queue = queue
        self._tags = tags
        self._portion = portion
        # The first job of tenants, by priority: it comes along with their names.
        self._firsts: dict[tuple[int, str], tuple[int, int, str, str | None]] = {}

    def tenants(self, priority: int, after: str) -> Iterator[str]:
        if not self._tags:
            if priority not in self._queue.priorities_of_tenants:
                return iter(())
            return self._tenants("tenants", priority, after)
        tagged = (self._tenants("tenants_tagged", priority, after, tag) for tag in self._tags)
        return (tenant for tenant, _ in groupby(merge(*tagged)))

    def jobs(self, priority: int, tenant: str) -> Iterator[Candidate]:
        if self._tags:  # a job that has several of them comes up once for each
            name = "pick_level_tagged"
            return merge(*(self._jobs(name, priority, tenant, tag, tenant) for tag in self._tags))
        if tenant == NO_TENANT:
            if priority not in self._queue.priorities:
                return iter(())
            return self._jobs("pick_level", priority, tenant)
        return self._jobs("pick_share", priority, tenant, tenant)

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

    def _jobs(self, name: str, priority: int, tenant: str, *more: str) -> Iterator[Candidate]:
        run_at, job_id = -(2**63), 0
        queue, portion = self._queue, self._portion
        if not self._tags and (first := self._firsts.pop((priority, tenant), None)):
            run_at, job_id, task, throttle = first
            level = queue.level(priority, run_at)
            yield Candidate(level, run_at, job_id, queue.name, task, throttle, tenant)
        while True:
            parameters = (queue.name, priority, run_at, job_id, portion, *more)
            found = _candidates.decode(self._tx.execute(name, parameters).fetchone()[0])
            for run_at, job_id, task, throttle in found:
                level = queue.level(priority, run_at)
                yield Candidate(level, run_at, job_id, queue.name, task, throttle, tenant or None)
            if len(found) < portion:
                return
            portion = min(2 * portion, _PATIENCE)  # it walks over held ones


class _Merged:
    """The ready jobs of all queues that have no line of their own, but of those `besides`."""

    def __init__(self, tx: Transaction, besides: str, tags: Sequence[str], portion: int) -> None:
        self._tx = tx
        self._besides = besides
        self._tags = tags
        self._portion = portion

    @cached_property
    def _levels(self) -> set[int]:
        """The priorities that there are jobs of."""
        return {priority for (priority,) in self._tx.execute("merged_levels").fetchall()}

    def stream(self) -> Stream:
        """Highest priority first, then earliest due, then lowest id."""
        for priority in PRIORITIES:
            for job in self._jobs(priority):  # noqa: UP028 - it is no generator to tell
                yield job

    def _jobs(self, priority: int) -> Iterator[Candidate]:
        if not self._tags:
            if priority not in self._levels:
                return iter(())
            return self._level("pick_merged_level", priority)
        name = "pick_merged_level_tagged"  # a job that has several of them comes up for each
        return merge(*(self._level(name, priority, tag) for tag in self._tags))

    def _level(self, name: str, priority: int, *tag: str) -> Iterator[Candidate]:
        run_at, job_id, portion = -(2**63), 0, self._portion
        while True:
            parameters = (self._besides, priority, run_at, job_id, portion, *tag)
            found = _merged_candidates.decode(self._tx.execute(name, parameters).fetchone()[0])
            for run_at, job_id, task, throttle, queue in found:
                yield Candidate(-priority, run_at, job_id, queue, task, throttle, None)
            if len(found) < portion:
                return
            portion = min(2 * portion, _PATIENCE)  # it walks over held ones


class Claiming:
    """One claim: what it may take, in which order, and what it finds held."""

    def __init__(self, tx: Transaction, wanted: Claim, now: int) -> None:
        self._tx = tx
        self._wanted = wanted
        self._now = now

    def choose(self, names: Collection[str], *, merged: bool) -> list[int]:
        """The ids of the jobs to start; none only if there is none to take.

        Of these queues, and of all that have no line of their own if `merged`.
        """
        chosen = self._choose(names, merged)
        while chosen.gave_up and not chosen.taken:
            chosen = self._choose(names, merged)  # behind those that are out of the way now
        return [job.id for job in chosen.taken]

    def _choose(self, names: Collection[str], merged: bool) -> Chosen:  # noqa: FBT001
        found = self._tx.execute("open_queues", (encoded(list(names)),)).fetchall()
        queues = {row[0]: _Queue(row, self._now) for row in found}
        places = places_of(self._tx.execute, {name: queue.room for name, queue in queues.items()})
        by_tag = bool(self._wanted.tags)
        if not by_tag:
            self._release(places, queues, merged)
        streams = [
            self._stream(queue) for name, queue in queues.items() if places.queue_is_open(name)
        ]
        if merged:
            besides = encoded(self._wanted.besides)
            portion = max(1, min(self._wanted.limit, 100))
            streams.append(_Merged(self._tx, besides, self._wanted.tags, portion).stream())
        # By tag, jobs are met also when they stand apart, and cannot be put out of the way.
        chosen = choose(streams, self._wanted.limit, places, None if by_tag else _PATIENCE)
        if not by_tag:
            self._hold(chosen)
        self._note(chosen, queues)
        return chosen

    def _stream(self, queue: _Queue) -> Stream:
        portion = max(1, min(self._wanted.limit, 100))
        return stream_of(
            _Ready(self._tx, queue, self._wanted.tags, portion),
            # By tag, held jobs are met as well, whose tenants the queue does not count.
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
        """Let those be seen again that there are places for.

        Only in queues that this claim takes from: it meets them, and takes or holds each, so
        that a claim which comes to nothing writes nothing.
        """
        for (held,) in self._tx.execute("holders").fetchall():
            room = _room_of(places, held)
            if room is not None and room <= 0:
                continue
            for tenant, queue, priority in self._tx.execute("held_places", (held,)).fetchall():
                if (merged and queue == MERGED) or (
                    queue in queues and places.queue_is_open(queue)
                ):
                    limit = _ALL if room is None else room
                    place = (held, tenant, queue, priority, limit)
                    self._tx.execute("release", (*place, encoded(self._wanted.besides)))
                    self._tx.written = True
                    if queue in queues:
                        queues[queue].is_released(tenant, priority)

    def _hold(self, chosen: Chosen) -> None:
        """Put those out of the way that were met in vain."""
        groups: dict[str, list[int]] = defaultdict(list)
        for job_id, (kind, name) in chosen.held.items():
            groups[f"{kind}:{name}"].append(job_id)
        for held, ids in groups.items():
            self._tx.execute("hold", (held, encoded(ids)))
            self._tx.written = True
        if chosen.gave_up:
            self._tx.ring = True  # there may be more to take behind those

    def _note(self, chosen: Chosen, queues: Mapping[str, _Queue]) -> None:
        """Remember whose turn it was, and what started in queues with a rate."""
        turns = {
            (job.queue, job.level): job.tenant or NO_TENANT
            for job in chosen.taken
            if job.queue in queues and queues[job.queue].fair
        }
        for (name, level), tenant in turns.items():
            self._tx.execute("note_turn", (name, level, tenant))
        for name, n in Counter(job.queue for job in chosen.taken).items():
            queue = queues.get(name)
            if queue is not None and queue.rate is not None:
                starts = started(queue.starts, self._now, n, queue.window)
                self._tx.execute("note_starts", (name, encoded(starts)))
                if rate_taken(starts, self._now, queue.window) >= queue.rate:
                    # Who waits has to look when the rate allows the next.
                    self._tx.ring = self._tx.ring_others = True


def places_of(execute: Execute, queues: Mapping[str, int | None]) -> Places:
    """The places that are free, by the limits in the file and what runs now."""
    limits: dict[str, dict[str, int]] = {"task": {}, "throttle": {}}
    for kind, name, concurrency in execute("limits").fetchall():
        if kind in limits:
            limits[kind][name] = concurrency
    running: dict[str, int] = {}
    if limits["task"]:
        parameters = (encoded(list(limits["task"])),)
        running = dict(execute("running_by_task", parameters).fetchall())
    tasks = {name: limit - running.get(name, 0) for name, limit in limits["task"].items()}

    def throttle_room(name: str) -> int:
        (n,) = execute("running_of_throttle", (name,)).fetchone()
        return throttle_limit(limits["throttle"], name) - int(n)

    return Places(queues=queues, tasks=tasks, throttle=throttle_room)


def _room_of(places: Places, held: str) -> int | None:
    """How many more may start of what a limit holds; None if it has no limit any more."""
    kind, name = held.split(":", 1)
    return places.task(name) if kind == "task" else places.throttle(name)


def room_is_wanted(execute: Execute, freed: Collection[Freed], now: int) -> bool:
    """Whether a limit that these jobs counted for has room, and ready jobs to fill it."""
    queues = encoded({queue for queue, _, _ in freed})
    if execute("queue_is_wanted", (queues, now)).fetchone()[0]:
        return True
    names = {f"task:{task}" for _, task, _ in freed}
    names |= {f"throttle:{throttle}" for _, _, throttle in freed if throttle is not None}
    holding = execute("holding", (encoded(names),)).fetchall()
    places = places_of(execute, {})
    return any((_room_of(places, held) or 0) > 0 for (held,) in holding)


def held_by(execute: Execute, job: Job, now: int) -> list[Held]:
    """See `Store.held`."""
    held: list[Held] = []
    for row in execute("open_queues", (encoded([job.queue]),)).fetchall():
        queue = _Queue(row, now)
        if queue.concurrency is not None and queue.running >= queue.concurrency:
            held.append(
                Held(kind="queue", name=job.queue, taken=queue.running, limit=queue.concurrency)
            )
        if queue.rate is not None and (
            (taken := rate_taken(queue.starts, now, queue.window)) >= queue.rate
        ):
            until = free_at(queue.starts, queue.rate, queue.window)
            held.append(
                Held(
                    kind="rate",
                    name=job.queue,
                    taken=taken,
                    limit=queue.rate,
                    until=None if until is None else from_micros(until),
                )
            )
    limits = execute("limits").fetchall()
    for kind, name, limit in limits:
        if (kind, name) == ("task", job.task):
            running = dict(execute("running_by_task", (encoded([name]),)).fetchall())
            if (taken := running.get(name, 0)) >= limit:
                held.append(Held(kind="task", name=name, taken=taken, limit=limit))
    if job.throttle is not None:
        prefixes = {name: limit for kind, name, limit in limits if kind == "throttle"}
        limit = throttle_limit(prefixes, job.throttle)
        (taken,) = execute("running_of_throttle", (job.throttle,)).fetchone()
        if taken >= limit:
            held.append(Held(kind="throttle", name=job.throttle, taken=taken, limit=limit))
    return held


def ready_tags(
    execute: Execute, queue: str, limit: int, among: Sequence[str] | None, now: int
) -> list[str]:
    """See `Store.ready_tags`; of the jobs that are ready already."""
    stored = execute("queue", (queue,)).fetchone()
    if stored is None or queue_of(stored, now).paused:
        return []
    for row in execute("open_queues", (encoded([queue]),)).fetchall():
        room = _Queue(row, now).room
        if room is not None and room <= 0:
            return []
    if among is None:
        found = execute("ready_tags", (queue, limit))
    else:
        found = execute("ready_tags_among", (queue, limit, encoded(sorted({*among}))))
    return names.decode(found.fetchone()[0])


def next_start(execute: Execute, after: int, now: int) -> int | None:
    """When a rate that holds ready jobs lets the next one start, behind an instant."""
    instants = [
        at
        for rate, window, starts in execute("rates_in_force", (now,)).fetchall()
        if (at := free_at(_starts.decode(starts), rate, window)) is not None and at > after
    ]
    return min(instants, default=None)
