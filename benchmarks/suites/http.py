"""The server beside a FastAPI application that stores nothing; the load is another process."""

import os

from benchmarks.contenders import Contender
from benchmarks.contenders.http import BEFORE, earlier_commit
from benchmarks.scenarios import http
from benchmarks.suites import Bar, Column, Suite, at, best_of, none

_MILLISECONDS = "{:.1f} ms"

SUITE = Suite(
    name="http",
    ours="penstock",
    contenders=(
        Contender(
            "penstock", "penstock serve", "benchmarks.contenders.http:PenstockServer", "uvicorn"
        ),
        Contender(
            "fastapi",
            "FastAPI + pydantic, stores nothing",
            "benchmarks.contenders.http:NoopServer",
            "fastapi",
        ),
        *(
            [
                Contender(
                    "before",
                    f"penstock serve at {earlier_commit()}",
                    "benchmarks.contenders.http:EarlierServer",
                )
            ]
            if BEFORE in os.environ
            else []
        ),
    ),
    scenarios=http.SCENARIOS,
    columns=(
        Column("publish /s", "publish.rate"),
        Column("publish p99 ms", "publish.p99", "{:.1f}", less_is_better=True),
        Column("in batches of 100 /s", "publish-100.rate"),
    ),
    details=(
        Column("publish at half rate, p50, ms", "latency.p50", "{:.1f}"),
        Column("2,000 idle polls, share of a core, %", "polls.cpu", "{:.1f}"),
    ),
    bars=(
        # Where FastAPI makes 6,000/s: 12,000 and 15,000/s singly, 72,000 and 80,000/s in batches.
        Bar(
            "publish, one event per request, 64 connections (2x, 2.5x FastAPI that stores nothing)",
            "publish.rate",
            best_of("publish.rate", {"fastapi": 2.0}),
            best_of("publish.rate", {"fastapi": 2.5}),
        ),
        Bar(
            "publish in batches of 100 (12x, 13.3x its single requests)",
            "publish-100.rate",
            best_of("publish.rate", {"fastapi": 12.0}),
            best_of("publish.rate", {"fastapi": 13.3}),
        ),
        Bar("subscribe and complete, batches of 50", "cycle-50.rate", at(8_000), at(15_000)),
        Bar(
            "publish p99 at half the rate",
            "latency.p99",
            at(25),
            at(10),
            _MILLISECONDS,
            less_is_better=True,
        ),
        *(
            Bar(
                f"GET {path}, p99 under full load",
                f"health.{figure}",
                at(20),
                at(10),
                _MILLISECONDS,
                less_is_better=True,
            )
            for path, figure in (("/health", "live"), ("/health/ready", "ready"))
        ),
        Bar(
            "2,000 idle polls, memory",
            "polls.memory",
            at(100),
            none,
            "{:.0f} MB",
            less_is_better=True,
        ),
    ),
)
