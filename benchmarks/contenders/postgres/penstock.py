"""penstock on PostgreSQL, each store a schema of the database."""

# ruff: noqa: D102 - see PenstockQueue

from contextlib import AbstractContextManager

from benchmarks import postgres, usage
from benchmarks.contenders.penstock import PenstockQueue


class PostgresQueue(PenstockQueue):
    """Audit log and NOTIFY on, with as many slots as PgQueuer has jobs in a batch."""

    slots = 250

    def url(self, name: str) -> str:
        return f"{postgres.url_of(self.folder)}?schema={name}"

    def rest(self) -> None:
        postgres.rest(self.folder)

    def size(self) -> float:
        return usage.database_size(self.folder)

    def held_open(self) -> AbstractContextManager[None]:
        return postgres.held_open(self.folder)


class WideQueue(PostgresQueue):
    """With more slots, and so larger batches."""

    slots = 500


class SilentQueue(PostgresQueue):
    """Without NOTIFY: idle workers look by themselves."""

    def url(self, name: str) -> str:
        return f"{super().url(name)}&notify=off"


class UnsyncedQueue(PostgresQueue):
    """Commits without waiting for the disk: a crash of the server loses acknowledged jobs."""

    def url(self, name: str) -> str:
        return f"{super().url(name)}&options=-c%20synchronous_commit%3Doff"
