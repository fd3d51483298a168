"""How much a job takes on disk, on SQLite."""

from benchmarks.contenders import Contender
from benchmarks.scenarios import Load
from benchmarks.scenarios.sizes import SCENARIOS
from benchmarks.suites import Column, Suite

SUITE = Suite(
    name="sizes",
    ours="penstock",
    contenders=(
        Contender(
            "penstock", "penstock", "benchmarks.contenders.penstock:PenstockQueue", "penstock"
        ),
    ),
    scenarios=SCENARIOS,
    columns=(),
    details=(
        Column("an empty store, bytes", "sizes.empty"),
        Column("a waiting job, bytes", "sizes.waiting"),
        Column("a finished job with its log, bytes", "sizes.done"),
    ),
    bars=(),
    load=Load(jobs=50_000),
)
