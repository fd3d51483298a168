from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.dependencies import Edge
from penstock.core.job import Job, JobId, LogEntry, LogId, OnFailure
from penstock.core.lifecycle import FINAL, Event, State, Waiting
from penstock.core.restoration import Origin, Plan, Record, as_new_job, originals, plan
from tests.core.support import NOW, SECOND, job

ORIGIN = Origin(source=77, last_job=JobId(500), last_log=LogId(900))
STATES = st.sampled_from([State.PENDING, *sorted(FINAL)])


def record(
    job_id: int,
    state: State = State.PENDING,
    *,
    log: tuple[int, ...] = (1,),
    needs: tuple[int, ...] = (),
    on_failure: OnFailure = OnFailure.CANCEL,
    **fields: Any,
) -> Record:
    """A record of a job with log entries of these ids; every second one is a claim."""
    entries = tuple(
        LogEntry(
            id=LogId(entry),
            job_id=JobId(job_id),
            at=NOW,
            event=Event.CLAIMED if place % 2 else Event.ENQUEUED,
            state=state,
            actor="a",
            token=entry if place % 2 else None,
        )
        for place, entry in enumerate(log)
    )
    edges = tuple(
        Edge(needed=JobId(one), job_id=JobId(job_id), on_failure=on_failure) for one in needs
    )
    return Record(job=job(job_id, state, **fields), log=entries, edges=edges)


def planned(
    *records: Record,
    last: tuple[int, int] = (0, 0),
    known: Mapping[JobId, JobId] | None = None,
    states: Mapping[int, State] | None = None,
    is_held: Callable[[Job], bool] = lambda job: False,
) -> Plan:
    return plan(
        records,
        origin=ORIGIN,
        actor="importer",
        now=NOW,
        last=last,
        known=known or {},
        states=states or {},
        is_held=is_held,
    )


def only(found: Plan) -> Job:
    [one] = found.restored
    return one.job


def test_id_is_kept_only_above_all_that_were_assigned() -> None:
    assert planned(record(7), record(9), last=(5, 0)).answers == [7, 9]
    assert planned(record(7), record(9), last=(8, 0)).answers == [9, 10]
    assert planned(record(7)).last_job == ORIGIN.last_job
    assert planned(record(7), last=(600, 0)).last_job == 601


def test_log_is_renumbered_with_its_tokens_above_both_stores() -> None:
    taken = record(3, State.DONE, log=(10, 11, 12), token=11)
    for last in (0, 2_000):
        found = planned(taken, last=(0, last))
        first = max(last, ORIGIN.last_log) + 1
        [one] = found.restored
        assert [entry.id for entry in one.log] == [*range(first, first + 4)]
        assert [entry.token for entry in one.log] == [None, first + 1, None, None]
        assert (one.job.token, one.job.version, found.last_log) == (first + 1, first + 3, first + 3)
        assert (one.log[-1].event, one.log[-1].state) == (Event.RESTORED, State.DONE)
        assert one.log[-1].reason == "job 3 of store 77"
        assert {entry.job_id for entry in one.log} == {3}


def test_token_of_an_entry_that_is_missing_is_forgotten() -> None:
    assert only(planned(record(3, State.DONE, token=99))).token == 0


def test_known_job_is_not_taken_twice() -> None:
    assert planned(record(3), known={JobId(3): JobId(8)}).answers == [None]
    assert planned(record(3), record(3)).answers == [3, None]


def test_pending_job_is_left_out_while_its_dedupe_key_is_held() -> None:
    held = record(3, dedupe="d")
    assert planned(held, is_held=lambda job: job.dedupe == "d").answers == [None]
    assert planned(held, record(4, dedupe="d"), record(5, dedupe="e")).answers == [3, None, 5]
    finished = record(3, State.FAILED, dedupe="d")
    assert planned(finished, held, is_held=lambda job: True).answers == [3, None]
    assert planned(finished, record(4, dedupe="d")).answers == [3, 4]


