"""Entries beside the bare embedder with FAISS: 100,000 rows of 1,000 characters."""

from benchmarks.contenders import Contender
from benchmarks.scenarios import entries
from benchmarks.suites import Bar, Column, Suite, at, best_of, none

SUITE = Suite(
    name="entries",
    ours="penstock",
    contenders=(
        Contender(
            "penstock", "penstock serve", "benchmarks.contenders.entries:EntriesServer", "uvicorn"
        ),
        Contender(
            "bare",
            "bare: embed, add to FAISS",
            "benchmarks.contenders.entries:BareEmbedder",
            "faiss-cpu",
        ),
    ),
    scenarios=entries.SCENARIOS,
    columns=(Column("rows /s", "import.rate"),),
    details=(
        Column("write while embedding, p50, ms", "write.p50", "{:.1f}"),
        Column("write while embedding, p99, ms", "write.p99", "{:.1f}"),
        Column("writes while embedding", "write.written"),
        Column("writes a second, four connections", "burst.rate"),
        Column("status at 1,000 rows, ms", "import.status_few", "{:.2f}"),
        Column("status at 100,000 rows, ms", "import.status", "{:.2f}"),
    ),
    bars=(
        Bar(
            "import 100,000 rows (0.6x the bare embedder)",
            "import.rate",
            best_of("import.rate", {"bare": 0.6}),
            none,
        ),
        Bar(
            "write p95 while embedding",
            "write.p95",
            at(10),
            none,
            "{:.1f} ms",
            less_is_better=True,
        ),
        Bar(
            "1,000 writes searchable after the last",
            "burst.searchable",
            at(5),
            none,
            "{:.2f} s",
            less_is_better=True,
        ),
        Bar(
            "status, 100 times the rows",
            "import.growth",
            at(1.5),
            none,
            "{:.2f} times",
            less_is_better=True,
        ),
    ),
)
