"""penstock on SQLite and on a journal beside the queues that also need no server."""

from benchmarks.contenders import Contender
from benchmarks.scenarios import backlog, concurrency, lines, pickup, throughput
from benchmarks.scenarios.sharing import DRAIN_TWO
from benchmarks.suites import Bar, Column, Limit, Suite, at, best_of, none

CONTENDERS = (
    Contender("penstock", "penstock", "benchmarks.contenders.penstock:PenstockQueue", "penstock"),
    Contender(
        "penstock-journal",
        "penstock, journal",
        "benchmarks.contenders.penstock:PenstockJournal",
        "penstock",
        # The others need a second process, or a million jobs in memory.
        scenarios=("one-by-one", "bulk-100", "bulk-1000", "drain", "concurrent"),
    ),
    Contender(
        "penstock-journal-process",
        "penstock, journal, durability=process (not durable)",
        "benchmarks.contenders.penstock:UnsyncedJournal",
        "penstock",
        scenarios=("one-by-one", "bulk-1000", "drain"),
    ),
    Contender("huey", "huey, durable", "benchmarks.contenders.huey:HueyQueue", "huey"),
    Contender(
        "huey-nofsync", "huey, fsync off", "benchmarks.contenders.huey:UnsyncedHueyQueue", "huey"
    ),
    Contender(
        "litequeue",
        "litequeue, NORMAL",
        "benchmarks.contenders.litequeue:LitequeueQueue",
        "litequeue",
    ),
    Contender(
        "persist-queue",
        "persist-queue, durable",
        "benchmarks.contenders.persistqueue:PersistQueue",
        "persist-queue",
    ),
    Contender("bare", "bare SQLite, FULL, one table", "benchmarks.contenders.bare:BareQueue"),
    Contender(
        "bare-five",
        "bare SQLite, FULL, five tables",
        "benchmarks.contenders.bare:BareFiveTables",
        scenarios=("one-by-one", "bulk-100", "bulk-1000"),
    ),
)

COLUMNS = (
    Column("one by one /s", "one-by-one.rate"),
    Column("bulk by 100 /s", "bulk-100.rate"),
    Column("bulk by 1,000 /s", "bulk-1000.rate"),
    Column("drain /s", "drain.rate"),
    Column("drain, 2 processes /s", "drain-2.rate"),
    Column("pickup p50 ms", "pickup.p50", "{:.1f}", less_is_better=True),
    Column("pickup p99 ms", "pickup.p99", "{:.1f}", less_is_better=True),
    Column("idle CPU %", "pickup.idle", "{:.1f}", less_is_better=True),
)

DETAILS = (
    Column("drain of one key, jobs/s", "lines.one"),
    Column("drain of 10 keys, jobs/s", "lines.ten"),
    Column("one async caller, jobs/s", "concurrent.one"),
    Column("100 async callers, jobs/s", "concurrent.rate"),
    *(
        Column(f"claim of 100, {kind}, {title}, ms", f"claim-{kind}.{figure}", "{:.2f}")
        for kind in backlog.KINDS
        for title, figure in (
            ("10,000 jobs", "small"),
            ("large file", "p50"),
            ("large file p99", "p99"),
        )
    ),
)

MILLISECONDS = "{:.2f} ms"
RATIO = "{:.2f}x"


def _times(figure: str, contender: str, share: float, of: str | None = None) -> Limit:
    """So many times what a contender reached in the same run, in this figure or in another."""
    return best_of(of or figure, {contender: share})


BARS = (
    *(
        Bar(
            f"{title} ({floor}x, {aim}x {other})",
            figure,
            _times(figure, other, floor),
            _times(figure, other, aim),
        )
        for title, figure, other, floor, aim in (
            ("enqueue one by one", "one-by-one.rate", "persist-queue", 0.75, 0.9),
            ("enqueue in bulk by 1,000", "bulk-1000.rate", "litequeue", 3, 4),
            ("drain, one worker process", "drain.rate", "litequeue", 5.5, 8),
        )
    ),
    Bar(
        "drain, two processes (1.4x, 1.7x one)",
        "drain-2.rate",
        _times("drain-2.rate", "penstock", 1.4, of="drain.rate"),
        _times("drain-2.rate", "penstock", 1.7, of="drain.rate"),
    ),
    Bar(
        "processor time of a single enqueue",
        "one-by-one.job_cpu",
        none,
        at(50),
        "{:.0f} µs",
        less_is_better=True,
    ),
    Bar("drain of one key", "lines.one", at(8_000), at(15_000)),
    Bar("100 concurrent callers against one", "concurrent.ratio", at(8), at(15), RATIO),
    Bar("idle pickup p50", "pickup.p50", at(1.5), at(1), MILLISECONDS, less_is_better=True),
    Bar("idle pickup p99", "pickup.p99", at(6), at(4), MILLISECONDS, less_is_better=True),
    Bar(
        "idle worker, share of a core", "pickup.idle", at(1), none, "{:.2f} %", less_is_better=True
    ),
    *(
        Bar(
            f"claim of 100, large file against 10,000: {kind}",
            f"claim-{kind}.ratio",
            at(1.2),
            at(1.1),
            RATIO,
            less_is_better=True,
        )
        for kind in backlog.KINDS
    ),
    *(
        Bar(
            f"claim of 100, large file, p99: {kind}",
            f"claim-{kind}.p99",
            none,
            at(5),
            MILLISECONDS,
            less_is_better=True,
        )
        for kind in backlog.KINDS
    ),
    Bar("worker memory, peak", "memory.peak", at(100), at(60), "{:.0f} MB", less_is_better=True),
)

SUITE = Suite(
    name="embedded",
    ours="penstock",
    contenders=CONTENDERS,
    scenarios=(
        *throughput.SCENARIOS,
        DRAIN_TWO,
        *lines.SCENARIOS,
        *concurrency.SCENARIOS,
        *pickup.SCENARIOS,
        *backlog.SCENARIOS,
    ),
    columns=COLUMNS,
    details=DETAILS,
    bars=BARS,
)
