"""Eight processes on one file: nothing is locked, lost or done twice, and the WAL stays small."""

from collections import Counter
from pathlib import Path

from penstock.engine.penstock import run_sync
from tests.crash.processes import Zygote, until
from tests.crash.recording import Asked, Started, history_size, read_history
from tests.crash.support import assert_promises_kept, client

JOBS = 4_000
WAL_LIMIT = 64 * 1024 * 1024


def test_processes_share_a_file(zygote: Zygote, folder: Path) -> None:
    producers = [zygote.start("crowd_producer", folder, jobs=JOBS, seed=n) for n in range(3)]
    workers = [zygote.start("worker", folder, concurrency=50) for _ in range(3)]
    readers = [zygote.start("reader", folder, seed=n) for n in range(2)]
    wal = folder / "jobs.db-wal"
    sizes: list[int] = []

    def sample() -> None:
        if wal.exists():
            sizes.append(wal.stat().st_size)
        broken = [child for child in (*producers, *workers, *readers) if child.ended]
        assert all(child in producers and child.status == 0 for child in broken), (
            folder / "errors.txt"
        ).read_text()

    with client(folder) as app:

        def all_is_done() -> bool:
            sample()
            return all(child.ended for child in producers) and not run_sync(app.store.backlog())[0]

        until(all_is_done, "the jobs do not come to an end", progress=lambda: history_size(folder))
    for child in (*workers, *readers):
        child.stop()
    assert max(sizes) < WAL_LIMIT
    assert (folder / "jobs.db").stat().st_size > 16 * 1024 * 1024, "too little was written"
    assert_promises_kept(folder)
    history = read_history(folder)
    runs = Counter(note.job for note in history if isinstance(note, Started))
    asked = sum(len(note.jobs) for note in history if isinstance(note, Asked))
    assert asked >= 3 * JOBS
    assert len(runs) == asked
    assert set(runs.values()) == {1}
