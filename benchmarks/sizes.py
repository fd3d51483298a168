"""How much a job takes on disk: `python -m benchmarks.sizes`, on SQLite, kept beside the others.

A figure does not depend on how busy the machine is.
"""

import asyncio
import json
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import machine
from benchmarks.cli import KEPT, ON_DISK
from benchmarks.contenders import PAYLOAD_BYTES, make_payload
from benchmarks.report import SCHEMA
from penstock import Penstock, Worker

JOBS = 50_000
COMMAND = "python -m benchmarks.sizes"


def main() -> None:
    """Measure, print and keep."""
    with tempfile.TemporaryDirectory(dir=ON_DISK) as folder:
        figures = asyncio.run(_measure(Path(folder)))
    for name, value in figures.items():
        print(f"{name}: {value:,.0f}")
    document = json.loads(KEPT.read_text("utf-8"))
    if document["schema"] != SCHEMA:
        raise ValueError(f"{KEPT} has another schema than {SCHEMA}")
    document["runs"][COMMAND] = _run(figures)
    document["runs"] = dict(sorted(document["runs"].items()))
    KEPT.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", "utf-8")


async def _measure(folder: Path) -> Mapping[str, float]:
    """Bytes a job, pending and done with its log, and of an empty file."""
    file = folder / "jobs.db"
    app = Penstock(f"sqlite:///{file}")
    noop = app.task("noop", _noop)
    await app.count()
    empty = await _size(app, file)
    for first in range(0, JOBS, 1_000):
        await app.enqueue_many(
            [noop.new(make_payload(f"{n:08}")) for n in range(first, first + 1_000)]
        )
    pending = await _size(app, file)
    await Worker(app, concurrency=250).run(until_empty=True)
    done = await _size(app, file)
    await app.close()
    return {
        "sqlite.empty_bytes": empty,
        "sqlite.pending_job_bytes": (pending - empty) / JOBS,
        "sqlite.done_job_bytes": (done - empty) / JOBS,
    }


async def _noop(data: dict[str, str]) -> None:
    """Do nothing."""


async def _size(app: Penstock, file: Path) -> float:
    """The size of the file with everything in it; a store opens again at the next call."""
    await app.close()
    return file.stat().st_size  # noqa: ASYNC240 - nothing else runs meanwhile


def _run(figures: Mapping[str, float]) -> Mapping[str, object]:
    return {
        "suite": "sizes",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": dict(machine.describe(ON_DISK)),
        "versions": dict(machine.versions(["penstock"])),
        "load": {"jobs": JOBS, "payload_bytes": PAYLOAD_BYTES},
        "ours": "penstock",
        "titles": {"penstock": "penstock"},
        "figures": {
            "penstock": {name: {"median": one, "runs": [one]} for name, one in figures.items()}
        },
        "bars": [],
        "left_out": [],
        "failures": [],
    }


if __name__ == "__main__":
    main()
