"""One PostgreSQL server for a suite, durable, and in it a database for each run."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg

from benchmarks.places import Fresh, folder
from benchmarks.usage import DATABASE
from tests.postgres import PostgresServer

SETTINGS = {
    "synchronous_commit": "on",
    "fsync": "on",
    "full_page_writes": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
}
"""Durable as PostgreSQL is by default; memory and WAL as a server has them, so that no checkpoint
falls into one run and not into another."""

_HOLD = (
    "CREATE TABLE IF NOT EXISTS bystander (id int)",
    "BEGIN ISOLATION LEVEL REPEATABLE READ",
    "SELECT 1",
    "INSERT INTO bystander VALUES (1)",
)

_SHOWN = ("synchronous_commit", "fsync", "shared_buffers")


@contextmanager
def databases(below: Path) -> Iterator[Fresh]:
    """Places with a database each, on a server that runs as long as the block."""
    with PostgresServer.create(SETTINGS, below=below) as server:
        yield partial(_database, below, server.url)


def url_of(place: Path) -> str:
    """The database of a run."""
    return (place / DATABASE).read_text()


def rest(place: Path) -> None:
    """Let the database be as one that has worked for a while: analysed, and all on disk."""
    with psycopg.connect(url_of(place), autocommit=True) as connection:
        connection.execute("ANALYZE")
        connection.execute("CHECKPOINT")


@contextmanager
def held_open(place: Path) -> Iterator[None]:
    """Somebody else's transaction, with a snapshot and a write, as long as the block."""
    with psycopg.connect(url_of(place), autocommit=True) as connection:
        for statement in _HOLD:
            connection.execute(statement.encode())
        yield
        connection.execute("COMMIT")


def about(place: Path) -> Mapping[str, str]:
    """The server, for the report."""
    with psycopg.connect(url_of(place)) as connection:
        found = connection.execute("SELECT name, current_setting(name) FROM pg_settings")
        settings: dict[str, str] = dict(found.fetchall())
    return {
        "postgresql": settings["server_version"],
        **{name: settings[name] for name in _SHOWN},
    }


@contextmanager
def _database(below: Path, server: str) -> Iterator[Path]:
    with folder(below) as place, psycopg.connect(server, autocommit=True) as admin:
        name = place.name.replace("-", "_")
        admin.execute(f'CREATE DATABASE "{name}"'.encode())
        (place / DATABASE).write_text(f"{server.rpartition('/')[0]}/{name}")
        admin.execute("CHECKPOINT")
        try:
            yield place
        finally:
            admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())
