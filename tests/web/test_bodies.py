"""Bodies of requests are read within their limits, whatever their headers announce."""

import pytest

from penstock.web.bodies import Exchange, Message, announces_more, read_body
from penstock.web.problems import Problem


@pytest.mark.parametrize(
    ("announced", "is_more"),
    [
        (None, False),
        (b"", False),
        (b"0", False),
        (b"10", False),
        (b"11", True),
        (b"0" * 5_000 + b"2", False),
        (b"0" * 5_000 + b"11", True),
        (b"9" * 5_000, True),
        (b"-11", False),
        (b"x", False),
        ("\u0661\u0662".encode(), False),
    ],
)
def test_announced_length_of_any_number_of_digits_is_compared(
    announced: bytes | None, is_more: bool
) -> None:
    headers = [] if announced is None else [(b"content-length", announced)]
    assert announces_more({"headers": headers}, 10) is is_more


async def test_body_is_read_or_refused_by_its_announced_length() -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": b"{}"}

    small = {"headers": [(b"content-length", b"0" * 5_000 + b"2")]}
    assert await read_body(small, receive, 10) == b"{}"
    with pytest.raises(Problem) as refused:
        await read_body({"headers": [(b"content-length", b"9" * 5_000)]}, receive, 10)
    assert refused.value.status == 413


class Arrived(Exchange):
    """A request whose body has arrived."""

    def take_body(self) -> bytes | None:
        return b"x" * 11

    async def receive(self) -> Message:
        raise AssertionError("nothing is left to receive")


async def test_body_that_has_arrived_is_taken_or_refused_by_its_length() -> None:
    receive = Arrived().receive
    assert await read_body({"headers": []}, receive, 11) == b"x" * 11
    with pytest.raises(Problem) as refused:
        await read_body({"headers": []}, receive, 10)
    assert refused.value.status == 413
