"""Test how copies in memory follow the catalogue: saved files and other processes."""

import logging
from pathlib import Path
from typing import Any

import pytest

from penstock.vectors import IndexUnavailable
from penstock.vectors import faiss as faiss_module
from penstock.vectors.faiss import FlatVectors
from tests.vectors.support import item, near, opened


@pytest.fixture(autouse=True)
def _worth_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss_module, "WORTH_SAVING", 1)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record whether each attempt to load a saved file succeeded."""
    seen: list[bool] = []
    load = FlatVectors.load

    def watched(self: FlatVectors, file: Path, checksum: int) -> bool:
        seen.append(load(self, file, checksum))
        return seen[-1]

    monkeypatch.setattr(FlatVectors, "load", watched)
    return seen


def filled(folder: Path, many: int = 20) -> None:
    with opened(folder) as index:
        index.upsert(item(f"i{n}", f"fox {n}") for n in range(many))
        index.delete(["i0"])
        near(index)  # otherwise it has no vectors in memory to save


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob("vectors-*"))


def test_saved_file_is_read_by_the_next_process(tmp_path: Path, loads: list[bool]) -> None:
    filled(tmp_path)
    assert files(tmp_path) == ["vectors-20-1.faiss"]
    with opened(tmp_path) as index:
        assert set(near(index)) == {f"i{n}" for n in range(1, 20)}
    assert loads == [True]


def test_saved_file_is_caught_up_with_what_came_later(
    tmp_path: Path, loads: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    monkeypatch.setattr(faiss_module, "WORTH_SAVING", 1_000)
    with opened(tmp_path) as index:
        index.delete(["i1", "i2"])
        index.upsert([item("new"), item("i3", "other")])
    with opened(tmp_path) as index:
        assert set(near(index)) == {"new", *(f"i{n}" for n in range(3, 20))}
        assert near(index, "other", 1) == ["i3"]
    assert files(tmp_path) == ["vectors-20-1.faiss"]
    assert loads == [True]


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "flipped", "other"])
def test_damaged_file_is_ignored(tmp_path: Path, loads: list[bool], damage: str) -> None:
    filled(tmp_path)
    (name,) = files(tmp_path)
    file = tmp_path / name
    data = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "cut":
        file.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    else:
        file.write_bytes(b"x" * len(data))
    with opened(tmp_path) as index:
        assert set(near(index)) == {f"i{n}" for n in range(1, 20)}
        index.upsert([item("more")])
    assert loads == [False]
    with opened(tmp_path) as index:
        assert len(near(index)) == 20
    assert loads == [False, True]


def test_file_of_a_removed_index_is_ignored(tmp_path: Path, loads: list[bool]) -> None:
    filled(tmp_path)
    for file in tmp_path.glob("catalogue.db*"):
        file.unlink()
    with opened(tmp_path) as index:
        assert near(index) == []
        index.upsert([item("one")])
        assert near(index) == ["one"]
    assert files(tmp_path) == ["vectors-1-0.faiss"]


def test_leftover_files_are_removed(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "vectors-99-99.tmp").write_bytes(b"x")
    (tmp_path / "vectors-98-98.faiss").write_bytes(b"x")
    with opened(tmp_path) as index:
        index.upsert([item("more")])
        near(index)
    # The previous file remains, since another process may be about to read it.
    assert files(tmp_path) == ["vectors-20-1.faiss", "vectors-21-1.faiss"]


def test_process_that_only_writes_loads_and_saves_no_vectors(
    tmp_path: Path, loads: list[bool]
) -> None:
    filled(tmp_path)
    with opened(tmp_path) as index:
        index.upsert(item(f"more {n}") for n in range(5))
    assert files(tmp_path) == ["vectors-20-1.faiss"]
    assert loads == []
    with opened(tmp_path) as index:
        assert len(near(index)) == 24


def test_few_changes_are_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss_module, "WORTH_SAVING", 50)
    filled(tmp_path)
    assert files(tmp_path) == []


def test_failure_to_save_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(FlatVectors, "save", full)
        with caplog.at_level(logging.WARNING):
            filled(tmp_path)
    assert "were not saved" in caplog.text
    with opened(tmp_path) as index:
        assert len(near(index)) == 19


def test_reader_follows_a_writer(tmp_path: Path) -> None:
    """Two connections to a folder behave as two processes do."""
    with opened(tmp_path) as reader, opened(tmp_path) as writer:
        writer.upsert(item(f"i{n}", f"fox {n}") for n in range(5))
        assert set(near(reader)) == {f"i{n}" for n in range(5)}
        writer.delete(["i0"])
        writer.upsert([item("i1", "blue sea"), item("new")])
        assert set(near(reader)) == {"i1", "i2", "i3", "i4", "new"}
        assert near(reader, "blue sea", 1) == ["i1"]
        reader.upsert([item("mine")])
        assert "mine" in near(writer)
        writer.clear()
        assert near(reader) == []
        writer.upsert([item("again")])
        assert near(reader) == ["again"]


def test_reader_that_missed_removals_starts_over(tmp_path: Path, loads: list[bool]) -> None:
    with opened(tmp_path) as reader:
        with opened(tmp_path) as writer:
            writer.upsert(item(f"i{n}", f"fox {n}") for n in range(5))
            assert len(near(reader)) == 5
            writer.delete(["i0", "i1"])
            near(writer)
        # The writer has saved its copy, and the removals are no longer recorded.
        assert set(near(reader)) == {"i2", "i3", "i4"}
    assert loads == [True]


def test_replica_that_fails_half_way_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as index:
        index.upsert([item("i0", "fox 0")])
        assert near(index) == ["i0"]
        index.upsert(item(f"i{n}", f"fox {n}") for n in range(1, 5))
        put = FlatVectors.put

        def half(self: FlatVectors, rows: Any) -> None:
            put(self, rows[:2])
            raise OSError("no memory")

        with monkeypatch.context() as patch:
            patch.setattr(FlatVectors, "put", half)
            with pytest.raises(IndexUnavailable, match="no memory"):
                near(index)
        assert sorted(near(index, k=5)) == [f"i{n}" for n in range(5)]  # and none of them twice


def test_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as index:
        index.upsert([item("one", "red fox")])
        with pytest.raises(TypeError):
            index.replace(["one"], [item("two", "blue sea"), item("three", odd=object())])
        assert near(index) == ["one"]
        assert [hit.id for hit in index.search(text="fox")] == ["one"]
