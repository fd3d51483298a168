"""A server with very many queues, and a search for one job behind very many."""

from benchmarks.contenders import Contender
from benchmarks.scenarios.lists import LISTS, SCENARIOS, SEARCHES
from benchmarks.suites import Bar, Column, Suite, at, none

SUITE = Suite(
    name="lists",
    ours="penstock",
    contenders=(
        Contender(
            "penstock", "penstock serve", "benchmarks.contenders.http:PenstockServer", "uvicorn"
        ),
    ),
    scenarios=SCENARIOS,
    columns=(),
    details=(
        *(
            Column(f"{title}, {kind}", f"lists.{name}_{figure}", form)
            for name, (title, _) in LISTS.items()
            for kind, figure, form in (
                ("first answer, ms", "first", "{:,.1f}"),
                ("median, ms", "p50", "{:,.1f}"),
                ("KB", "kilobytes", "{:,.0f}"),
            )
        ),
        Column("GET /health p99 on the idle server, ms", "lists.idle_p99", "{:.1f}"),
        *(
            Column(f"one job behind all others, by {title}, s", f"searches.{name}", "{:.2f}")
            for name, (title, _) in SEARCHES.items()
        ),
        Column("GET /health p99 meanwhile, ms", "searches.health_p99", "{:.1f}"),
    ),
    bars=(
        Bar(
            "GET /health p99 while all lists are read",
            "lists.health_p99",
            at(50),
            none,
            "{:.1f} ms",
            less_is_better=True,
        ),
    ),
)
