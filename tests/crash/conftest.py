from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.processes import Zygote


@pytest.fixture(scope="session")
def shared_zygote() -> Iterator[Zygote]:
    with Zygote() as started:
        yield started


@pytest.fixture
def zygote(shared_zygote: Zygote) -> Iterator[Zygote]:
    """Starts clients; none outlives the test."""
    yield shared_zygote
    shared_zygote.kill_all()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the clients of one test share a store, `jobs.db`, and write their history."""
    return tmp_path
