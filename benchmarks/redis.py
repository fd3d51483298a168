"""A Redis server for each run, from the system's package, on a port of this machine."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from redis import Redis
from redis.exceptions import ConnectionError as NotConnected

from benchmarks.usage import REDIS

PROGRAM = "redis-server"
MISSING = f"{PROGRAM} is not installed (Debian and Ubuntu: apt-get install {PROGRAM})"

DURABLE = {"appendonly": "yes", "appendfsync": "always", "save": ""}
"""Every write is on disk before it is answered."""

SNAPSHOTS = {"appendonly": "no", "save": "3600 1 300 100 60 10000"}
"""As Debian configures it: a crash loses what came after the last snapshot, a minute or more."""

_PATIENCE = 30.0


@contextmanager
def server(place: Path) -> Iterator[None]:
    """Run a durable server as long as the block, with its data in this folder."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    settings = {
        **DURABLE,
        "port": str(port),
        "bind": "127.0.0.1",
        "dir": str(place),
        "logfile": "redis.log",
        # As with PostgreSQL's checkpoints: not in one run and not in another.
        "auto-aof-rewrite-percentage": "0",
    }
    options = [text for name, value in settings.items() for text in (f"--{name}", value)]
    process = subprocess.Popen([shutil.which(PROGRAM) or PROGRAM, *options])
    try:
        (place / REDIS).write_text(f"redis://127.0.0.1:{port}/0")
        _wait_for(place, process)
        yield
    finally:
        process.terminate()
        process.wait()


def _wait_for(place: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            with Redis.from_url(url_of(place)) as client:
                client.ping()
        except NotConnected:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def url_of(place: Path) -> str:
    """The server of a run."""
    return (place / REDIS).read_text()


def configure(place: Path, settings: Mapping[str, str]) -> None:
    """Change settings of the server of a run; return when the append-only file is complete."""
    with Redis.from_url(url_of(place), decode_responses=True) as client:
        for name, value in settings.items():
            client.config_set(name, value)
        while client.info("persistence")["aof_rewrite_in_progress"]:
            time.sleep(0.01)


def about(place: Path) -> Mapping[str, str]:
    """The server, for the report."""
    with Redis.from_url(url_of(place), decode_responses=True) as client:
        return {"redis-server": client.info("server")["redis_version"]}