def test_parent_is_kept_where_it_was_taken_over() -> None:
    child = record(3, parent=JobId(2))
    assert only(planned(child)).parent is None
    assert only(planned(child, known={JobId(2): JobId(8)})).parent == 8
    assert [one.job.parent for one in planned(child, record(2)).restored] == [4, None]


def test_job_waits_for_what_came_along_or_is_here() -> None:
    waiting = record(3, needs=(1, 2, 4, 5))
    found = planned(
        waiting,
        record(4),
        known={JobId(1): JobId(21), JobId(2): JobId(22)},
        states={21: State.RUNNING},  # 22 was removed since, and 5 was never taken over
        last=(30, 0),
    )
    first, _ = found.restored
    assert [(edge.needed, edge.job_id, edge.resolved) for edge in first.edges] == [
        (21, 31, False),
        (32, 31, False),
    ]
    assert (first.job.needs, first.job.waiting) == (2, Waiting.BLOCKED)
    assert originals([waiting]) == {1, 2, 3, 4, 5}


def test_job_whose_needed_one_has_failed_here_is_abandoned() -> None:
    known = {JobId(1): JobId(21)}
    lost = {"known": known, "states": {21: State.FAILED}}
    found = planned(record(30, needs=(1,)), **lost)  # type: ignore[arg-type] # as they are
    assert found.abandoned == {30: (21, State.FAILED)}
    [one] = found.restored
    assert (one.edges[0].resolved, one.job.needs, one.job.waiting) == (True, 0, Waiting.READY)
    anyway = record(30, needs=(1,), on_failure=OnFailure.RUN)
    assert planned(anyway, **lost).abandoned == {}  # type: ignore[arg-type] # as they are
    over = record(30, State.CANCELLED, needs=(1,))
    assert planned(over, **lost).abandoned == {}  # type: ignore[arg-type] # as they are


def test_pending_job_waits_for_its_line_then_for_its_time() -> None:
    assert only(planned(record(3))).waiting is Waiting.READY
    assert only(planned(record(3, run_at=NOW + SECOND))).waiting is Waiting.SCHEDULED
    assert only(planned(record(3, key="k"))).waiting is Waiting.BLOCKED
    assert only(planned(record(3, State.DONE, key="k"))).waiting is None


@given(
    st.lists(
        st.builds(
            record,
            st.integers(1, 30),
            STATES,
            log=st.lists(st.integers(1, 99), unique=True, min_size=1).map(sorted).map(tuple),
            needs=st.sets(st.integers(1, 30)).map(tuple),
            dedupe=st.sampled_from([None, "d", "e"]),
            parent=st.none() | st.integers(1, 30).map(JobId),
        )
    ),
    st.tuples(st.integers(0, 20), st.integers(0, 2_000)),
)
def test_plan_is_consistent(records: list[Record], last: tuple[int, int]) -> None:
    found = planned(*records, last=last)
    taken = [answer for answer in found.answers if answer is not None]
    assert taken == [one.job.id for one in found.restored] == sorted({*taken})
    assert all(place > last[0] for place in taken)
    numbers = [entry.id for one in found.restored for entry in one.log]
    assert numbers == [*range(max(last[1], ORIGIN.last_log) + 1, found.last_log + 1)]
    assert found.last_job >= max([*taken, ORIGIN.last_job])
    jobs = {one.job.id: one.job for one in found.restored}
    pending = [one.dedupe for one in jobs.values() if one.state is State.PENDING and one.dedupe]
    assert len(pending) == len({*pending})
    for one in found.restored:
        assert one.log[-1].id == one.job.version
        assert one.job.parent is None or one.job.parent in jobs
        assert one.job.needs == sum(not edge.resolved for edge in one.edges)
        for edge in one.edges:
            assert edge.resolved is jobs[edge.needed].state.final
    assert all(jobs[JobId(one)].state is State.PENDING for one in found.abandoned)


def test_request_of_a_stored_job_has_its_options() -> None:
    stored = job(tags=("a",), key="k", lease_time=SECOND, tenant="t", trace="x")
    new = as_new_job(stored)
    assert (new.tags, new.key, new.lease, new.tenant, new.trace) == (("a",), "k", SECOND, "t", "x")
