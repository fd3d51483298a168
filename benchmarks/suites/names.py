"""What names of queues and tenants cost, on both databases."""

from benchmarks import postgres
from benchmarks.contenders import Contender
from benchmarks.scenarios.names import SCENARIOS
from benchmarks.suites import Bar, Column, Suite, at, none

_DATABASES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
_KINDS = {
    "one": "one queue",
    "queues": "a queue for each job",
    "tenants": "a tenant for each job",
    "alone": "a worker on one queue",
    "beside": "the same beside as many other queues",
}

SUITE = Suite(
    name="names",
    ours="penstock",
    contenders=(
        Contender(
            "penstock", "penstock", "benchmarks.contenders.penstock:PenstockQueue", "penstock"
        ),
    ),
    scenarios=SCENARIOS,
    columns=(),
    details=tuple(
        Column(f"{title}: drain, {kind}, jobs/s", f"{database}.{figure}")
        for database, title in _DATABASES.items()
        for figure, kind in _KINDS.items()
    ),
    bars=tuple(
        Bar(f"{title}: {kind}", f"{database}.{figure}_share", at(floor), none, "{:.0%}")
        for database, title in _DATABASES.items()
        for figure, kind, floor in (
            ("queues", "a queue for each job, against one queue", 0.5),
            ("tenants", "a tenant for each job, against one queue", 0.5),
            ("beside", "one queue beside many, against one alone", 0.9),
        )
    ),
    ground=postgres.databases,
    about=postgres.about,
)
