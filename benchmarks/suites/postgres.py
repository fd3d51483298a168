"""penstock on PostgreSQL beside the queues that also keep their jobs there, on one server."""

from benchmarks import postgres
from benchmarks.contenders import Contender
from benchmarks.scenarios import backlog, concurrency, lines, pickup, relation, throughput
from benchmarks.scenarios import postgres as only_postgres
from benchmarks.scenarios.sharing import DRAIN_TWO
from benchmarks.suites import Bar, Column, Suite, at, best_of
from benchmarks.suites import relation as inserts

_HERE = "benchmarks.contenders.postgres"
_RATIO = "{:.2f}x"

CONTENDERS = (
    Contender("penstock", "penstock", f"{_HERE}.penstock:PostgresQueue", "penstock"),
    Contender(
        "penstock-500",
        "penstock, 500 slots",
        f"{_HERE}.penstock:WideQueue",
        "penstock",
        scenarios=("drain", "drain-2"),
    ),
    Contender(
        "penstock-async",
        "penstock, synchronous_commit off (not durable)",
        f"{_HERE}.penstock:UnsyncedQueue",
        "penstock",
        scenarios=("one-by-one", "bulk-1000", "drain"),
    ),
    Contender(
        "no-notify",
        "penstock, NOTIFY off",
        f"{_HERE}.penstock:SilentQueue",
        "penstock",
        scenarios=("one-by-one", "drain", "pickup"),
    ),
    Contender(
        "pgqueuer", "PgQueuer, batches of 250", f"{_HERE}.pgqueuer:PgQueuerQueue", "pgqueuer"
    ),
    Contender(
        "procrastinate",
        "Procrastinate",
        f"{_HERE}.procrastinate:ProcrastinateQueue",
        "procrastinate",
    ),
    Contender(
        "oban",
        "Oban",
        f"{_HERE}.oban:ObanQueue",
        "oban",
        missing="it is not installed; it needs Python 3.12",
    ),
    Contender("chancy", "Chancy", f"{_HERE}.chancy:ChancyQueue", "chancy"),
    Contender("saq", "SAQ", f"{_HERE}.saq:SaqQueue", "saq"),
    Contender("bare", "bare PostgreSQL", f"{_HERE}.bare:BareQueue", "psycopg"),
    Contender(
        "bare-notify",
        "bare PostgreSQL, NOTIFY",
        f"{_HERE}.bare:NotifyingBareQueue",
        "psycopg",
        scenarios=("one-by-one", "pickup"),
    ),
)

COLUMNS = (
    Column("one by one /s", "one-by-one.rate"),
    Column("bulk by 1,000 /s", "bulk-1000.rate"),
    Column("bulk, own way /s", "bulk-own.rate"),
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
            ("large store", "p50"),
            ("large store p99", "p99"),
        )
    ),
    Column("write-ahead log of a job, enqueued in bulk, bytes", "wal.enqueue"),
    Column("the same, claimed and settled, bytes", "wal.run"),
    Column("drain without keys, jobs/s", "keys.plain"),
    Column("drain beside blocked jobs, jobs/s", "keys.beside"),
    Column("beside against without", "keys.beside_ratio", _RATIO),
    Column("drain of chained keys, jobs/s", "keys.chained"),
    Column("chained against without", "keys.chained_ratio", _RATIO),
    Column("8 producers, plain jobs/s", "producers.plain"),
    Column("8 producers, dedupe keys, jobs/s", "producers.dedupe"),
    Column("dedupe keys against plain", "producers.dedupe_ratio", _RATIO),
    Column("8 producers, keys, jobs/s", "producers.key"),
    Column("keys against plain", "producers.key_ratio", _RATIO),
    Column("drain before a foreign transaction, jobs/s", "held.before"),
    Column("drain while it is open, jobs/s", "held.during"),
    Column("open against before", "held.ratio", _RATIO),
    Column("jobs worked off meanwhile", "held.jobs"),
    Column("drain after it, jobs/s", "held.after"),
    Column("tables after all jobs of a large store, MB", "bloat.tables"),
    Column("indexes, MB", "bloat.indexes"),
    Column("bytes per job", "bloat.per_job"),
    Column("dead rows", "bloat.dead"),
    Column("vacuum, s", "bloat.vacuum", "{:.1f}"),
    Column("time for the last tenth of the jobs against the first", "bloat.slower", _RATIO),
    *inserts.DETAILS,
)

BARS = (
    Bar("drain of one key", "lines.one", at(4_000), at(8_000)),
    *(
        Bar(
            f"{title} ({floor}x, {aim}x PgQueuer)",
            figure,
            best_of(figure, {"pgqueuer": floor}),
            best_of(figure, {"pgqueuer": aim}),
        )
        for title, figure, floor, aim in (
            ("enqueue one by one", "one-by-one.rate", 0.9, 1.1),
            ("enqueue in bulk by 1,000", "bulk-1000.rate", 1.5, 2.5),
            ("drain, one process", "drain.rate", 1.3, 1.8),
            ("drain, two processes", "drain-2.rate", 1.3, 1.6),
        )
    ),
    Bar(
        "idle pickup p50 (1.0x, 0.8x PgQueuer)",
        "pickup.p50",
        best_of("pickup.p50", {"pgqueuer": 1.0}),
        best_of("pickup.p50", {"pgqueuer": 0.8}),
        "{:.2f} ms",
        less_is_better=True,
    ),
    Bar(
        "write-ahead log of a job, enqueued in bulk and worked off",
        "wal.job",
        at(1_600),
        at(1_000),
        "{:,.0f} B",
        less_is_better=True,
    ),
    *(
        Bar(
            f"8 producers, {title}, against plain jobs",
            f"producers.{figure}_ratio",
            at(0.6),
            at(0.8),
            _RATIO,
        )
        for title, figure in (("keys", "key"), ("dedupe keys", "dedupe"))
    ),
    *(
        Bar(
            f"claim of 100, large store against 10,000: {kind}",
            f"claim-{kind}.ratio",
            at(1.2),
            at(1.1),
            _RATIO,
            less_is_better=True,
        )
        for kind in backlog.KINDS
    ),
    *inserts.BARS,
)

SUITE = Suite(
    name="postgres",
    ours="penstock",
    contenders=CONTENDERS,
    scenarios=(
        throughput.ONE_BY_ONE,
        throughput.BULK_1000,
        throughput.BULK_OWN,
        throughput.DRAIN,
        DRAIN_TWO,
        *lines.SCENARIOS,
        *concurrency.SCENARIOS,
        *pickup.SCENARIOS,
        *backlog.CLAIMS,
        *only_postgres.SCENARIOS,
        relation.POSTGRES,
    ),
    columns=COLUMNS,
    details=DETAILS,
    bars=BARS,
    ground=postgres.databases,
    about=postgres.about,
)
