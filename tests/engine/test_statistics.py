"""What `Penstock` offers over the sums of its store."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import ConfigurationError, InvalidJob, NewJob, Penstock, run_sync
from penstock.engine import statistics as engine
from penstock.jobs import Event
from tests.contract.support import ManualClock

MINUTE = timedelta(minutes=1)
NEW = NewJob(task="t", payload="{}")


def test_all_portions_are_counted(app: Penstock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "ROLLED_UP_AT_ONCE", 10)
    run_sync(app.enqueue_many([NEW] * 25))
    assert run_sync(app.statistics.roll_up()) == 25
    assert run_sync(app.statistics.roll_up()) == 0


def test_call_ends_when_its_time_is_over(app: Penstock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "ROLLED_UP_AT_ONCE", 10)
    monkeypatch.setattr(engine, "_LONGEST", -1)
    run_sync(app.enqueue_many([NEW] * 25))
    assert [run_sync(app.statistics.roll_up()) for _ in range(4)] == [10, 10, 5, 0]


def test_first_step_is_the_one_that_since_lies_in(app: Penstock, clock: ManualClock) -> None:
    start = clock.now
    for _ in range(3):
        run_sync(app.enqueue_many([NEW]))
        clock.advance(7 * MINUTE)
    run_sync(app.statistics.roll_up())
    found = run_sync(app.statistics.intervals(start + 8 * MINUTE, step=5 * MINUTE))
    assert [(one.at - start, one.counts) for one in found] == [
        (5 * MINUTE, {Event.ENQUEUED: 1}),
        (10 * MINUTE, {Event.ENQUEUED: 1}),
    ]
    assert run_sync(app.statistics.intervals(start, until=start)) == []
    assert run_sync(app.statistics.intervals(start, queue="another")) == []


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"since": datetime(2030, 1, 1)}, "since must be an instant with a time zone"),  # noqa: DTZ001 - has none
        ({"until": "now"}, "until must be an instant with a time zone"),
        ({"step": timedelta(seconds=90)}, "whole minutes"),
        ({"step": timedelta(0)}, "whole minutes"),
        ({"step": 60}, "whole minutes"),
    ],
)
def test_times_are_checked(app: Penstock, asked: dict[str, Any], text: str) -> None:
    asked = {"since": datetime(2030, 1, 1, tzinfo=UTC), **asked}
    with pytest.raises(ConfigurationError, match=text):
        run_sync(app.statistics.intervals(**asked))


def test_queue_is_checked(app: Penstock) -> None:
    with pytest.raises(InvalidJob, match="queue"):
        run_sync(app.statistics.intervals(datetime(2030, 1, 1, tzinfo=UTC), queue=""))
