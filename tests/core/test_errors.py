import inspect
import pickle
import re
from datetime import timedelta

import pytest

from penstock.core import errors
from penstock.core.errors import (
    Cancel,
    InvalidJob,
    JobNotFound,
    LeaseLost,
    PayloadTooLarge,
    PenstockError,
    QueueFull,
    ServerUnreachable,
    Snooze,
    StoreError,
    StoreUnavailable,
    UnknownTask,
)

SIGNALS = {Snooze, Cancel}
DEFINED = {
    thing
    for _, thing in inspect.getmembers(errors, inspect.isclass)
    if issubclass(thing, Exception) and thing.__module__ == errors.__name__
}


def test_every_error_has_the_one_root_and_signals_have_not() -> None:
    assert {thing for thing in DEFINED if not issubclass(thing, PenstockError)} == SIGNALS


def test_the_drawn_tree_is_the_tree() -> None:
    drawn: dict[str, str] = {}
    branch = {0: "PenstockError"}
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"^([│├└─ ]*)[├└]── (\w+)", line):
            depth = len(match[1]) // 4 + 1
            drawn[match[2]] = branch[depth - 1]
            branch[depth] = match[2]
    real = {
        thing.__name__: thing.__bases__[0].__name__ for thing in DEFINED - SIGNALS - {PenstockError}
    }
    assert drawn == real


def test_queue_full_says_which_queue_and_what_to_do() -> None:
    error = QueueFull("mail", 10)
    assert (error.queue, error.limit) == ("mail", 10)
    assert "'mail'" in str(error)
    assert "10" in str(error)
    assert "try again later" in str(error)


def test_lost_lease_says_which_and_what_to_do() -> None:
    error = LeaseLost(7, 42)
    assert (error.job_id, error.token) == (7, 42)
    assert "job 7" in str(error)
    assert "token 42" in str(error)
    assert "discard the result" in str(error)


@pytest.mark.parametrize(
    ("error", "familiar"),
    [
        (InvalidJob, ValueError),
        (PayloadTooLarge, InvalidJob),
        (UnknownTask, LookupError),
        (JobNotFound, LookupError),
        (StoreUnavailable, StoreError),
        (ServerUnreachable, StoreError),
    ],
)
def test_errors_are_caught_by_familiar_names(
    error: type[Exception], familiar: type[Exception]
) -> None:
    assert issubclass(error, familiar)


def test_snooze_carries_its_delay_and_reason() -> None:
    signal = Snooze(timedelta(minutes=5), "rate limit")
    assert (signal.delay, signal.reason, str(signal)) == (
        timedelta(minutes=5),
        "rate limit",
        "rate limit",
    )
    assert Snooze(timedelta(0)).reason == "snoozed by its handler"


def test_cancel_carries_its_reason() -> None:
    assert (Cancel("obsolete").reason, str(Cancel("obsolete"))) == ("obsolete", "obsolete")
    assert Cancel().reason == "cancelled by its handler"


@pytest.mark.parametrize(
    "error",
    [
        QueueFull("mail", 10),
        QueueFull("mail", 10, timedelta(seconds=1)),
        LeaseLost(7, 42),
        ServerUnreachable("gone", arrived=False),
        Snooze(timedelta(1), "later"),
        Cancel("no"),
    ],
)
def test_errors_travel_between_processes(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
