import pytest

from penstock.core.dependencies import Edge
from penstock.core.errors import Overtaken
from penstock.core.job import JobId, LogId, OnFailure
from penstock.core.superseding import Tail, check_tail, inherited
from tests.core.support import job

NEWEST = job(7, version=LogId(3))


@pytest.mark.parametrize("newest", [None, (7, 4), (8, 3)])
def test_job_is_not_stored_when_the_newest_pending_one_is_another(
    newest: tuple[int, int] | None,
) -> None:
    check_tail("k", Tail(job=NEWEST), (7, 3))
    with pytest.raises(Overtaken, match="the pending jobs of key 'k' have changed"):
        check_tail("k", Tail(job=NEWEST), newest)


def test_key_without_a_pending_job_has_to_stay_so() -> None:
    check_tail("k", Tail(job=None), None)
    with pytest.raises(Overtaken):
        check_tail("k", Tail(job=None), (1, 1))


def test_only_a_replaced_job_gives_up_its_place() -> None:
    assert Tail(job=NEWEST, replaces=True).replaced is NEWEST
    assert Tail(job=NEWEST).replaced is None
    assert Tail(job=None, replaces=True).replaced is None


def test_replacing_job_inherits_open_edges_that_it_lacks() -> None:
    edges = [
        Edge(needed=JobId(n), job_id=JobId(7), on_failure=OnFailure.RUN, resolved=n == 1)
        for n in (1, 2, 3)
    ]
    assert inherited(edges, JobId(9), {3}) == [
        Edge(needed=JobId(2), job_id=JobId(9), on_failure=OnFailure.RUN)
    ]
