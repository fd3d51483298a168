from collections.abc import Collection, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.dependencies import (
    check_known,
    check_order,
    handed_over,
    may_wait_for_itself,
    needed_by,
    new_edges,
    orphans,
    predecessors,
    release,
)
from penstock.core.errors import JobNotFound, TransitionRefused
from penstock.core.job import Job, JobId, NewJob, OnFailure
from penstock.core.lifecycle import FINAL, UNFINISHED, State, cancel, reset
from tests.core.support import job

EDGES = st.sets(
    st.tuples(st.integers(1, 12), st.integers(1, 12), st.sampled_from(OnFailure)), max_size=25
).map(lambda edges: {(min(a, b), max(a, b)): rule for a, b, rule in edges if a != b})
"""Which job waits for which, never in a circle: (needed, job) and the job's rule."""


class Line:
    """Jobs that precede others, by edges and, for one key, by their ids."""

    def __init__(self, edges: Iterable[tuple[int, int]], key: Iterable[int] = ()) -> None:
        self.edges = list(edges)
        self.key = sorted(key)

    def before(self, ids: Collection[int]) -> Iterable[int]:
        yield from (needed for needed, job_id in self.edges if job_id in ids)
        yield from (a for a in self.key for b in ids if b in self.key and a < b)

    def newer_in_line(self, job: Job, among: Collection[int]) -> int | None:
        return min((one for one in self.key if one > job.id and one in among), default=None)


def test_needed_jobs_are_stored_ones_and_earlier_ones_of_the_call() -> None:
    new = NewJob(task="t", payload="{}", after=(9, 3), follows=(1, 0))
    assert needed_by(new, [20, 3]) == [3, 9, 20]


def test_first_unknown_job_is_named() -> None:
    check_known([1, 2], {1, 2})
    with pytest.raises(JobNotFound, match="there is no job 2 to wait for"):
        check_known([3, 2, 1], {1})


def test_edge_to_a_job_that_has_ended_is_resolved() -> None:
    edges = new_edges(JobId(9), {JobId(1): State.RUNNING, JobId(2): State.FAILED}, OnFailure.RUN)
    assert [(edge.needed, edge.job_id, edge.resolved) for edge in edges] == [
        (1, 9, False),
        (2, 9, True),
    ]


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("rule", OnFailure)
def test_only_the_failure_of_a_needed_job_makes_an_orphan(state: State, rule: OnFailure) -> None:
    lost = state in {State.FAILED, State.CANCELLED} and rule is OnFailure.CANCEL
    assert orphans({1: state}, [(1, 2, rule)]) == ({2: (1, state)} if lost else {})


def test_lowest_cause_is_named() -> None:
    ended = {5: State.FAILED, 3: State.CANCELLED, 4: State.DONE}
    dependents = [(needed, 9, "cancel") for needed in (5, 4, 3)]
    assert orphans(ended, dependents) == {9: (3, State.CANCELLED)}


@given(EDGES, st.dictionaries(st.integers(1, 12), st.sampled_from(sorted(FINAL)), max_size=3))
def test_ends_spread_as_if_they_happened_one_by_one(
    edges: dict[tuple[int, int], OnFailure], ended: dict[int, State]
) -> None:
    def dependents(ids: Collection[int]) -> list[tuple[int, int, str]]:
        return [(one, by, rule) for (one, by), rule in edges.items() if one in ids]

    def pending(ids: Collection[int]) -> list[int]:
        return [one for one in ids if one not in ended]

    found = release(ended, dependents, pending)
    states = dict(ended)
    resolved: set[tuple[int, int]] = set()
    todo = list(ended)
    while todo:
        over = todo.pop()
        for (one, by), rule in edges.items():
            if one == over:
                resolved.add((one, by))
                if by not in states and orphans(states, [(one, by, rule)]):
                    states[by] = State.CANCELLED
                    todo.append(by)
    assert {(one, by) for one, by, _ in found.edges} == resolved
    assert len(found.edges) == len(resolved)
    assert found.abandoned.keys() == states.keys() - ended.keys()
    assert all(states[needed] is state for needed, state in found.abandoned.values())


@given(EDGES, st.sets(st.integers(1, 12)), st.integers(1, 12))
def test_predecessors_are_closed_under_before(
    edges: dict[tuple[int, int], OnFailure], key: set[int], start: int
) -> None:
    line = Line(edges, key)
    found = predecessors(start, line)
    assert start in found
    assert {*line.before(found)} <= found
    assert all(one <= start for one in found)  # edges and keys alike point to older jobs here


@given(EDGES, st.integers(1, 12), st.integers(1, 12))
def test_nobody_waits_for_itself_after_a_handover(
    edges: dict[tuple[int, int], OnFailure], ended: int, successor: int
) -> None:
    open_edges = {pair for pair in edges if pair[1] != ended}  # it is over
    waiting = [by for one, by in open_edges if one == ended]
    moved = handed_over(waiting, successor, Line(open_edges))
    left = {(one, by) for one, by in open_edges if one != ended}
    after = Line(left | {(successor, by) for by in moved})
    for one in range(1, 13):
        assert one not in predecessors(one, after) - {one}
        assert all(one not in predecessors(two, after) for two in after.before([one]))
    assert {*waiting} - {*moved} <= predecessors(successor, Line(open_edges))


def test_only_a_cancelled_job_with_key_and_needs_may_wait_for_itself() -> None:
    cancelled = job(state=State.CANCELLED, key="k", needs=1)
    assert may_wait_for_itself(cancelled, reset(cancelled))
    for other in (
        job(state=State.CANCELLED, key="k"),
        job(state=State.CANCELLED, needs=1),
        job(state=State.FAILED, key="k", needs=1),
        job(key="k", needs=1),
    ):
        assert not may_wait_for_itself(other, reset(other))
    pending = job(key="k", needs=1)
    assert not may_wait_for_itself(pending, cancel(pending))


def test_job_that_needs_a_newer_one_of_its_key_cannot_return() -> None:
    cancelled = job(2, State.CANCELLED, key="k", needs=1)
    check_order(cancelled, Line({(3, 2)}, key={4}))
    with pytest.raises(TransitionRefused, match="it waits for job 4, which comes after it"):
        check_order(cancelled, Line({(3, 2), (4, 3)}, key={4, 5}))


def test_unfinished_states_never_make_orphans() -> None:
    assert orphans(dict.fromkeys(range(2), State.PENDING), [(0, 9, "cancel")]) == {}
    assert all(orphans({1: state}, [(1, 2, "cancel")]) == {} for state in UNFINISHED)
