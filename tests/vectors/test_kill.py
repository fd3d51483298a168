"""An index is killed before every single step of its work, and is whole afterwards."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.vectors import Index, open_index
from tests.vectors.dying import SCENE
from tests.vectors.support import DIMENSIONS, item, vector

STATES = [{}, *(state for _, state in SCENE)]
LEAST = {"faiss": 400, "chroma": 12, "qdrant": 40}
"""Steps there have to be, so that it is known that they are counted."""
STRIDE = os.environ.get("PENSTOCK_CRASH_STRIDE")
STRIDES = {"chroma": 3}
"""Opening Chroma takes longest by far, so not every step is played; as in tests/crash."""


def contents(index: Index) -> dict[str, str]:
    """What is found by vector; by words it has to be the same."""
    near = {hit.id: hit.text for hit in index.search(vector("fox"), k=100, mode="vector")}
    words = "red fox blue sea c tall tree slow boat old oak last one again"
    found = {hit.id: hit.text for hit in index.search(text=words, k=100, mode="bm25")}
    assert found == near
    assert index.count() == len(near)
    for name, text in near.items():
        (best, *_) = index.search(vector(text), k=1, mode="vector")
        assert best.score == pytest.approx(1, abs=1e-5), name
    return near


def check_words(file: Path) -> None:
    """The full text index against the texts, by SQLite's own means."""
    db = sqlite3.connect(file)
    db.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", LEAST)
def test_index_is_whole_whenever_it_is_killed(kind: str, tmp_path: Path) -> None:
    stride = STRIDE or str(STRIDES.get(kind, 1))
    ran = subprocess.run(
        [sys.executable, "-m", "tests.vectors.dying", kind, tmp_path, stride],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    folders = sorted(tmp_path.iterdir(), key=lambda folder: int(folder.name))
    assert len(folders) > LEAST[kind]
    reached = set()
    for folder in folders:
        noted = folder / "acknowledged"
        told = noted.stat().st_size if noted.exists() else 0
        with open_index(folder / "index", DIMENSIONS, vectors=kind) as index:
            found = contents(index)
            # What was under way is there, or it is not; an upsert of three comes in two parts.
            parts = [{"a": "red fox", "b": "blue sea"}] if told == 0 else []
            assert found in (STATES[told : told + 2] + parts), f"killed before step {folder.name}"
            index.upsert([item("again")])
            assert contents(index) == {**found, "again": "again"}
        check_words(folder / "index" / "catalogue.db")
        reached.add(told)
    assert reached == set(range(len(STATES)))
