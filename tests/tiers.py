"""The two tiers of the suite: what proves something, and what proves it again.

`./dev test` runs the first, `./dev test --all` both. A test is left out of the first tier only if
another test that runs differs from it in nothing but

* its **seed**, the parameter of that name: the first seed runs;
* its **store**: SQLite runs, or the first store where SQLite is not among them;

or if it is marked `@pytest.mark.repeats("what it repeats")`, a whole test or one `pytest.param`.

Stores stay where they are the point: in the folders `ABOUT_STORES`, in tests marked
`@pytest.mark.every_store`, and in every test that `docs/guarantees.md` names for a promise. A test
named on the command line by its id (`file.py::test`) runs with all its seeds and stores.

`amount` is for tests that repeat something in a loop, such as kills at random moments.
"""

import os
import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import pytest

STANDARD = "sqlite"
STORES = frozenset({"memory", "journal", STANDARD, "postgres"})
ABOUT_STORES = (
    "tests/contract/",
    "tests/crash/",
    "tests/stores/",
    # Applications that have SQL of their own for each database.
    "tests/apps/entries/",
    "tests/apps/ingest/",
)
"""Folders whose subject is the stores."""

OPTION = "--all"
EVERY_STORE = "every_store"
REPEATS = "repeats"
MARKERS = (
    f"{EVERY_STORE}: run on every store in both tiers, because the stores differ in what it shows",
    f"{REPEATS}(reason): run with {OPTION} only, because another test shows the same",
)

_ROOT = Path(__file__).parents[1]
_runs_all = False


def choose(*, everything: bool) -> None:
    """Choose the tier of this process, before any test is imported."""
    global _runs_all  # noqa: PLW0603 - read while modules are imported, where no fixture is
    _runs_all = everything


def amount(quick: int, full: int, variable: str = "") -> int:
    """How often to repeat something: `quick`, with `--all` `full`, or what `variable` is set to."""
    return int(os.environ.get(variable) or (full if _runs_all else quick))


def promised() -> frozenset[str]:
    """The tests that hold a promise, as `docs/guarantees.md` names them."""
    page = (_ROOT / "docs" / "guarantees.md").read_text("utf-8")
    return frozenset(re.findall(r"`(tests/[\w/]+\.py::test_\w+)`", page))


def split(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Split into the tests of the first tier and those that only repeat them."""
    unique = promised()
    firsts: dict[Hashable, pytest.Item] = {}
    for item in items:
        if item.get_closest_marker(REPEATS):
            continue
        same = _same(item, unique)
        if same not in firsts or _stores(item) == {STANDARD} != _stores(firsts[same]):
            firsts[same] = item
    runs = {id(item) for item in firsts.values()}
    return (
        [item for item in items if id(item) in runs],
        [item for item in items if id(item) not in runs],
    )


def _same(item: pytest.Item, promised: frozenset[str]) -> Hashable:
    """What a test has in common with those of which one is enough."""
    name = item.nodeid.partition("[")[0]
    every_store = (
        name.startswith(ABOUT_STORES) or name in promised or item.get_closest_marker(EVERY_STORE)
    )
    differs = {
        name: value
        for name, value in _parameters(item).items()
        if name != "seed" and (every_store or not _is_store(value))
    }
    return name, frozenset((name, *_key(item, name, value)) for name, value in differs.items())


def _stores(item: pytest.Item) -> set[Any]:
    return {value for value in _parameters(item).values() if _is_store(value)}


def _is_store(value: Any) -> bool:
    return isinstance(value, str) and value in STORES


def _parameters(item: pytest.Item) -> dict[str, Any]:
    callspec = getattr(item, "callspec", None)
    return dict(callspec.params) if callspec else {}


def _key(item: pytest.Item, name: str, value: Any) -> tuple[object, ...]:
    """Tells the values of a parameter apart; those of simple types even where they come in rows."""
    if value is None or isinstance(value, str | int | float):
        return type(value), value
    return (item.callspec.indices[name],)  # type: ignore[attr-defined] # it has parameters
