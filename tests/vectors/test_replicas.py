"""Test replicas that outlive the process: Chroma and Qdrant."""

import gc
import json
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
from penstock.vectors import IndexUnavailable
from penstock.vectors.chroma import Chroma
from penstock.vectors.qdrant import Qdrant
from tests.vectors.support import DIMENSIONS, item, near, opened


@pytest.mark.parametrize(("kind", "store"), [("chroma", Chroma), ("qdrant", Qdrant)])
@pytest.mark.parametrize("verb", ["put", "drop"])
def test_replica_that_could_not_follow_does_so_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, store: type, verb: str
) -> None:
    """While a server is down, nothing is lost, and no partial state is visible."""
    index = opened(tmp_path, kind)
    index.upsert([item("one", "red fox"), item("two", "blue sea")])
    with monkeypatch.context() as patch:

        def down(*_: Any) -> None:
            raise IndexUnavailable("the server is down")

        patch.setattr(store, verb, down)
        with pytest.raises(IndexUnavailable, match="down"):
            index.replace(["one"], [item("three", "tall tree")])
        with pytest.raises(IndexUnavailable, match="down"):
            near(index)
    index.close()
    with opened(tmp_path, kind) as again:
        assert sorted(near(again)) == ["three", "two"]


@pytest.mark.parametrize("kind", ["chroma", "qdrant"])
def test_replica_that_was_written_but_not_recorded_is_written_again(
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
def test_replica_includes_text_and_path_for_other_programs(tmp_path: Path, kind: str) -> None:
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


# Qdrant leaves closing the file that it could not lock to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_folder_of_qdrant_belongs_to_one_process(tmp_path: Path) -> None:
    with opened(tmp_path, "qdrant"), pytest.raises(IndexUnavailable, match="already accessed"):
        opened(tmp_path, "qdrant")
    gc.collect()


@pytest.fixture
def chroma_server(tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a Chroma server on the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = str(Path(sys.executable).with_name("chroma"))
    place = ["--host", "127.0.0.1", "--port", str(port), "--path", str(tmp_path / "server")]
    command = [program, "run", *place]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as server:
        assert server.stdout is not None
        lines = iter(server.stdout.readline, b"")
        assert any(b"listening" in line for line in lines)
        threading.Thread(
            target=lambda: [None for _ in lines]
        ).start()  # otherwise its pipe fills up
        yield f"http://127.0.0.1:{port}"
        server.kill()


def test_server_of_chroma_is_shared(tmp_path: Path, chroma_server: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.vectors.chroma_clients", chroma_server, tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("vectors", ["", "milvus", "faiss:x", "chroma:ftp://x"])
def test_unknown_vector_store_is_refused(tmp_path: Path, vectors: str) -> None:
    with pytest.raises(ConfigurationError):
        opened(tmp_path, vectors)
