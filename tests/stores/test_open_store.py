from pathlib import Path

import pytest

from penstock.core.errors import ConfigurationError
from penstock.runtime import system_clock
from penstock.stores import open_store
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


@pytest.mark.parametrize("scheme", ["sqlite", "journal"])
def test_path_that_was_meant_to_be_absolute_is_refused(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three slashes name a path below the current directory, without a word."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=f"write {scheme}:////usr/jobs") as refused:
        open_store(f"{scheme}:///usr/jobs")
    assert f"{scheme}:///./usr/jobs for the relative one" in str(refused.value)
    assert str(tmp_path) in str(refused.value)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "usr").mkdir()
    for path in ("usr/jobs", "./usr/jobs", "jobs", f"{tmp_path}/other"):
        drive(open_store(f"{scheme}:///{path}").close())
    assert {one.name for one in tmp_path.iterdir()} >= {"usr", "jobs", "other"}
