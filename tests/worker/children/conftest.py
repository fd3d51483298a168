"""Fixtures of the tests of child processes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import Penstock, run_sync
from tests.contract.support import STORES
from tests.worker.children import isolated
from tests.worker.support import child_processes


@pytest.fixture
def children() -> Callable[[], list[int]]:
    """Return the processes that were started since the test began, zombies included."""
    others = set(child_processes())  # those of other tests, such as a zygote for all of them
    return lambda: [pid for pid in child_processes() if pid not in others]


@pytest.fixture
def serving(children: Callable[[], list[int]]) -> Callable[[], list[int]]:
    """Return those that run handlers: all but the guard process."""
    return lambda: [
        pid
        for pid in children()
        if "penstock.worker.children.main" in Path(f"/proc/{pid}/cmdline").read_text()
    ]


@pytest.fixture
def app(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    children: Callable[[], list[int]],
) -> Iterator[Penstock]:
    """The app of the children, with a store for this test; afterwards no child is left.

    Children never open the store, so that most tests need only one.
    """
    url = STORES[getattr(request, "param", "sqlite")](tmp_path)
    monkeypatch.setattr(isolated.app.connection, "url", url)
    yield isolated.app
    run_sync(isolated.app.close())
    assert children() == []
