import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import QueueFull, TooManyQueues
from penstock.core.limits import (
    DEFAULT_THROTTLE,
    MOST_QUEUES,
    QueueLoad,
    held_places,
    next_start,
    queue_full,
    throttle_limit,
    too_many_queues,
)
from penstock.core.times import from_micros

WINDOW = 1_000


def test_longest_prefix_limits_a_throttle() -> None:
    prefixes = {"": 5, "mail:": 2, "mail:slow": 1}
    assert throttle_limit(prefixes, "mail:fast") == 2
    assert throttle_limit(prefixes, "mail:slower") == 1
    assert throttle_limit(prefixes, "other") == 5
    assert throttle_limit({}, "other") == DEFAULT_THROTTLE


@pytest.mark.parametrize(
    ("limit", "pending", "more", "full"),
    [
        (None, 10**9, 1, False),
        (3, 2, 1, False),
        (3, 3, 1, True),
        (3, 3, 0, False),  # a job that replaces a pending one
        (3, 9, 0, False),  # also in a queue that is over its limit
        (3, 9, -1, False),
        (0, 0, 1, True),
    ],
)
def test_queue_is_full_when_it_would_grow_beyond_its_limit(
    limit: int | None, pending: int, more: int, full: bool
) -> None:
    found = queue_full("q", limit, pending, more)
    assert isinstance(found, QueueFull) if full else found is None


def test_existing_queues_may_be_too_many() -> None:
    assert too_many_queues(5, 0, 1) is None
    assert too_many_queues(5, 1, 6) is None
    assert isinstance(too_many_queues(5, 2, 6), TooManyQueues)
    assert too_many_queues(MOST_QUEUES - 1, 1, None) is None
    assert isinstance(too_many_queues(MOST_QUEUES, 1, None), TooManyQueues)


def test_room_is_the_least_that_a_limit_leaves() -> None:
    assert QueueLoad("q").room(0) is None
    assert QueueLoad("q", concurrency=3, running=1).room(0) == 2
    starts = [(10, 10, 2)]
    both = QueueLoad("q", concurrency=9, running=1, rate=3, window=WINDOW, starts=starts)
    assert both.room(10) == 1
    assert both.room(10 + WINDOW) == 3


def test_limits_that_hold_are_named_with_what_they_count() -> None:
    load = QueueLoad("q", concurrency=2, running=2, rate=1, window=WINDOW, starts=[(100, 100, 1)])
    queue, rate = load.held(100)
    assert (queue.kind, queue.taken, queue.limit) == ("queue", 2, 2)
    assert (rate.kind, rate.taken, rate.limit) == ("rate", 1, 1)
    assert rate.until == from_micros(100 + WINDOW)
    assert load._replace(running=1).held(100 + WINDOW) == []
    assert held_places("task", "t", 1, 2) == []
    [held] = held_places("throttle", "x", 2, 2)
    assert (held.kind, held.name, held.taken, held.limit) == ("throttle", "x", 2, 2)


def test_next_start_is_the_first_that_lies_ahead() -> None:
    loads = [QueueLoad("a", rate=1, window=WINDOW, starts=[(at, at, 1)]) for at in (0, 500, 700)]
    assert next_start([*loads, QueueLoad("b")], 0) == WINDOW
    assert next_start(loads, WINDOW) == 500 + WINDOW
    assert next_start(loads, 5 * WINDOW) is None
    assert next_start([QueueLoad("c", rate=2, window=WINDOW, starts=[(0, 0, 1)])], 0) is None


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 5)), max_size=40),
)
def test_rate_is_never_exceeded_in_any_window(limit: int, steps: list[tuple[int, int]]) -> None:
    load = QueueLoad("q", rate=limit, window=WINDOW)
    now, all_starts = 0, list[int]()
    for wait, wanted in steps:
        now += wait
        n = min(wanted, load.room(now) or 0)
        if n <= 0:
            free = load.next_start()
            assert free is not None
            assert free > now
            assert (load.room(free) or 0) > 0
            continue
        load = load._replace(starts=load.started(n, now) or ())
        all_starts += [now] * n
    for at in all_starts:
        assert sum(at <= one < at + WINDOW for one in all_starts) <= limit


def test_queue_without_a_rate_remembers_no_starts() -> None:
    assert QueueLoad("q", concurrency=1).started(3, 0) is None
    assert QueueLoad("q", concurrency=1).next_start() is None
