"""Ingestion through items beside the same pipeline without a queue; counting; SQL inserts."""

from benchmarks.contenders import Contender
from benchmarks.scenarios import ingest, relation
from benchmarks.suites import Bar, Column, Suite, at, best_of, none
from benchmarks.suites import relation as inserts

SUITE = Suite(
    name="ingest",
    ours="penstock",
    contenders=(
        Contender(
            "penstock", "penstock serve", "benchmarks.contenders.ingest:IngestServer", "uvicorn"
        ),
        Contender(
            "bare",
            "bare pipeline: cut, embed, add",
            "benchmarks.contenders.indexing:BarePipeline",
            "faiss-cpu",
        ),
    ),
    scenarios=(*ingest.SCENARIOS, relation.SQLITE),
    columns=(Column("files /s", "folder.rate"),),
    details=(
        Column("items that were counted", "stats.items"),
        *inserts.DETAILS,
    ),
    bars=(
        Bar(
            "10,000 files through a folder item (0.6x the bare pipeline)",
            "folder.rate",
            best_of("folder.rate", {"bare": 0.6}),
            best_of("folder.rate", {"bare": 0.9}),
        ),
        Bar(
            "stats with a million items, p99",
            "stats.p99",
            at(20),
            none,
            "{:.2f} ms",
            less_is_better=True,
        ),
        Bar(
            "the same beside stats with a thousandth of the items",
            "stats.growth",
            at(3),
            none,
            "{:.2f} times",
            less_is_better=True,
        ),
        *inserts.BARS,
    ),
)
