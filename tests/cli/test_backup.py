"""`penstock backup`, `restore` and `verify`, as people and scripts use them."""

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from penstock import Penstock, run_sync
from penstock.cli import backup
from penstock.cli.backup import PhaseMeter
from penstock.leases import Done
from tests.cli.support import Shell, enqueue, on_terminal, run_one, states


def test_a_backup_is_written_and_restored(
    app: Penstock, shell: Shell, url: str, tmp_path: Path
) -> None:
    enqueue(app, 3)
    run_one(app, Done())
    copy = tmp_path / "jobs.bak"
    done = shell("backup", str(copy))
    assert done.stdout == f"Backed up 3 jobs to {copy} ({copy.stat().st_size:,} bytes).\n"
    there = f"sqlite:///{tmp_path}/there.db"
    restored = shell("restore", str(copy), "--store", there)
    assert restored.stdout.startswith(f"Restored {there} as of ")
    assert "Ids continue above " in restored.stdout
    assert "running" not in restored.stdout
    other = Penstock(there)
    assert states(other) == ["done", "pending", "pending"]
    run_sync(other.close())


def test_json(app: Penstock, shell: Shell, tmp_path: Path) -> None:
    enqueue(app, 2)
    (held,) = run_sync(app.leases.claim(worker="w"))
    copy = tmp_path / "jobs.bak"
    made = shell.json("backup", str(copy))
    assert (made["path"], made["jobs"], made["last_log"]) == (str(copy), 2, 3)
    there = f"sqlite:///{tmp_path}/there.db"
    done = shell.json("restore", str(copy), "--store", there)
    assert done["running"] == [held.id]
    assert (done["last_log"], done["replaced"], done["taken_at"]) == (3, None, made["taken_at"])
    assert done["floor"] > 2**40


def test_running_jobs_are_named(app: Penstock, shell: Shell, tmp_path: Path) -> None:
    enqueue(app, 30)
    run_sync(app.leases.claim(worker="w", limit=25))
    copy = tmp_path / "jobs.bak"
    shell("backup", str(copy))
    restored = shell("restore", str(copy), "--store", f"sqlite:///{tmp_path}/there.db")
    assert "25 jobs were running then and are back in their queues: 1, 2, 3" in restored.stdout
    assert restored.stdout.rstrip().endswith("20 and 5 more")


def test_replacing_asks_first(app: Penstock, shell: Shell, url: str, tmp_path: Path) -> None:
    enqueue(app)
    copy = tmp_path / "jobs.bak"
    shell("backup", str(copy))
    enqueue(app, 2)
    assert "--replace" in shell.error("restore", str(copy), code=2)
    assert "add --yes" in shell.error("restore", str(copy), "--replace", code=2)
    refused = on_terminal(["restore", str(copy), "--replace", "--store", url], "n\n")
    assert f"Replace everything in {url}?" in refused
    assert states(app) == ["pending"] * 3
    shell("restore", str(copy), "--replace", "--yes")
    assert states(app) == ["pending"]


def test_in_place(app: Penstock, shell: Shell) -> None:
    enqueue(app)
    run_sync(app.leases.claim(worker="w"))
    assert "add --yes" in shell.error("restore", "--in-place", code=2)
    done = shell.json("restore", "--in-place", "--yes")
    assert (done["running"], done["taken_at"]) == ([1], None)
    again = shell.json("restore", "--in-place", "--yes", "--above", str(2**50))
    assert again["floor"] > 2**50 > done["floor"]


def test_what_does_not_fit_together_is_refused(shell: Shell) -> None:
    assert "either a BACKUP or --in-place" in shell.error("restore", code=2)
    assert "either a BACKUP or" in shell.error("restore", "x.bak", "--in-place", code=2)
    assert "--replace needs" in shell.error("restore", "--in-place", "--replace", code=2)
    assert "--above" in shell.error("restore", "x", "--above", str(2**53), code=2)


def test_errors(app: Penstock, shell: Shell, tmp_path: Path) -> None:
    enqueue(app)
    copy = tmp_path / "jobs.bak"
    shell("backup", str(copy))
    assert "already exists" in shell.error("backup", str(copy), code=2)
    assert "is not a folder" in shell.error("backup", str(tmp_path / "no" / "x"), code=2)
    there = ("--store", f"sqlite:///{tmp_path}/there.db")
    assert "cannot be read" in shell.error("restore", str(tmp_path / "none"), *there, code=2)
    (tmp_path / "text").write_text("not a backup " * 100)
    assert "not a SQLite file" in shell.error("restore", str(tmp_path / "text"), *there, code=5)
    assert "there is no store" in shell.error("backup", str(tmp_path / "x"), *there, code=5)
    assert "is a backup" in shell.error("jobs", "--store", f"sqlite:///{copy}", code=5)


