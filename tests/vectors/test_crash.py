"""Kill an index before every single step of its work, and check that it is intact."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.vectors import Index, open_index
from tests.vectors.crash_scene import SCENE
from tests.vectors.support import DIMENSIONS, item, vector

STATES = [{}, *(state for _, state in SCENE)]
LEAST = {"faiss": 400, "chroma": 36, "qdrant": 40}
"""The least number of steps, which proves that they are counted."""
STRIDE = os.environ.get("PENSTOCK_CRASH_STRIDE")
STRIDES = {"faiss": 7, "chroma": 5, "qdrant": 3}
"""Not every step is tried, to save time, as in tests/crash."""


def contents(index: Index) -> dict[str, str]:
    """Return what is found by vector, and check that words find the same."""
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
    """Compare the full-text index with the texts, using SQLite's integrity check."""
    db = sqlite3.connect(file)
    db.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", LEAST)
def test_index_is_intact_whenever_it_is_killed(kind: str, tmp_path: Path) -> None:
    stride = STRIDE or str(STRIDES.get(kind, 1))
    ran = subprocess.run(
        [sys.executable, "-m", "tests.vectors.crash_scene", kind, tmp_path, stride],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    folders = sorted(tmp_path.iterdir(), key=lambda folder: int(folder.name))
    assert len(folders) * int(stride) > LEAST[kind]
    reached = set()
    for folder in folders:
        noted = folder / "acknowledged"
        told = noted.stat().st_size if noted.exists() else 0
        with open_index(folder / "index", DIMENSIONS, vectors=kind) as index:
            found = contents(index)
            # The interrupted write is there or not; an upsert of three items has two parts.
            parts = [{"a": "red fox", "b": "blue sea"}] if told == 0 else []
            assert found in (STATES[told : told + 2] + parts), f"killed before step {folder.name}"
            index.upsert([item("again")])
            assert contents(index) == {**found, "again": "again"}
        check_words(folder / "index" / "catalogue.db")
        reached.add(told)
    assert reached == set(range(len(STATES)))
