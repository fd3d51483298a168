from pathlib import Path

import pytest

from penstock.core.errors import ConfigurationError
from penstock.stores import open_store, system_clock
from penstock.stores.memory.store import MemoryStore
from tests.contract.support import STORES, drive


@pytest.mark.parametrize("name", STORES)
def test_every_store_opens_by_its_url(name: str, tmp_path: Path) -> None:
    store = open_store(STORES[name](tmp_path))
    assert drive(store.queues()) == []
    drive(store.close())


def test_stores_in_memory_are_apart() -> None:
    assert isinstance(open_store("memory://"), MemoryStore)
    assert open_store("memory://") is not open_store("memory://")


@pytest.mark.parametrize(
    "url",
    ["", "jobs.db", "redis://localhost", "memory://shared", "memory:", "sqlite://", "sqlite:///"],
)
def test_wrong_url_is_named_in_the_error(url: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{url}'"):
        open_store(url)


@pytest.mark.parametrize("tail", ["?mode=ro", "#part"])
def test_url_with_more_than_a_path_is_refused(tail: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        open_store(f"sqlite:///{tmp_path}/jobs.db{tail}")
    assert list(tmp_path.iterdir()) == []


def test_system_clock_counts_microseconds() -> None:
    assert system_clock() > 1_700_000_000_000_000
