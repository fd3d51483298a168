"""Indexing by jobs beside the same pipeline without a queue: 10,000 text files, 50 MB."""

from benchmarks.contenders import Contender
from benchmarks.scenarios import indexing
from benchmarks.suites import Bar, Column, Suite, at, best_of, none

_MILLISECONDS = "{:.1f} ms"

SUITE = Suite(
    name="indexing",
    ours="penstock",
    contenders=(
        Contender(
            "penstock", "penstock serve", "benchmarks.contenders.indexing:IndexingServer", "uvicorn"
        ),
        Contender(
            "bare",
            "bare pipeline: cut, embed, add",
            "benchmarks.contenders.indexing:BarePipeline",
            "faiss-cpu",
        ),
    ),
    scenarios=indexing.SCENARIOS,
    columns=(Column("files /s", "index.rate"),),
    details=(
        Column("POST /index while indexing, p50, ms", "answers.post_p50", "{:.1f}"),
        Column("requests while indexing", "answers.asked"),
        Column("memory of a job's process, a quarter of the files, MB", "memory.few"),
    ),
    bars=(
        Bar(
            "index 10,000 files (0.7x the bare pipeline)",
            "index.rate",
            best_of("index.rate", {"bare": 0.7}),
            best_of("index.rate", {"bare": 0.9}),
        ),
        Bar(
            "check 10,000 unchanged files",
            "index.recheck",
            at(3),
            at(1),
            "{:.2f} s",
            less_is_better=True,
        ),
        Bar(
            "POST /index p99 while indexing",
            "answers.post",
            at(50),
            none,
            _MILLISECONDS,
            less_is_better=True,
        ),
        Bar(
            "GET /health/status p99 while indexing",
            "answers.status",
            at(20),
            none,
            _MILLISECONDS,
            less_is_better=True,
        ),
        Bar(
            "more memory for four times the files",
            "memory.growth",
            at(20),
            none,
            "{:.0f} MB",
            less_is_better=True,
        ),
    ),
)
