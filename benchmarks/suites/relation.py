"""Inserts into `unified_queue`, as a part of the suites of both databases."""

from benchmarks.scenarios.relation import BATCHES
from benchmarks.suites import Bar, Column, at, none

DETAILS = tuple(
    Column(f"{title}, {batch:,} rows a commit, rows/s", f"sql-inserts.{name}_{batch}")
    for batch in BATCHES
    for title, name in (("bare table", "bare"), ("unified_queue", "ours"))
)
BARS = tuple(
    Bar(
        f"SQL inserts beside a bare table, {batch:,} a commit",
        f"sql-inserts.share_{batch}",
        at(0.5),
        none,
        "{:.0%}",
    )
    for batch in BATCHES
)
