"""The same backends of Django's Tasks framework on PostgreSQL."""

from benchmarks import postgres
from benchmarks.suites import Suite
from benchmarks.suites.django import BARS, COLUMNS, SCENARIOS, contenders

SUITE = Suite(
    name="django-postgres",
    ours="penstock",
    contenders=contenders("Postgres"),
    scenarios=SCENARIOS,
    columns=COLUMNS,
    details=(),
    bars=BARS,
    ground=postgres.databases,
    about=postgres.about,
)
