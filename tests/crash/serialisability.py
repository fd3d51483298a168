"""Whether histories of keys and dedupe keys are serialisable.

The log orders all changes. For each key and each dedupe key, that order must be one in which the
calls of all clients could have happened one after the other: no call that was answered before
another one began may come after it. A duplicate reads its holder, so the holder must have been
unfinished at some moment between the request and the answer.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

INFINITE = float("inf")


class Operation(NamedTuple):
    """One call that changed something: its place in the log, when it began, when it was answered.

    Without an answer, it may have happened at any time after it began.
    """

    place: int
    began: float
    answered: float
    text: str


class Duplicate(NamedTuple):
    """One call that was answered with an existing job: where that began and ended in the log."""

    holder: Operation
    end: Operation | None
    began: float
    answered: float
    text: str


def misplaced(histories: Iterable[tuple[str, Operation]]) -> Iterator[str]:
    """What is out of order in the histories of all keys, given by key."""
    by_key: dict[str, list[Operation]] = defaultdict(list)
    for key, operation in histories:
        by_key[key].append(operation)
    for key, operations in by_key.items():
        latest: Operation | None = None  # of those that come before, the one that began last
        for operation in sorted(operations):
            if latest is not None and operation.answered < latest.began:
                yield f"{key}: {operation.text} was answered before {latest.text}, but comes after"
            if latest is None or operation.began > latest.began:
                latest = operation


def stale(duplicates: Iterable[Duplicate]) -> Iterator[str]:
    """Which calls were answered with a job that did not exist yet, or had ended."""
    for found in duplicates:
        if found.answered < found.holder.began:
            yield f"{found.text} was answered with {found.holder.text}, which came later"
        if found.end is not None and found.end.answered < found.began:
            yield f"{found.text} was answered with {found.holder.text}, which had ended"
