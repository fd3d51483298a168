import pytest
from msgspec.structs import replace

from penstock.core.explanation import Facts, explain, is_due
from penstock.core.lifecycle import State, Waiting
from penstock.core.limits import Held
from penstock.core.queue import Queue
from tests.core.support import NOW, SECOND, job

HELD = Held(kind="task", name="t", taken=2, limit=2)
ALL = Facts(
    now=NOW,
    queue=Queue(name="q", paused=True),
    held=[HELD],
    needed=job(7, State.RUNNING),
    first_of_key=job(8, State.RUNNING),
)


def test_first_cause_is_named() -> None:
    blocked, ready = job(waiting=Waiting.BLOCKED, key="k"), job()
    facts = ALL
    assert explain(ready, facts).text == "queue 'q' is paused; resume it to start its jobs"
    facts = replace(facts, queue=Queue(name="q"))
    assert explain(blocked, facts).text == "it waits for job 7, which is running"
    facts = replace(facts, needed=None)
    assert explain(ready, facts).text == "task 't' runs 2 of 2"
    assert explain(blocked, facts).text == "job 8, which is running, holds its key 'k'"
    facts = replace(facts, held=(), first_of_key=None)
    assert explain(ready, facts).reason == "ready"


def test_more_jobs_that_it_waits_for_are_counted() -> None:
    facts = Facts(now=NOW, needed=job(7), more_needed=2)
    found = explain(job(waiting=Waiting.BLOCKED, needs=3), facts)
    assert found.text == "it waits for job 7, which is pending, and for 2 more"
    assert (found.reason, found.blocked_by) == ("blocked", 7)


def test_limit_does_not_hold_a_job_whose_time_has_not_come() -> None:
    later = job(waiting=Waiting.SCHEDULED, run_at=NOW + SECOND)
    assert not is_due(later, NOW)
    assert explain(later, Facts(now=NOW, held=[HELD])).reason == "scheduled"
    assert is_due(later, NOW + SECOND)
    assert explain(later, Facts(now=NOW + SECOND, held=[HELD])).reason == "held"


def test_rate_says_when_the_next_job_may_start() -> None:
    rate = Held(kind="rate", name="q", taken=3, limit=3, until=NOW + SECOND)
    assert explain(job(), Facts(now=NOW, held=[rate])).text == (
        "3 of 3 jobs of queue 'q' have started within its rate, the next can start at "
        "2030-01-01 00:00:01 UTC"
    )


@pytest.mark.parametrize("state", sorted(state for state in State if state.final))
def test_finished_job_names_its_error_or_the_reason(state: State) -> None:
    ended = job(state=state, finished_at=NOW)
    assert explain(ended, Facts(now=NOW)).text.endswith("at 2030-01-01 00:00:00 UTC")
    assert explain(ended, Facts(now=NOW, reason="why")).text.endswith("UTC: why")
    failed = replace(ended, error="ValueError: no\nmore")
    assert explain(failed, Facts(now=NOW, reason="why")).text.endswith("UTC: ValueError: no")


def test_silent_worker_is_named() -> None:
    running = job(state=State.RUNNING, attempt=1, worker="w", expires_at=NOW)
    assert "leased until" in explain(running, Facts(now=NOW)).text
    assert "no longer responds" in explain(running, Facts(now=NOW + SECOND)).text
    asked = replace(running, cancel_requested=True)
    assert explain(asked, Facts(now=NOW)).text.endswith("; it was asked to stop")
