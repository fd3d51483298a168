"""Run the same writes on an index repeatedly, and kill the process one step later each time.

Run as `python -m tests.vectors.crash_scene KIND FOLDER STRIDE`. The run that is killed before step
n works in `FOLDER/n` and records in its file `acknowledged` how many writes returned. The program
ends when a run completes. A step is a statement of the catalogue, a call of a vector store, or an
operation on a file.
"""

import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faiss

from penstock.vectors import Index, Where, catalogue, index, open_index
from penstock.vectors import faiss as faiss_module
from tests.vectors.support import DIMENSIONS, item, vector

SCENE: list[tuple[Callable[[Index], Any], dict[str, str]]] = [
    (
        lambda i: i.upsert([item("a", "red fox", "p"), item("b", "blue sea", "q"), item("c")]),
        {"a": "red fox", "b": "blue sea", "c": "c"},
    ),
    (
        lambda i: i.replace(["p"], [item("d", "tall tree", "p"), item("b", "slow boat", "q")]),
        {"b": "slow boat", "c": "c", "d": "tall tree"},
    ),
    (lambda i: i.delete(["c"]), {"b": "slow boat", "d": "tall tree"}),
    (
        lambda i: i.upsert([item("e", "old oak")]),
        {"b": "slow boat", "d": "tall tree", "e": "old oak"},
    ),
    (lambda i: i.delete(where=Where(paths=("q",))), {"d": "tall tree", "e": "old oak"}),
    (lambda i: i.clear(), {}),
    (lambda i: i.upsert([item("f", "last one")]), {"f": "last one"}),
]
"""Writes, and the content of the index after each."""
SESSION = 2
"""Writes before the index is closed and opened again."""


class Steps:
    """Counts down to the step at which to kill the process."""

    def __init__(self, left: int) -> None:
        self.left = left

    def step(self, *_: Any) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()

    def around(self, owner: Any, name: str) -> None:
        """Count a step before and after each call of a function."""
        call = getattr(owner, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            self.step()
            answer = call(*arguments, **options)
            self.step()
            return answer

        setattr(owner, name, counted)


def play(kind: str, folder: Path) -> None:
    acknowledged = os.open(folder / "acknowledged", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    for start in range(0, len(SCENE), SESSION):
        with open_index(folder / "index", DIMENSIONS, vectors=kind) as opened:
            for write, _ in SCENE[start : start + SESSION]:
                write(opened)
                os.write(acknowledged, b".")
                opened.search(vector("fox"), "fox")


def prepare(kind: str, steps: Steps) -> None:
    """Count everything that touches disk or a vector store as steps."""
    faiss_module.WORTH_SAVING = 1
    index.BATCH = 2

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = sqlite3.connect(*arguments, **options)
        connection.set_trace_callback(
            steps.step
            if kind == "faiss"
            else lambda said: steps.step() if said == "COMMIT" else None
        )
        return connection

    names = {name: getattr(sqlite3, name) for name in dir(sqlite3) if not name.startswith("_")}
    catalogue.sqlite3 = SimpleNamespace(**{**names, "connect": traced})  # type: ignore[attr-defined, assignment] # replaced for the test
    if kind == "faiss":
        faiss_module.faiss = SimpleNamespace(**{**vars(faiss), "write_index": torn(steps)})  # type: ignore[attr-defined, assignment] # replaced for the test
        for name in ("fsync", "replace", "unlink"):
            steps.around(os, name)
    else:
        from penstock.vectors.chroma import Chroma
        from penstock.vectors.qdrant import Qdrant

        for name in ("put", "drop", "clear"):
            steps.around(Chroma if kind == "chroma" else Qdrant, name)


def torn(steps: Steps) -> Callable[[Any, str], None]:
    """Return a write of a file that can be interrupted half way."""

    def write(content: Any, file: str) -> None:
        steps.step()
        faiss.write_index(content, file)
        whole = Path(file).read_bytes()
        Path(file).write_bytes(whole[: len(whole) // 2])
        steps.step()
        Path(file).write_bytes(whole)

    return write


def main() -> None:
    kind, root, stride = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if kind != "faiss":
        __import__({"chroma": "chromadb", "qdrant": "qdrant_client"}[kind])
    for moment in range(1, 10_000, stride):
        folder = root / str(moment)
        folder.mkdir()
        if (child := os.fork()) == 0:
            try:
                prepare(kind, Steps(moment))
                play(kind, folder)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the test shall see it
                print(repr(error), file=sys.stderr, flush=True)  # noqa: T201 - as above
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        ended = os.waitstatus_to_exitcode(status)
        if ended != -signal.SIGKILL:
            sys.exit(ended)


if __name__ == "__main__":
    main()
