from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.core.progress import TEXT_LIMIT, Progress, kept_text

BEGAN = datetime(2030, 1, 1, tzinfo=UTC)


def progress(done: float, total: float | None = None, after: float = 0, **other: Any) -> Progress:
    return Progress(done, total, None, BEGAN + timedelta(seconds=after), BEGAN, **other)


@pytest.mark.parametrize(
    ("done", "total", "fraction"),
    [(0, 4, 0), (1, 4, 0.25), (4, 4, 1), (5, 4, 1), (-1, 4, 0), (1, None, None), (0, 0, None)],
)
def test_fraction(done: float, total: float | None, fraction: float | None) -> None:
    assert progress(done, total).fraction == fraction


def test_rate_counts_what_this_run_has_done() -> None:
    assert progress(30, after=10).rate == 3
    assert progress(530, after=10, start=500).rate == 3


def test_rate_and_rest_are_not_known_at_the_first_word() -> None:
    said = progress(10, 100, after=0, start=10)
    assert said.rate is None
    assert said.left is None


@pytest.mark.parametrize(
    ("said", "left"),
    [
        (progress(25, 100, after=5), timedelta(seconds=15)),
        (progress(525, 600, after=5, start=500), timedelta(seconds=15)),
        (progress(100, 100, after=5), timedelta(0)),
        (progress(100, 100), timedelta(0)),
        (progress(25, None, after=5), None),
        (progress(0, 100, after=5), None),
        (progress(5, 100, after=5, start=7), None),
        (progress(1e-300, 1e300, after=5), None),
        (progress(1, 2**62, after=86400), None),
    ],
)
def test_time_left(said: Progress, left: timedelta | None) -> None:
    assert said.left == left


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", ""),
        ("so it is", "so it is"),
        ("Straße ✓", "Straße ✓"),
        ("a\0b", "a\\0b"),
        ("bad \udc80 name", "bad \\udc80 name"),
    ],
)
def test_text_is_kept_so_that_every_store_can_hold_it(text: str, kept: str) -> None:
    assert kept_text(text) == kept


@pytest.mark.parametrize("letter", ["x", "ü", "\udc80", "\0"])
def test_long_text_is_cut(letter: str) -> None:
    assert kept_text(letter * TEXT_LIMIT)[: len("x")] in (letter, "\\")
    assert len(kept_text(letter * (TEXT_LIMIT + 1))) == TEXT_LIMIT


def test_cut_text_says_so() -> None:
    assert kept_text("x" * 3000) == "x" * (TEXT_LIMIT - 1) + "…"
