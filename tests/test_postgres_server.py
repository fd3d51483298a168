import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from psycopg import sql

from tests.postgres import (
    PostgresServer,
    PostgresUnavailable,
    drop_schema,
    temporary_folder,
    within,
)

ROOT = Path(__file__).parent.parent

# Holds the server of a run until its input ends, and says where that is.
HOLDER = """
import sys
from pathlib import Path
from tests.postgres import share
with share(Path(sys.argv[1])) as server:
    print(server.folder, server.url, flush=True)
    sys.stdin.read()
"""


class Holder:
    """Another process that holds the server of a run."""

    def __init__(self, run: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(run)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        folder, self.url = self.process.stdout.readline().split()
        self.folder = Path(folder)

    def let_go(self) -> None:
        self.process.communicate(timeout=60)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=60)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer.create({"work_mem": "5MB"}) as started:
        yield started


@pytest.fixture
def dropped(postgres_server: str) -> Iterator[list[str]]:
    """Schemas that have to be gone after the test; comes before `postgres_url`."""
    schemas: list[str] = []
    yield schemas
    assert [schema for schema in schemas if exists(postgres_server, schema)] == []


def ask(url: str, question: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(question.encode()).fetchone()
    assert row is not None
    return row[0]


def schema_of(url: str) -> str:
    return parse_qs(urlsplit(url).query)["schema"][0]


def exists(url: str, schema: str) -> bool:
    return ask(url, f"SELECT to_regnamespace('{schema}') IS NOT NULL") is True


def make_table(connection: psycopg.Connection, schema: str) -> None:
    name = sql.Identifier(schema)
    connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
    connection.execute(sql.SQL("CREATE TABLE {}.jobs AS SELECT 1 AS id").format(name))


def wait_until_gone(folder: Path) -> None:
    deadline = time.monotonic() + 60
    while folder.exists():
        assert time.monotonic() < deadline, f"{folder} is still there"
        time.sleep(0.02)


def refuses(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return True
    return False


def test_server_has_the_settings_asked_for(server: PostgresServer) -> None:
    assert str(ask(server.url, "SHOW server_version")).startswith("18.")
    assert ask(server.url, "SHOW server_encoding") == "UTF8"
    assert ask(server.url, "SHOW fsync") == "off"
    assert ask(server.url, "SHOW work_mem") == "5MB"


def test_server_asks_for_its_password(server: PostgresServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(server.url, password="another")


def test_restart_keeps_what_was_committed_and_cuts_connections(server: PostgresServer) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        make_table(connection, "restarted")
        server.restart()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert ask(server.url, "SELECT id FROM restarted.jobs") == 1


def test_killed_server_recovers_what_was_committed(server: PostgresServer) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        make_table(connection, "killed")
    server.kill()
    assert refuses(server.url)
    server.start()
    assert ask(server.url, "SELECT id FROM killed.jobs") == 1


def test_processes_of_a_run_share_a_server_until_the_last_lets_go(tmp_path: Path) -> None:
    first, second = Holder(tmp_path), Holder(tmp_path)
    assert first.url == second.url
    first.let_go()
    assert ask(second.url, "SELECT 1") == 1
    second.let_go()
    assert not second.folder.exists()
    assert refuses(second.url)


def test_killed_processes_leave_no_server_behind(tmp_path: Path) -> None:
    first, second = Holder(tmp_path), Holder(tmp_path)
    first.kill()
    assert ask(second.url, "SELECT 1") == 1
    second.kill()
    wait_until_gone(second.folder)
    assert refuses(second.url)


def test_run_goes_on_with_another_server_when_its_own_is_gone(tmp_path: Path) -> None:
    early = Holder(tmp_path)
    early.let_go()
    late = Holder(tmp_path)
    assert late.folder != early.folder
    assert ask(late.url, "SELECT 1") == 1
    late.let_go()


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_a_schema_of_its_own(
    turn: int, dropped: list[str], postgres_server: str, postgres_url: str
) -> None:
    schema = schema_of(postgres_url)
    dropped.append(schema)
    assert not exists(postgres_server, schema)
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        make_table(connection, schema)


def test_schema_is_dropped_while_a_forgotten_transaction_holds_it(
    postgres_server: str, postgres_connection: psycopg.Connection, postgres_url: str
) -> None:
    schema = schema_of(postgres_url)
    with psycopg.connect(postgres_server) as forgotten:
        make_table(forgotten, schema)
        forgotten.commit()
        forgotten.execute(sql.SQL("SELECT * FROM {}.jobs").format(sql.Identifier(schema)))
        drop_schema(postgres_connection, schema)
        assert not exists(postgres_server, schema)
        with pytest.raises(psycopg.OperationalError, match="terminating connection"):
            forgotten.execute("SELECT 1")


def test_url_of_a_schema_keeps_the_other_parameters() -> None:
    assert within("postgresql://me@host/jobs", "a") == "postgresql://me@host/jobs?schema=a"
    url = within("postgresql://me@host/jobs?sslmode=require", "a")
    assert url == "postgresql://me@host/jobs?sslmode=require&schema=a"


def test_run_stops_at_the_first_test_that_finds_no_server() -> None:
    """One error says why, instead of one for each test."""
    command = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", __file__]
    ended = subprocess.run(
        [*command, "-k", "schema_of_its_own"],
        check=False,
        cwd=ROOT,
        env={**os.environ, "PENSTOCK_TEST_POSTGRES": "postgresql://127.0.0.1:1/none"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == pytest.ExitCode.INTERRUPTED
    summary = ended.stdout.partition("something that tests need is missing")[2]
    assert "the database that PENSTOCK_TEST_POSTGRES names" in summary
    assert "1 error in" in summary


@pytest.fixture
def closed(tmp_path: Path) -> str:
    """A folder that only its owner may enter."""
    folder = tmp_path / "closed"
    folder.mkdir(0o700)
    return str(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as somebody else")
def test_folder_that_the_server_cannot_enter_is_passed_over(closed: str) -> None:
    assert temporary_folder([closed, "/tmp"]) == Path("/tmp")  # noqa: S108 - everybody may enter it


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as somebody else")
def test_no_folder_that_the_server_can_enter_is_told_with_a_remedy(closed: str) -> None:
    with pytest.raises(PostgresUnavailable, match=f"nobody cannot run .* {closed}, .*; set TMPDIR"):
        temporary_folder([closed, "/nowhere"])
