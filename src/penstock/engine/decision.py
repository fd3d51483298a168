"""Optimistic decisions: read, decide, write if nothing has changed, or else decide again."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.core.errors import Overtaken, PenstockError

T = TypeVar("T")

# How many rounds may lose against other writers. Each round that loses means that somebody else
# has made progress, so only a very busy job gets near it.
_ROUNDS = 100


class Contended(PenstockError):
    """Other writers were faster in every round; the call may be repeated."""


async def decide(attempt: Callable[[], Awaitable[T | None]], subject: str) -> T:
    """Call `attempt` until it returns something else than None, and return that.

    An attempt reads what it is about, decides, and writes only if nothing has changed since it
    read. It returns None or raises `Overtaken` if somebody else was faster. After 100 of these,
    raises `Contended`, which names the `subject`.
    """
    for _ in range(_ROUNDS):
        try:
            answer = await attempt()
        except Overtaken:
            continue
        if answer is not None:
            return answer
    raise Contended(f"other processes keep changing {subject}; try again")
