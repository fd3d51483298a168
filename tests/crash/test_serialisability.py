"""The check of histories: it accepts what could have happened in turn, and nothing else."""

from tests.crash.serialisability import INFINITE, Duplicate, Operation, misplaced, stale

FIRST = Operation(1, 0, 1, "a")
SECOND = Operation(2, 2, 3, "b")


def test_calls_in_the_order_of_the_log_are_accepted() -> None:
    overlapping = Operation(3, 0, 4, "c")
    unanswered = Operation(4, 0, INFINITE, "d")
    history = [FIRST, SECOND, overlapping, unanswered]
    assert list(misplaced(("k", operation) for operation in history)) == []


def test_call_that_was_answered_before_another_began_comes_first() -> None:
    late = FIRST._replace(place=3)
    assert list(misplaced([("k", SECOND), ("k", late)])) == [
        "k: a was answered before b, but comes after"
    ]
    assert list(misplaced([("k", SECOND), ("other", late)])) == []


def test_duplicate_reads_a_job_that_exists() -> None:
    end = Operation(5, 6, 7, "the end of b")
    during = Duplicate(SECOND, end, 4, 5, "m")
    assert list(stale([during, during._replace(began=6, answered=9)])) == []
    assert list(stale([during._replace(began=0, answered=1)])) == [
        "m was answered with b, which came later"
    ]
    assert list(stale([during._replace(began=8, answered=9)])) == [
        "m was answered with b, which had ended"
    ]
