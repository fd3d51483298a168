"""Fixtures of the tests of the engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import (
    Penstock,
    Task,
    run_sync,
)
from penstock.engine import archive, bulk
from tests.contract.support import STEADY, STORES, ManualClock


@pytest.fixture(params=STORES)
def app(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Penstock]:
    """A Penstock on every store in turn, with a clock that does not advance by itself."""
    penstock = Penstock(STORES[request.param](tmp_path), clock=clock, actor="tester")
    yield penstock
    run_sync(penstock.close())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def file_app(path: Path, clock: ManualClock) -> Iterator[Penstock]:
    """A Penstock on a SQLite file."""
    penstock = Penstock(f"sqlite:///{path}", clock=clock)
    yield penstock
    run_sync(penstock.close())


@pytest.fixture
def greet(app: Penstock) -> Task[[str], str]:
    def greet(name: str) -> str:
        return f"hello {name}"

    return app.task("greet", greet, retry=STEADY)


@pytest.fixture(params=STORES)
def other(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Penstock]:
    """Another Penstock, to take over jobs."""
    (tmp_path / "other").mkdir()
    penstock = Penstock(STORES[request.param](tmp_path / "other"), clock=clock, actor="other")
    yield penstock
    run_sync(penstock.close())


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions of two jobs, so that a few jobs make several."""
    monkeypatch.setattr(archive, "PORTION", 2)
    monkeypatch.setattr(bulk, "PORTION", 2)
    monkeypatch.setattr(bulk, "_IDS_AT_ONCE", 4)
