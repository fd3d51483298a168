"""Which process of pytest-xdist runs which tests: the longest first, so that none idles at the end.

Tests go out by module, which keeps the fixtures of a module in one process. Those that
`docs/internals/tests.md` lists as the slowest go out one by one, before all others.
"""

import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped] # has no types

_PAGE = Path(__file__).parents[1] / "docs" / "internals" / "tests.md"
_ROW = re.compile(r"^\| *(\d+) *\|[^|]*\| *`(test_\w+)` *\|", re.MULTILINE)
_USUAL = 0.1
"""Seconds of a test that is not listed."""


@cache
def slowest() -> dict[str, int]:
    """Seconds of the tests on the list, by the names of their functions."""
    return {name: int(seconds) for seconds, name in _ROW.findall(_PAGE.read_text("utf-8"))}


def unit(nodeid: str) -> str:
    """What goes out together with this test: nothing, or its module."""
    return nodeid if _function(nodeid) in slowest() else nodeid.partition("::")[0]


def order(items: list[pytest.Item]) -> None:
    """Put the units that take longest first."""
    weights: dict[str, float] = defaultdict(float)
    for item in items:
        weights[unit(item.nodeid)] += slowest().get(_function(item.nodeid), _USUAL)
    # The name decides between equals, so that the tests of a unit stay together.
    items.sort(key=lambda item: (-weights[unit(item.nodeid)], unit(item.nodeid)))


class LongestFirst(LoadScopeScheduling):  # type: ignore[misc] # its base has no types
    """Hands out units in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        # Otherwise those of the most tests go first, and a long test that is a unit goes last.
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)


def _function(nodeid: str) -> str:
    return nodeid.partition("[")[0].rpartition("::")[2]
