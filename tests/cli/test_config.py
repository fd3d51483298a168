"""`penstock config`: every setting with its source, and what is wrong with which."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.support import Shell


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_each_setting_has_its_source(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("penstock.toml").write_text("port = 81\nworkers = 2\n[events]\nlease = 60\n")
    monkeypatch.setenv("PENSTOCK_WORKERS", "3")
    monkeypatch.setenv("PENSTOCK_EVENTS_RETRY_DELAY", "1.5")
    monkeypatch.setenv("PENSTOCK_REQUEST_LOG", "true")
    found = shell.json("config", "--port", "82")
    assert found["port"] == {"value": 82, "source": "command line"}
    assert found["workers"] == {"value": 3, "source": "PENSTOCK_WORKERS"}
    assert found["host"] == {"value": "127.0.0.1", "source": "default"}
    assert found["request_log"] == {"value": True, "source": "PENSTOCK_REQUEST_LOG"}
    assert found["events.lease"] == {"value": 60, "source": "penstock.toml"}
    assert found["events.retry_delay"]["value"] == 1.5


def test_setting_may_have_names_that_other_programs_gave_it(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_BRAIN_MAX_QUEUE", "7")
    found = shell.json("config")
    assert found["indexing.max_queue"] == {"value": 7, "source": "AGENT_BRAIN_MAX_QUEUE"}
    monkeypatch.setenv("PENSTOCK_INDEXING_MAX_QUEUE", "8")
    found = shell.json("config")
    assert found["indexing.max_queue"] == {"value": 8, "source": "PENSTOCK_INDEXING_MAX_QUEUE"}


def test_it_is_a_table(shell: Shell) -> None:
    title, *lines = shell("config", "--apps", "events").stdout.splitlines()
    assert title.split() == ["setting", "value", "from"]
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert rows["port"] == ["8000", "default"]
    assert rows["apps"] == ["events", "command", "line"]
    assert rows["events.retry_delay"] == ["300", "default"]


def test_passwords_are_not_shown(shell: Shell) -> None:
    for options in ((), ("--json",)):
        shown = shell("config", "--store", "postgresql://me:hidden@host/jobs", *options).stdout
        assert "postgresql://me:***@host/jobs" in shown
        assert "hidden" not in shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port = 'x'", "port (from penstock.toml) is 'x': must be an integer from 0 to 65,535"),
        ("prot = 1", "penstock.toml: there is no setting 'prot'; choose from apps, "),
        ("[evnts]\nlease = 1", "penstock.toml: there is no section [evnts]; choose from entries"),
        ("[events]\nlaese = 1", "penstock.toml in [events]: there is no setting 'laese'"),
        (
            "[events]\nlease = 0",
            "events.lease (from penstock.toml) is 0: must be a number from 0.1",
        ),
        ("events = 3", "penstock.toml: there is no setting 'events'"),
        ("port = ", "penstock.toml cannot be read: "),
    ],
)
def test_wrong_values_name_their_source(text: str, message: str, shell: Shell) -> None:
    Path("penstock.toml").write_text(text)
    assert message in shell.error("config", code=2)


@pytest.mark.parametrize(
    ("options", "notebooks", "note"),
    [
        ((), "completed_event_retention = 86401", "--keep-finished 86401"),
        ((), "failed_event_retention = 604801", "--keep-failed 604801"),
        (("--keep-failed", "60"), "failed_event_retention = 61", "--keep-failed 61"),
    ],
)
def test_application_cannot_keep_jobs_longer_than_the_server(
    options: tuple[str, ...], notebooks: str, note: str, shell: Shell
) -> None:
    Path("penstock.toml").write_text(f"[notebooks]\n{notebooks}")
    message = shell.error("config", *options, code=2)
    assert "the server removes them after" in message
    assert note in message


def test_retention_can_be_set_in_every_way(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("penstock.toml").write_text(
        "keep_finished = 200\n[notebooks]\ncompleted_event_retention = 100"
    )
    monkeypatch.setenv("PENSTOCK_KEEP_FAILED", "300")
    monkeypatch.setenv("PENSTOCK_NOTEBOOKS_FAILED_EVENT_RETENTION", "250")
    options = ("--apps", "notebooks", "--keep-finished", "400")
    found = shell.json("config", *options)
    assert found["keep_finished"] == {"value": 400, "source": "command line"}
    assert found["keep_failed"] == {"value": 300, "source": "PENSTOCK_KEEP_FAILED"}
    own = "notebooks.completed_event_retention"
    assert found[own] == {"value": 100, "source": "penstock.toml"}
    assert found["notebooks.failed_event_retention"]["value"] == 250


def test_wrong_variable_is_named(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_EVENTS_LEASE", "soon")
    assert "events.lease (from PENSTOCK_EVENTS_LEASE)" in shell.error("config", code=2)


def test_unknown_variable_is_named_with_the_one_that_was_meant(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_PROT", "81")
    monkeypatch.setenv("PENSTOCK_ZZZ", "1")
    for known in ("PENSTOCK_TOKEN", "PENSTOCK_PROJECT_ROOT", "PENSTOCK_INGEST_WORKERS"):
        monkeypatch.setenv(known, "2")
    assert shell("config", "--apps", "events").stderr.splitlines() == [
        "penstock: PENSTOCK_PROT is not a setting and is ignored; did you mean PENSTOCK_PORT?",
        "penstock: PENSTOCK_ZZZ is not a setting and is ignored",
    ]


def test_it_works_without_the_server(tmp_path: Path) -> None:
    absent = "sys.modules.update(dict.fromkeys(['fastapi', 'starlette', 'uvicorn', 'uvloop']))"
    program = f"import sys; {absent}; from penstock.cli.main import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", program, "config"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "events.retry_delay" in ran.stdout
