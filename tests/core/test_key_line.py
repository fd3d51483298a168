from hypothesis import given
from hypothesis import strategies as st

from penstock.core.key_line import Queued, rearranged, waiting
from penstock.core.lifecycle import Waiting
from tests.core.support import NOW, SECOND

READY, SCHEDULED, BLOCKED = Waiting.READY, Waiting.SCHEDULED, Waiting.BLOCKED
NOON = 100

PENDING = st.builds(
    Queued[int],
    id=st.integers(1, 9),
    waiting=st.just(BLOCKED),
    needs=st.integers(0, 1),
    run_at=st.sampled_from([NOON, NOON + 1]),
)


def test_pending_job_waits_for_jobs_first_then_for_its_time() -> None:
    assert waiting(NOW, NOW) is READY
    assert waiting(NOW + SECOND, NOW) is SCHEDULED
    assert waiting(NOON, NOON + 1) is READY
    for at in (NOW, NOW + SECOND):
        assert waiting(at, NOW, needs=1) is BLOCKED
        assert waiting(at, NOW, behind=True) is BLOCKED


def as_shown(line: dict[int, Queued[int]], *, running: bool) -> dict[int, Queued[int]]:
    oldest = {line[min(line)]} if line else set()
    visible = {one for one in line.values() if one.waiting is not BLOCKED}
    changes = rearranged(oldest | visible, NOON, running=running)
    assert changes == rearranged(line.values(), NOON, running=running)  # the others do not matter
    return {**line, **{one: line[one]._replace(waiting=kind) for one, kind in changes}}


@given(st.lists(PENDING, unique_by=lambda one: one.id), st.booleans())
def test_at_most_the_head_is_visible(line: list[Queued[int]], running: bool) -> None:
    jobs = {one.id: one for one in line}
    visible = sorted(jobs)[-1:]  # as if older jobs had come back since
    jobs.update((one, jobs[one]._replace(waiting=READY, needs=0)) for one in visible)
    found = as_shown(jobs, running=running)
    shown = {one.id for one in found.values() if one.waiting is not BLOCKED}
    head = min(jobs, default=None)
    if running or head is None or jobs[head].needs:
        assert shown == set()
    else:
        assert shown == {head}
        assert found[head].waiting in {waiting(found[head].run_at, NOON), READY}
    assert as_shown(found, running=running) == found


def test_head_that_needs_others_keeps_the_line_waiting() -> None:
    head = Queued(1, BLOCKED, 1, NOON)
    assert rearranged([head], NOON, running=False) == []
    assert rearranged([head._replace(needs=0)], NOON, running=False) == [(1, READY)]


def test_visible_job_yields_to_an_older_one() -> None:
    older, visible = Queued(1, BLOCKED, 0, NOON + 1), Queued(2, READY, 0, NOON)
    assert rearranged([visible, older], NOON, running=False) == [(2, BLOCKED), (1, SCHEDULED)]


def test_visible_head_stays_as_it_is() -> None:
    head = Queued(1, SCHEDULED, 0, NOON + 1)
    assert rearranged([head], NOON, running=False) == []
    assert rearranged([], NOON, running=True) == []
