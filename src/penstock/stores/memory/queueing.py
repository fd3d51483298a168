"""Which jobs a claim gets, and whether a queue has room for more."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from heapq import merge
from itertools import groupby, islice

from penstock.core.errors import QueueFull, TooManyQueues
from penstock.core.job import Claim, Job, Queue
from penstock.core.lifecycle import State, Waiting
from penstock.stores.memory.claiming import Chosen
from penstock.stores.memory.content import Content
from penstock.stores.memory.shelves import Ranked


def chosen(content: Content, wanted: Claim) -> Chosen:
    """The jobs that a claim gets."""
    found = content.open_queues(wanted.queues)
    queues = [queue for queue in found if wanted.wants(queue.name)]
    if content.claiming.has_a_say(queues):
        return content.claiming.choose(
            wanted,
            queues,
            content.ready,
            content.jobs.__getitem__,
            content.running(),
            content.now,
        )
    entries = islice(_claimable(content, queues, wanted), wanted.limit)
    return Chosen([entry[-1] for entry in entries], {}, {})


def _claimable(content: Content, queues: Iterable[Queue], wanted: Claim) -> Iterator[Ranked]:
    tags: set[str | None] = set(wanted.tags) or {None}
    rankings = [
        content.ready[queue.name, tag]
        for queue in queues
        for tag in tags
        if (queue.name, tag) in content.ready
    ]
    # A job that fits several tags comes up once for each, one after the other.
    return (entry for entry, _ in groupby(merge(*rankings)))


def check_names(content: Content, names: Iterable[str]) -> None:
    """Whether there may be queues of these names, too."""
    new = set(names).difference(content.queues)
    limit = content.claiming.most_queues
    if new and len(content.queues) + len(new) > limit:
        raise TooManyQueues(limit)


def check_lengths(content: Content, written: Collection[Job]) -> None:
    """Whether no queue gets too long by jobs that come, less those that go."""
    queues = content.queues
    if all(
        name not in queues or queues[name].max_pending is None
        for name in {job.queue for job in written}
    ):
        return
    growth: Counter[str] = Counter()
    for job in written:
        growth[job.queue] += job.state is State.PENDING
        if (old := content.jobs.get(job.id)) is not None:
            growth[job.queue] -= old.state is State.PENDING
    for name, more in growth.items():
        limit = content.queues[name].max_pending if name in content.queues else None
        if limit is None or more <= 0:
            continue
        pending = sum(content.totals[name, State.PENDING, kind] for kind in Waiting)
        if pending + more > limit:
            raise QueueFull(name, limit)
