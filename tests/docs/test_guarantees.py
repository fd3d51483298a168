"""The tests that the pages of guarantees and of other queues name are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
COMPARISON = (ROOT / "docs" / "comparison.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PAGE + COMPARISON)))


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_named_test_exists(file: str, test: str) -> None:
    source = (ROOT / file).read_text("utf-8")
    assert re.search(rf"^ *(async )?def {test}\(", source, re.MULTILINE)


@pytest.mark.parametrize("promise", range(1, 9))
def test_every_promise_names_tests_and_its_limits(promise: int) -> None:
    section = PAGE.partition(f"\n## {promise}. ")[2].partition("\n## ")[0]
    assert "::test_" in section
    assert "**Not covered.**" in section
