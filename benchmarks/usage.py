"""What processes and stores use: processor time, memory, bytes written, room on disk."""

import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

DATABASE = "postgres.url"
"""The file in the place of a run that holds the address of its database, if that is on a server."""

REDIS = "redis.url"
"""The same for its Redis server."""

_KILOBYTE = 1024


class Usage(NamedTuple):
    """Processor time in seconds, the highest memory in bytes, and bytes written, if known."""

    cpu: float
    memory: float
    written: float | None


def of(place: Path | None = None, process: int | None = None) -> Usage:
    """Return what a process has used; without its id, this one and its children that have ended.

    The bytes are those that reached the disk; in a `place` with servers, also those of the
    write-ahead log of PostgreSQL and of the append-only file of Redis. Where nobody counts them
    they are None.
    """
    cpu, memory = _own() if process is None else _other(process)
    counted = [_written(process or os.getpid())]
    if place is not None:
        counted += [_wal_bytes(place), _append_only_bytes(place)]
    written = [count for count in counted if count is not None]
    return Usage(cpu, memory, sum(written) if written else None)


def _own() -> tuple[float, float]:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(one.ru_utime + one.ru_stime for one in used)
    return cpu, used[0].ru_maxrss * _KILOBYTE


def _other(process: int) -> tuple[float, float]:
    found = psutil.Process(process)
    times = found.cpu_times()
    memory = float(found.memory_info().rss)
    with suppress(OSError):  # Linux also knows the highest
        status = Path(f"/proc/{process}/status").read_text()
        lines = [line.split() for line in status.splitlines() if line.startswith("VmHWM:")]
        memory = float(lines[0][1]) * _KILOBYTE if lines else memory
    return times.user + times.system, memory


def _written(process: int) -> float | None:
    """Return the bytes that a process and its ended children have caused to be written to disk."""
    try:
        lines = Path(f"/proc/{process}/io").read_text().splitlines()
    except OSError:
        return None
    return float(dict(line.split(": ") for line in lines)["write_bytes"])


def _url_of(place: Path, server: str = DATABASE) -> str | None:
    """Return the address of the database of a run; None if it has none."""
    try:
        return (place / server).read_text()
    except FileNotFoundError:
        return None


def _wal_bytes(place: Path) -> float | None:
    """Return how long the write-ahead log of the server is that a run has its database on."""
    url = _url_of(place)
    if url is None:
        return None
    import psycopg  # only where there is a server

    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
    return None if found is None else float(found[0])


def _append_only_bytes(place: Path) -> float | None:
    """Return how long the append-only file of the Redis server of a run is, if it writes one."""
    url = _url_of(place, REDIS)
    if url is None:
        return None
    from redis import Redis  # only where there is a server

    with Redis.from_url(url, decode_responses=True) as client:
        size = client.info("persistence").get("aof_current_size")
    return None if size is None else float(size)


def database_size(place: Path) -> float:
    """Return the bytes that the database of a run takes on its server."""
    import psycopg  # only where there is a server

    with psycopg.connect(_url_of(place) or "", autocommit=True) as connection:
        found = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    return 0.0 if found is None else float(found[0])
