"""The first tier leaves out what another test shows, and nothing else."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import distribution, tiers

ROOT = Path(__file__).parents[1]


def item(name: str, *, marks: tuple[str, ...] = (), **params: Any) -> pytest.Item:
    """As much of a collected test as decides about its tier."""
    suffix = f"[{'-'.join(map(str, params.values()))}]" if params else ""
    indices = dict.fromkeys(params, 0)
    found: dict[str, Any] = {
        "nodeid": f"{name}{suffix}",
        "get_closest_marker": lambda mark: mark if mark in marks else None,
    }
    if params:
        found["callspec"] = SimpleNamespace(params=params, indices=indices)
    return cast("pytest.Item", SimpleNamespace(**found))


def run(*items: pytest.Item) -> list[str]:
    """The ids of those that the first tier runs; the others repeat."""
    runs, repeats = tiers.split(items)
    assert {id(one) for one in (*runs, *repeats)} == {id(one) for one in items}
    return [one.nodeid for one in runs]


SERVER = "tests/server/test_jobs.py::test_job"
ALL_STORES = ("memory", "journal", "sqlite", "postgres")


def test_sqlite_runs_for_all_stores() -> None:
    assert run(*[item(SERVER, app=store) for store in ALL_STORES]) == [f"{SERVER}[sqlite]"]


def test_first_store_runs_where_sqlite_is_not_among_them() -> None:
    assert run(*[item(SERVER, app=store) for store in ("postgres", "memory")]) == [
        f"{SERVER}[postgres]"
    ]


def test_other_parameters_are_no_repetition() -> None:
    items = [item(SERVER, app=store, state=n) for store in ALL_STORES for n in (1, True, "1", None)]
    assert len(run(*items)) == 4


def test_two_stores_are_one_choice() -> None:
    items = [item(SERVER, app=one, other=two) for one in ALL_STORES for two in ALL_STORES]
    assert run(*items) == [f"{SERVER}[sqlite-sqlite]"]


@pytest.mark.parametrize("folder", ["contract", "crash", "stores/sql"])
def test_tests_about_stores_run_on_all(folder: str) -> None:
    items = [item(f"tests/{folder}/test_x.py::test_x", store=store) for store in ALL_STORES]
    assert len(run(*items)) == 4


def test_marked_tests_run_on_all_stores() -> None:
    items = [item(SERVER, marks=("every_store",), app=store) for store in ALL_STORES]
    assert len(run(*items)) == 4


def test_promises_are_shown_on_all_stores() -> None:
    named = "tests/engine/test_leases.py::test_start_of_a_lost_job_is_refused_and_logged"
    assert named in tiers.promised()
    assert len(run(*[item(named, app=store) for store in ALL_STORES])) == 4


def test_first_seed_runs_on_each_store() -> None:
    name = "tests/crash/test_x.py::test_x"
    rows = [("sqlite", 1), ("sqlite", 2), ("postgres", 3), ("postgres", 4)]
    items = [item(name, folder=store, seed=seed) for store, seed in rows]
    assert run(*items) == [f"{name}[sqlite-1]", f"{name}[postgres-3]"]


def test_marked_repetition_does_not_stand_for_others() -> None:
    items = [item(SERVER, marks=("repeats",), app="sqlite"), item(SERVER, app="memory")]
    assert run(*items) == [f"{SERVER}[memory]"]


def test_amount_depends_on_the_tier_unless_a_variable_says_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tiers, "_runs_all", False)
    assert tiers.amount(2, 40, "PENSTOCK_OUTAGES") == 2
    monkeypatch.setattr(tiers, "_runs_all", True)
    assert tiers.amount(2, 40, "PENSTOCK_OUTAGES") == 40
    monkeypatch.setenv("PENSTOCK_OUTAGES", "7")
    assert tiers.amount(2, 40, "PENSTOCK_OUTAGES") == 7


# The whole run

LISTED = ["--collect-only", "-q", "-p", "no:cacheprovider", "tests/testing/test_clock.py"]


def collected(*options: str) -> str:
    command = [sys.executable, "-m", "pytest", *LISTED, *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_run_says_how_many_tests_only_repeat() -> None:
    """And runs them when asked for all, or for one by its id."""
    quick, everything = collected(), collected("--all")
    assert "[sqlite]" in quick
    assert "[postgres]" not in quick
    left_out = everything.count("::test_") - quick.count("::test_")
    assert re.search(
        rf"^{left_out} tests that repeat others .* --all runs them", quick, re.MULTILINE
    )
    assert "[postgres]" in everything
    assert "that repeat" not in everything


# Which go first


def test_slowest_tests_exist() -> None:
    source = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(distribution.slowest()) >= 50
    assert [name for name in distribution.slowest() if f"def {name}(" not in source] == []


def test_longest_go_first_and_modules_stay_together() -> None:
    slow, slower = sorted(distribution.slowest(), key=distribution.slowest().__getitem__)[-2:]
    items = [
        item("tests/a/test_few.py::test_x"),
        item("tests/a/test_many.py::test_x"),
        item(f"tests/a/test_few.py::{slow}"),
        item("tests/a/test_many.py::test_y"),
        item(f"tests/a/test_many.py::{slower}", seed=1),
    ]
    distribution.order(items)
    assert [one.nodeid for one in items] == [
        f"tests/a/test_many.py::{slower}[1]",
        f"tests/a/test_few.py::{slow}",
        "tests/a/test_many.py::test_x",
        "tests/a/test_many.py::test_y",
        "tests/a/test_few.py::test_x",
    ]


class Process:
    """As much of a process of pytest-xdist as is sent tests, by their places in the collection."""

    def __init__(self) -> None:
        self.gateway = SimpleNamespace(id="gw0")
        self.shutting_down = False
        self.sent: list[int] = []

    def send_runtest_some(self, places: list[int]) -> None:
        self.sent += places

    def shutdown(self) -> None:
        self.shutting_down = True


def test_processes_get_units_in_the_order_of_collection() -> None:
    """Although one is a single test, and another has many."""
    slow = next(iter(distribution.slowest()))
    option = SimpleNamespace(loadscopereorder=True, debug=False, tx=["popen"])
    config = SimpleNamespace(option=option, getvalue=vars(option).get)
    scheduler, process = distribution.LongestFirst(cast("pytest.Config", config)), Process()
    scheduler.add_node(process)
    scheduler.add_node_collection(
        process, [f"tests/a.py::{slow}", "tests/b.py::test_x", "tests/b.py::test_y"]
    )
    scheduler.schedule()
    assert process.sent == [0, 1, 2]