def test_a_server_and_postgresql_name_the_way(shell: Shell, tmp_path: Path) -> None:
    for arguments in (("backup", "x"), ("restore", "x"), ("restore", "--in-place", "--yes")):
        error = shell.error(*arguments, "--url", "http://127.0.0.1:1", code=2)
        assert f"penstock {arguments[0]}" in error
    there = ("--store", "postgresql://nobody:secret@127.0.0.1:1/x")
    for arguments in (("backup", "x"), ("restore", os.devnull)):
        error = shell.error(*arguments, *there, code=2)
        assert "pg_dump" in error
        assert "secret" not in error


def test_a_journal_is_backed_up_while_its_process_has_it(tmp_path: Path) -> None:
    url = f"journal:///{tmp_path}/journal"
    app = Penstock(url)
    app.task("greet", lambda name: name)
    enqueue(app, 4)
    shell = Shell(url)
    assert "Backed up 4 jobs" in shell("backup", str(tmp_path / "j.bak")).stdout
    error = shell.error("restore", str(tmp_path / "j.bak"), "--replace", "--yes", code=5)
    assert "in use by process" in error
    run_sync(app.close())
    done = json.loads(
        shell("restore", str(tmp_path / "j.bak"), "--replace", "--yes", "--json").stdout
    )
    assert Path(done["replaced"]).is_dir()
    assert states(app) == ["pending"] * 4
    run_sync(app.close())


def test_progress_is_shown(
    app: Penstock,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    enqueue(app, 10)
    seen = on_terminal(["backup", str(tmp_path / "jobs.bak"), "--store", url])
    assert "copying 100 %" in seen
    assert "checking 100 %" in seen
    monkeypatch.setattr(backup, "_EVERY", 0.0)
    with PhaseMeter() as meter:
        meter.show("copying", 1, 4)
    assert capsys.readouterr().err == "copying 25 %\n"


# verify


def damage(tmp_path: Path, statement: str) -> None:
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection, connection:
        connection.execute(statement)


def test_a_sound_store(app: Penstock, shell: Shell) -> None:
    enqueue(app, 3)
    assert shell("verify").stdout == "Read 3 jobs and 3 log entries: all promises hold.\n"
    found = shell.json("verify")
    expected = {"jobs": 3, "entries": 3, "found": {}, "problems": [], "repaired": False}
    assert found == expected
    assert shell.json("verify", "--repair") == expected  # there is nothing to ask for


def test_problems_set_the_exit_code(app: Penstock, shell: Shell, tmp_path: Path) -> None:
    enqueue(app, 2)
    damage(tmp_path, "UPDATE penstock_total SET n = 7")
    damage(tmp_path, "UPDATE penstock_job SET token = 99 WHERE id = 1")
    found = shell("verify", code=8)
    assert found.stdout == (
        "token: job 1 has token 99, but its last claim has 0\n"
        "total: queue 'default' has 2 jobs that are pending (ready), but counts 7\n"
        "Read 2 jobs and 2 log entries: 2 problems.\n"
    )
    assert found.stderr == "Some can be repaired: penstock verify --repair\n"
    told = shell.json("verify", code=8)
    assert told["found"] == {"token": 1, "total": 1}
    assert told["problems"][0]["job_id"] == 1


def test_a_repair_explains_and_asks(app: Penstock, shell: Shell, url: str, tmp_path: Path) -> None:
    enqueue(app, 2)
    damage(tmp_path, "UPDATE penstock_total SET n = 7")
    damage(tmp_path, "UPDATE penstock_job SET token = 99 WHERE id = 1")
    refused = shell("verify", "--repair", code=2)
    assert "1 problems (total): count the jobs of all queues again" in refused.stderr
    assert "1 problems (token): cannot be repaired" in refused.stderr
    assert "add --yes" in refused.stderr
    seen = on_terminal(["verify", "--repair", "--store", url], "n\n", code=8)
    assert "Repair in one transaction, while writers wait?" in seen
    assert "Nothing was changed." in seen
    assert "total" in shell("verify", code=8).stdout
    done = shell("verify", "--repair", "--yes", code=8)
    assert done.stdout.endswith("1 problem left after the repair.\n")
    damage(tmp_path, "UPDATE penstock_job SET token = 0 WHERE id = 1")
    damage(tmp_path, "UPDATE penstock_total SET n = 7")
    done = shell("verify", "--repair", "--yes")
    assert done.stdout.endswith("all promises hold after the repair.\n")
    assert states(app) == ["pending", "pending"]


def test_a_server_does_not_verify(shell: Shell) -> None:
    error = shell.error("verify", "--url", "http://127.0.0.1:1", code=2)
    assert "penstock verify" in error


def test_a_journal_is_verified(tmp_path: Path) -> None:
    url = f"journal:///{tmp_path}/journal"
    app = Penstock(url)
    app.task("greet", lambda name: name)
    enqueue(app, 2)
    run_sync(app.close())
    assert "2 jobs and 2 log entries: all promises hold" in Shell(url)("verify").stdout
