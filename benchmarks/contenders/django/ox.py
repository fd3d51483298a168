"""django-ox, with one task at a time as by default, and with as many as penstock runs."""

# ruff: noqa: D102 - the protocols in benchmarks.contenders say what the methods do

from contextlib import suppress

from django.core.management import call_command

from benchmarks.contenders.django import DjangoQueue


class OxQueue(DjangoQueue):
    """Its worker looks once a second while there is no task."""

    backend = "django_ox.backend.OxBackend"
    apps = ("django_ox",)
    concurrency = 1

    def work(self, *, until_empty: bool) -> None:
        with suppress(SystemExit):
            call_command("ox_worker", batch=until_empty, concurrency=self.concurrency)


class WideOxQueue(OxQueue):
    """Twenty threads."""

    concurrency = 20


class PostgresOxQueue(OxQueue):
    """The same on PostgreSQL."""

    on_postgres = True


class PostgresWideOxQueue(WideOxQueue):
    """Twenty threads on PostgreSQL."""

    on_postgres = True
