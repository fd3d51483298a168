"""Fixtures for pytest: `penstock_clock`, `penstock_app`, `penstock_sqlite`, `penstock_worker`.

Every pytest loads this module where Penstock is installed. So it lies outside the package and
imports nothing of it until a fixture is used.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.engine.penstock import Penstock
    from penstock.testing.clock import Clock
    from penstock.testing.execution import Work


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the settings of the ini file."""
    parser.addini(
        "penstock_store",
        "URL of the fresh store of the fixture penstock_app; {tmp_path} is the test's own folder",
        default="memory://",
    )
    parser.addini(
        "penstock_app",
        "MODULE:APP, the app that the fixture penstock_app points at a fresh store; "
        "without it, a new one with no tasks",
        default="",
    )


@pytest.fixture
def penstock_clock() -> Clock:
    """The clock of `penstock_app` and `penstock_sqlite`, which stands still until it is moved."""
    from penstock.testing.clock import Clock

    return Clock()


@pytest.fixture
def penstock_app(request: pytest.FixtureRequest, penstock_clock: Clock) -> Iterator[Penstock]:
    """A Penstock on a fresh store: in memory, unless the ini file says otherwise."""
    from penstock.testing.stores import fresh

    url = request.config.getini("penstock_store")
    if "{tmp_path}" in url:
        url = url.replace("{tmp_path}", str(request.getfixturevalue("tmp_path")))
    target = request.config.getini("penstock_app")
    if not target:
        with _fresh(url, penstock_clock) as app:
            yield app
    else:
        with fresh(_load(target), url=url, clock=penstock_clock) as app:
            yield app


@pytest.fixture
def penstock_sqlite(tmp_path: Path, penstock_clock: Clock) -> Iterator[Penstock]:
    """A Penstock on a fresh SQLite file."""
    with _fresh(f"sqlite:///{tmp_path}/penstock.db", penstock_clock) as app:
        yield app


@pytest.fixture
def penstock_worker(penstock_app: Penstock) -> Work:
    """Runs the jobs of `penstock_app` until nothing is ready."""
    from penstock.testing.execution import Work

    return Work(penstock_app)


@contextlib.contextmanager
def _fresh(url: str, clock: Clock) -> Iterator[Penstock]:
    from penstock.engine.penstock import Penstock
    from penstock.testing.calls import call

    app = Penstock(url, clock=clock)
    try:
        yield app
    finally:
        call(app.close())


def _load(target: str) -> Penstock:
    from penstock.engine.penstock import Penstock

    module, _, name = target.partition(":")
    app = getattr(importlib.import_module(module), name or "app", None)
    if not isinstance(app, Penstock):
        raise pytest.UsageError(
            f"penstock_app must be MODULE:APP, but {target!r} is not a Penstock"
        )
    return app
