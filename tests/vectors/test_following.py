"""How the copies of the vectors follow their catalogue: saved files, other processes, servers."""

import gc
import json
import logging
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigurationError
from penstock.vectors import Index, IndexUnavailable, following, open_index
from penstock.vectors.chroma import Chroma
from penstock.vectors.flat import Flat
from penstock.vectors.qdrant import Qdrant
from tests.vectors.support import DIMENSIONS, item, vector


@pytest.fixture(autouse=True)
def _worth_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "WORTH_SAVING", 1)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each attempt to read a saved file was a success."""
    seen: list[bool] = []
    load = Flat.load

    def watched(self: Flat, file: Path, checksum: int) -> bool:
        seen.append(load(self, file, checksum))
        return seen[-1]

    monkeypatch.setattr(Flat, "load", watched)
    return seen


def opened(folder: Path, vectors: str = "faiss") -> Index:
    return open_index(folder, DIMENSIONS, vectors=vectors)


def near(index: Index, text: str = "red fox", k: int = 100) -> list[str]:
    return [hit.id for hit in index.search(vector(text), k=k, mode="vector")]


def filled(folder: Path, many: int = 20) -> None:
    with opened(folder) as index:
        index.upsert(item(f"i{n}", f"fox {n}") for n in range(many))
        index.delete(["i0"])
        near(index)  # else it has no vectors in memory to be saved


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
    monkeypatch.setattr(following, "WORTH_SAVING", 1_000)
    with opened(tmp_path) as index:
        index.delete(["i1", "i2"])
        index.upsert([item("new"), item("i3", "other")])
    with opened(tmp_path) as index:
        assert set(near(index)) == {"new", *(f"i{n}" for n in range(3, 20))}
        assert near(index, "other", 1) == ["i3"]
    assert files(tmp_path) == ["vectors-20-1.faiss"]
    assert loads == [True]


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "flipped", "other"])
def test_file_that_is_not_whole_is_not_believed(
    tmp_path: Path, loads: list[bool], damage: str
) -> None:
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


def test_file_of_an_index_that_was_removed_is_not_believed(
    tmp_path: Path, loads: list[bool]
) -> None:
    filled(tmp_path)
    for file in tmp_path.glob("catalogue.db*"):
        file.unlink()
    with opened(tmp_path) as index:
        assert near(index) == []
        index.upsert([item("one")])
        assert near(index) == ["one"]
    assert files(tmp_path) == ["vectors-1-0.faiss"]


def test_leftovers_are_tidied_away(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "vectors-99-99.tmp").write_bytes(b"x")
    (tmp_path / "vectors-98-98.faiss").write_bytes(b"x")
    with opened(tmp_path) as index:
        index.upsert([item("more")])
        near(index)
    # The file before it stays, since another process may be about to read it.
    assert files(tmp_path) == ["vectors-20-1.faiss", "vectors-21-1.faiss"]


def test_who_has_only_written_loads_and_saves_no_vectors(tmp_path: Path, loads: list[bool]) -> None:
    filled(tmp_path)
    with opened(tmp_path) as index:
        index.upsert(item(f"more {n}") for n in range(5))
    assert files(tmp_path) == ["vectors-20-1.faiss"]
    assert loads == []
    with opened(tmp_path) as index:
        assert len(near(index)) == 24


def test_file_is_not_written_anew_for_a_few_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "WORTH_SAVING", 50)
    filled(tmp_path)
    assert files(tmp_path) == []


def test_vectors_that_cannot_be_saved_are_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Flat, "save", full)
        with caplog.at_level(logging.WARNING):
            filled(tmp_path)
    assert "were not saved" in caplog.text
    with opened(tmp_path) as index:
        assert len(near(index)) == 19


def test_reader_follows_a_writer(tmp_path: Path) -> None:
    """Two connections to a folder, as two processes have them."""
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


def test_reader_that_missed_removals_begins_anew(tmp_path: Path, loads: list[bool]) -> None:
    with opened(tmp_path) as reader:
        with opened(tmp_path) as writer:
            writer.upsert(item(f"i{n}", f"fox {n}") for n in range(5))
            assert len(near(reader)) == 5
            writer.delete(["i0", "i1"])
            near(writer)
        # The writer has saved its copy, and the removals are noted nowhere any more.
        assert set(near(reader)) == {"i2", "i3", "i4"}
    assert loads == [True]


def test_follower_that_fails_half_way_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as index:
        index.upsert([item("i0", "fox 0")])
        assert near(index) == ["i0"]
        index.upsert(item(f"i{n}", f"fox {n}") for n in range(1, 5))
        put = Flat.put

        def half(self: Flat, rows: Any) -> None:
            put(self, rows[:2])
            raise OSError("no memory")

        with monkeypatch.context() as patch:
            patch.setattr(Flat, "put", half)
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


@pytest.mark.parametrize(("kind", "holder"), [("chroma", Chroma), ("qdrant", Qdrant)])
@pytest.mark.parametrize("verb", ["put", "drop"])
def test_copy_that_could_not_follow_does_so_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, holder: type, verb: str
) -> None:
    """What the catalogue has is not lost while a server is down, nor seen in part."""
    index = opened(tmp_path, kind)
    index.upsert([item("one", "red fox"), item("two", "blue sea")])
    with monkeypatch.context() as patch:

        def down(*_: Any) -> None:
            raise IndexUnavailable("the server is down")

        patch.setattr(holder, verb, down)
        with pytest.raises(IndexUnavailable, match="down"):
            index.replace(["one"], [item("three", "tall tree")])
        with pytest.raises(IndexUnavailable, match="down"):
            near(index)
    index.close()
    with opened(tmp_path, kind) as again:
        assert sorted(near(again)) == ["three", "two"]


@pytest.mark.parametrize("kind", ["chroma", "qdrant"])
def test_copy_that_was_written_but_not_noted_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with opened(tmp_path, kind) as index:
        index.upsert([item("one", "red fox"), item("two", "blue sea")])
        index.delete(["two"])
    with sqlite3.connect(tmp_path / "catalogue.db") as db:
        db.execute("DELETE FROM fact WHERE name IN ('followed', 'floor')")
        db.execute("INSERT INTO removed VALUES (1, 2)")
    db.close()
    with opened(tmp_path, kind) as index:
        assert near(index) == ["one"]


@pytest.mark.parametrize("kind", ["chroma", "qdrant"])
def test_copy_holds_what_other_programs_want_to_know(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path, kind) as index:
        index.upsert([item("one", "red fox", path="p", type="t")])
    db = sqlite3.connect(tmp_path / "catalogue.db")
    name = json.loads(db.execute("SELECT value FROM fact WHERE name = 'name'").fetchone()[0])
    db.close()
    wanted = {"id": "one", "path": "p", "type": "t"}
    if kind == "chroma":
        chroma = Chroma(tmp_path / "chroma", "", name)
        got = chroma._collection.get()
        assert (got["documents"], got["metadatas"]) == (["red fox"], [wanted])
        chroma.close()
    else:
        qdrant = Qdrant(tmp_path / "qdrant", "", name, DIMENSIONS)
        (point,), _ = qdrant._client.scroll(name)
        assert point.payload == {**wanted, "text": "red fox"}
        qdrant.close()


# Qdrant leaves the file that it could not lock to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_folder_of_qdrant_belongs_to_one_process(tmp_path: Path) -> None:
    with opened(tmp_path, "qdrant"), pytest.raises(IndexUnavailable, match="already accessed"):
        opened(tmp_path, "qdrant")
    gc.collect()


@pytest.fixture
def chroma_server(tmp_path: Path) -> Iterator[str]:
    """The URL of a Chroma server on the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = str(Path(sys.executable).with_name("chroma"))
    place = ["--host", "127.0.0.1", "--port", str(port), "--path", str(tmp_path / "server")]
    command = [program, "run", *place]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as server:
        assert server.stdout is not None
        lines = iter(server.stdout.readline, b"")
        assert any(b"listening" in line for line in lines)
        threading.Thread(target=lambda: [None for _ in lines]).start()  # or its pipe fills up
        yield f"http://127.0.0.1:{port}"
        server.kill()


