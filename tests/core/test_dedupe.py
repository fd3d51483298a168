import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.dedupe import Holding, holder, needs_key
from penstock.core.job import Scope
from penstock.core.lifecycle import State, cancel, reprioritise, reset
from tests.core.support import job

PENDING, UNFINISHED = Scope.PENDING, Scope.UNFINISHED
HOLDINGS = st.lists(
    st.tuples(st.integers(1, 20), st.booleans(), st.sampled_from(Scope)),
    unique_by=lambda one: one[0],
)


@pytest.mark.parametrize(
    ("scope", "pending", "other", "holds"),
    [
        (PENDING, True, PENDING, True),
        (PENDING, True, UNFINISHED, True),
        (UNFINISHED, True, PENDING, True),
        (PENDING, False, PENDING, False),
        (PENDING, False, UNFINISHED, True),
        (UNFINISHED, False, PENDING, True),
        (UNFINISHED, False, UNFINISHED, True),
    ],
)
def test_only_two_jobs_of_scope_pending_tolerate_each_other(
    scope: Scope, pending: bool, other: Scope, holds: bool
) -> None:
    assert holder(scope, [(7, pending, other)]) == (7 if holds else None)


@given(HOLDINGS, st.sampled_from(Scope))
def test_pending_job_is_named_before_a_running_one_whatever_the_order(
    unfinished: list[Holding], scope: Scope
) -> None:
    found = holder(scope, unfinished)
    assert found == holder(scope, unfinished[::-1])
    pending = [one[0] for one in unfinished if one[1]]
    if pending:
        assert found == min(pending)


@given(HOLDINGS, st.sampled_from(Scope))
def test_excluded_jobs_do_not_hold(unfinished: list[Holding], scope: Scope) -> None:
    left: set[int] = set()
    while (found := holder(scope, unfinished, left)) is not None:
        assert found not in left
        left.add(found)
    assert holder(Scope.UNFINISHED, unfinished, {one[0] for one in unfinished}) is None


def test_only_a_return_to_pending_needs_the_key() -> None:
    failed = job(state=State.FAILED, dedupe="d")
    assert needs_key(failed, reset(failed))
    assert not needs_key(job(state=State.FAILED), reset(failed))
    pending = job(dedupe="d")
    assert not needs_key(pending, cancel(pending))
    assert not needs_key(pending, reprioritise(pending, 7))
