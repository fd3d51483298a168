"""Optimistic decisions, without a store."""

import pytest

from penstock.core.errors import Overtaken
from penstock.engine.decision import Contended, decide


async def test_answer_of_the_first_attempt_is_returned() -> None:
    async def attempt() -> int:
        return 7

    assert await decide(attempt, "job 1") == 7


async def test_attempt_that_was_overtaken_is_repeated() -> None:
    answers = iter([None, Overtaken("k"), 0])  # an answer may be false

    async def attempt() -> int | None:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert await decide(attempt, "job 1") == 0


async def test_other_errors_are_raised_at_once() -> None:
    attempts = 0

    async def attempt() -> int:
        nonlocal attempts
        attempts += 1
        raise KeyError(attempts)

    with pytest.raises(KeyError):
        await decide(attempt, "job 1")
    assert attempts == 1


async def test_hundred_lost_rounds_are_an_error_that_names_the_subject() -> None:
    attempts = 0

    async def attempt() -> int | None:
        nonlocal attempts
        attempts += 1
        return None

    with pytest.raises(Contended, match="keep changing job 1; try again"):
        await decide(attempt, "job 1")
    assert attempts == 100