def test_server_of_chroma_is_shared(tmp_path: Path, chroma_server: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.vectors.sharing", chroma_server, tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("vectors", ["", "milvus", "faiss:x", "chroma:ftp://x"])
def test_unknown_holder_of_vectors_is_refused(tmp_path: Path, vectors: str) -> None:
    with pytest.raises(ConfigurationError):
        opened(tmp_path, vectors)


@pytest.mark.parametrize("content", [b"", b"no database at all, but long enough" * 100])
def test_file_that_is_no_catalogue_is_left_alone(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "catalogue.db"
    file.write_bytes(content)
    if content:
        with pytest.raises(IndexUnavailable, match="not a database"):
            opened(tmp_path)
        assert file.read_bytes() == content
    else:
        opened(tmp_path).close()


def test_catalogue_of_a_later_version_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).close()
    db = sqlite3.connect(tmp_path / "catalogue.db")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(IndexUnavailable, match="version 99"):
        opened(tmp_path)


def test_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(IndexUnavailable):
        opened(tmp_path / "file" / "index")


def test_thread_of_an_index_ends_with_it(tmp_path: Path) -> None:
    def mine() -> list[str]:
        return [
            t.name for t in threading.enumerate() if t.name.startswith(f"index {tmp_path.name}")
        ]

    with opened(tmp_path) as index:
        index.count()
        assert len(mine()) == 1
    assert mine() == []
    (tmp_path / "catalogue.db").write_bytes(b"x" * 5000)
    with pytest.raises(IndexUnavailable):
        opened(tmp_path)
    assert mine() == []
