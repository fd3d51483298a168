import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from penstock import Penstock, run_sync
from penstock.config import Server, store_url
from tests.cli.support import Shell

STEERING = [
    ["jobs"],
    ["jobs", "1"],
    ["status"],
    ["explain", "1"],
    ["cancel", "1"],
    ["retry", "1"],
    ["pause", "mail"],
    ["resume", "mail"],
    ["limit", "mail", "3"],
    ["drain"],
]


@pytest.mark.parametrize("command", STEERING, ids=" ".join)
def test_missing_store_is_not_created(command: list[str], tmp_path: Path, shell: Shell) -> None:
    line = shell.error(*command, code=5)
    assert line == (
        f"penstock: there is no store at {tmp_path / 'jobs.db'}; "
        "try: another URL with --store, or in PENSTOCK_STORE"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command", [*STEERING, ["enqueue", "t"], ["worker", "misconfigured:app"]], ids=" ".join
)
def test_wrong_setting_is_refused_by_every_command_that_uses_it(
    command: list[str], app: Penstock, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that took it for the default would migrate a store that others still use."""
    run_sync(app.queues.list())
    program = "import penstock\napp = penstock.Penstock('memory://')\napp.task('t', lambda: None)\n"
    (tmp_path / "misconfigured.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_MIGRATE", "manuel")
    assert "PENSTOCK_MIGRATE" in shell.error(*command, code=2)
    monkeypatch.delenv("PENSTOCK_MIGRATE")
    (tmp_path / "penstock.toml").write_text('migarte = "manual"\n')
    assert "there is no setting 'migarte'" in shell.error(*command, code=2)


def test_settings_that_a_command_does_not_use_do_not_matter(
    app: Penstock, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes sets this variable for a Service named penstock."""
    run_sync(app.queues.list())
    monkeypatch.setenv("PENSTOCK_PORT", "tcp://10.0.0.1:8000")
    assert shell.json("status")


def test_default_store_lies_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no store at penstock.db" in Shell("").error("status", code=5)


def test_store_of_a_server_in_the_current_folder_is_pointed_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = Penstock(store_url(Server()))  # as the server makes it
    run_sync(app.queues.list())
    run_sync(app.close())
    advised = Shell("").error("token", "list", code=5).partition("try: ")[2]
    option, url = advised.partition(", ")[0].split()
    assert Shell("").json("token", "list", option, url) == {"tokens": []}


def test_option_wins_over_environment(app: Penstock, url: str) -> None:
    elsewhere = Shell("sqlite:///nowhere.db")
    assert elsewhere.json("status", "--store", url)["store"] == url


def test_foreign_database_gets_no_tables(tmp_path: Path, shell: Shell) -> None:
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        connection.execute("CREATE TABLE mine (x)")
    assert "a file without a store in it" in shell.error("status", code=5)
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("mine",)]


def test_file_that_is_no_database_is_refused(tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "jobs.db").write_text("nothing like a database " * 100)
    assert "not a SQLite file" in shell.error("status", code=5)


def test_folder_is_refused(tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "jobs.db").mkdir()
    assert "cannot be used" in shell.error("status", code=5)


@pytest.mark.parametrize(
    "url", ["memory://", "redis://localhost", "sqlite://host/x", "jobs.db", "localhost:8000"]
)
def test_url_that_cannot_be_is_refused(url: str) -> None:
    said = Shell(url).error("status", code=2)
    assert said.startswith("penstock: ")
    assert said.endswith(
        "try: a URL such as sqlite:///FILE, journal:///FOLDER, postgresql://HOST/DATABASE or "
        "http://HOST:PORT"
    )


def test_suggestions_name_the_same_store(app: Penstock, url: str) -> None:
    elsewhere = Shell("sqlite:///nowhere.db")
    line = elsewhere.error("explain", "9", "--store", url, code=3)
    assert line.endswith(f"try: penstock jobs --store {url}")


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "1e400", "soon"])
def test_seconds_are_a_reasonable_number(seconds: str, app: Penstock, shell: Shell) -> None:
    assert f"'{seconds}' is not a number of seconds" in shell.error(
        "drain", f"--timeout={seconds}", code=2
    )
