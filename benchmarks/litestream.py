"""What a replica by Litestream loses and how long recovery takes, while jobs are written.

    python benchmarks/litestream.py [SECONDS] [ROUNDS] [active|passive] [BATCH]

Each round runs two producers, of BATCH jobs at once, and a worker on a new SQLite file, kills all
and Litestream without warning, restores the replica elsewhere, and compares it with what was
acknowledged. Litestream writes to a folder of the same machine: a replica in a network is further
behind by its latency.
"""

import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from penstock import JobQuery, NewJob, Penstock, run_sync
from penstock.leases import Done

LITESTREAM = Path(sys.executable).parent / "litestream"
_PAYLOAD = json.dumps({"text": "x" * 200})


class Recovery(NamedTuple):
    """What one round came to."""

    per_second: float
    """Jobs enqueued in a second."""
    slowest: float
    """The longest enqueue, in seconds."""
    largest_log: int
    """The largest size of the write-ahead log, in bytes."""
    lost: int
    """Acknowledged jobs that the replica does not have."""
    lost_seconds: float
    """The age, at the kill, of the oldest of them; the recovery point."""
    recovery: float
    """Seconds from the end of the processes to the first job claimed from the restored store."""
    problems: int


def main() -> None:
    """Run the rounds and print what they came to."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] == "--load":
        load(arguments[1], int(arguments[2]))
        return
    seconds = float(arguments[0]) if arguments else 20
    rounds = int(arguments[1]) if len(arguments) > 1 else 5
    mode = arguments[2] if len(arguments) > 2 else "passive"
    batch = int(arguments[3]) if len(arguments) > 3 else 10
    results = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            results.append(one_round(Path(folder), seconds, mode, batch))
            print(results[-1], flush=True)
    for name in ("per_second", "slowest", "largest_log", "lost", "lost_seconds", "recovery"):
        values = [getattr(result, name) for result in results]
        print(f"{name}: median {statistics.median(values):,.2f}, worst {max(values):,.2f}")


def one_round(folder: Path, seconds: float, mode: str, batch: int) -> Recovery:
    """Run, kill, restore and compare."""
    store, replica = folder / "jobs.db", folder / "replica"
    url = f"sqlite:///{store}?checkpoints={mode}"
    app = Penstock(url)
    run_sync(app.count())  # creates the file
    run_sync(app.close())
    replicating = replicate(store, replica)
    notes = folder / "acknowledged"
    with notes.open("w") as output:
        command = [sys.executable, __file__, "--load", url, str(batch)]
        loading = subprocess.Popen(command, stdout=output)
    end, largest = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        time.sleep(0.1)
        log = Path(f"{store}-wal")
        largest = max(largest, log.stat().st_size if log.exists() else 0)
    killed = time.time()
    for process in (loading, replicating):
        process.send_signal(signal.SIGKILL)
    loading.wait()
    replicating.wait()
    gone = time.time()  # a process in the middle of a flush dies after it
    restored = folder / "restored.db"
    restore(replica, restored)
    other = Penstock(f"sqlite:///{restored}")
    run_sync(other.archive.restored_in_place())
    run_sync(other.leases.claim(worker="w"))
    recovery = time.time() - gone
    newest = run_sync(other.store.origin())
    (last_restored,) = run_sync(other.store.find_ids(_newest_below(newest.last_job)))
    found = run_sync(other.archive.verify())
    run_sync(other.close())
    # The last line may have been cut off.
    lines = notes.read_text().splitlines(keepends=True)
    acknowledged = [line.split() for line in lines if line.endswith("\n")]
    times = {int(job_id): (float(at), float(took)) for at, job_id, took in acknowledged}
    lost = [at for job_id, (at, _) in times.items() if job_id > last_restored]
    return Recovery(
        per_second=len(times) * batch / seconds,
        slowest=max(took for _, took in times.values()),
        largest_log=largest,
        lost=len(lost) * batch,
        lost_seconds=killed - min(lost) if lost else 0.0,
        recovery=recovery,
        problems=sum(found.found.values()),
    )


def _newest_below(job_id: int) -> JobQuery:
    return JobQuery(limit=1, after=job_id + 1)


def replicate(store: Path, replica: Path) -> "subprocess.Popen[bytes]":
    """Start Litestream, and wait until it has begun."""
    process = subprocess.Popen(
        [LITESTREAM, "replicate", str(store), f"file://{replica}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not any(replica.rglob("*.ltx")):
        if process.poll() is not None:
            raise SystemExit("litestream ended early")
        time.sleep(0.01)
    return process


def restore(replica: Path, target: Path) -> None:
    """Restore a replica to a new file."""
    subprocess.run(
        [LITESTREAM, "restore", "-o", str(target), f"file://{replica}"],
        check=True,
        capture_output=True,
    )


def load(url: str, batch: int) -> None:
    """Enqueue and run jobs until killed; print when each batch was acknowledged."""
    app = Penstock(url)
    lock = threading.Lock()

    def produce() -> None:
        while True:
            began = time.time()
            jobs = run_sync(
                app.enqueue_many([NewJob(task="t", payload=_PAYLOAD) for _ in range(batch)])
            )
            now = time.time()
            with lock:
                sys.stdout.write(f"{now} {jobs[-1].id} {now - began}\n")
                sys.stdout.flush()
            time.sleep(0.005)

    for _ in range(2):
        threading.Thread(target=produce, daemon=True).start()
    while True:
        jobs = run_sync(app.leases.claim(worker="w", limit=5 * batch))
        run_sync(app.leases.settle([(job, Done()) for job in jobs]))


if __name__ == "__main__":
    main()
