"""penstock as a backend of Django's Tasks framework beside two others, on SQLite."""

from benchmarks.contenders import Contender
from benchmarks.results import Results
from benchmarks.scenarios import pickup, throughput
from benchmarks.suites import Bar, Column, Limit, Suite, none

_HERE = "benchmarks.contenders.django"
_MISSING = "it is not installed; it needs Python 3.12"
_PEERS = ("tasks-db", "ox", "ox-20")


def contenders(prefix: str = "") -> tuple[Contender, ...]:
    """The backends; `prefix` is that of their classes for another database."""
    return (
        Contender("penstock", "penstock", f"{_HERE}.penstock:{prefix}PenstockQueue", "penstock"),
        Contender(
            "tasks-db",
            "django-tasks-db",
            f"{_HERE}.tasks_db:{prefix}TasksDbQueue",
            "django-tasks-db",
        ),
        Contender("ox", "django-ox", f"{_HERE}.ox:{prefix}OxQueue", "django-ox", missing=_MISSING),
        Contender(
            "ox-20",
            "django-ox, 20 threads",
            f"{_HERE}.ox:{prefix}WideOxQueue",
            "django-ox",
            scenarios=("drain",),
            missing=_MISSING,
        ),
    )


COLUMNS = (
    Column("one by one /s", "one-by-one.rate"),
    Column("1,000 in a transaction /s", "bulk-1000.rate"),
    Column("drain /s", "drain.rate"),
    Column("pickup p50 ms", "pickup.p50", "{:.1f}", less_is_better=True),
    Column("pickup p99 ms", "pickup.p99", "{:.1f}", less_is_better=True),
    Column("idle CPU %", "pickup.idle", "{:.1f}", less_is_better=True),
)


def best(figure: str, share: float = 1.0) -> Limit:
    """The best of the other backends that are installed, times a share."""

    def limit(results: Results) -> float | None:
        found = [value for peer in _PEERS if (value := results.get(peer, figure)) is not None]
        choose = min if figure.startswith("pickup") else max
        return share * choose(found) if found else None

    return limit


BARS = (
    Bar("enqueue one by one (best peer)", "one-by-one.rate", best("one-by-one.rate"), none),
    Bar("1,000 in a transaction (best peer)", "bulk-1000.rate", best("bulk-1000.rate"), none),
    Bar("drain (best peer, 3x)", "drain.rate", best("drain.rate"), best("drain.rate", 3)),
    *(
        Bar(
            f"pickup {figure} (best peer)",
            f"pickup.{figure}",
            best(f"pickup.{figure}"),
            none,
            "{:.1f} ms",
            less_is_better=True,
        )
        for figure in ("p50", "p99")
    ),
)

SCENARIOS = (
    throughput.ONE_BY_ONE,
    throughput.BULK_1000,
    throughput.DRAIN,
    *pickup.SCENARIOS,
)

SUITE = Suite(
    name="django",
    ours="penstock",
    contenders=contenders(),
    scenarios=SCENARIOS,
    columns=COLUMNS,
    details=(),
    bars=BARS,
)
