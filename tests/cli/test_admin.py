import gzip
import json
import os
import pty
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import click
import pytest

from penstock import Done, Failed, JobQuery, Penstock, RetryPolicy, run_sync
from tests.cli.support import COMMAND, SOON, Shell, read_all, run_one

ONCE = RetryPolicy(attempts=1)


def enqueue(app: Penstock, n: int = 1, **options: object) -> None:
    for _ in range(n):
        run_sync(app.enqueue("greet", {"name": "Ada"}, **options))  # type: ignore[arg-type] # options as data


def states(app: Penstock) -> list[str]:
    return [job.state.value for job in run_sync(app.find(JobQuery(newest_first=False)))]


@pytest.mark.parametrize("command", [["cancel"], ["retry"], ["delete"], ["prioritise", "9"]])
def test_some_filter_is_needed(app: Penstock, shell: Shell, command: list[str]) -> None:
    enqueue(app)
    assert "name a filter" in shell.error(*command, "--yes", code=2)
    assert states(app) == ["pending"]


@pytest.mark.parametrize("command", [["cancel"], ["prioritise", "9"]])
def test_without_a_terminal_it_counts_and_refuses(
    app: Penstock, shell: Shell, command: list[str]
) -> None:
    enqueue(app, 3)
    error = shell.error(*command, "--state", "pending", code=2)
    assert f"would {command[0]} 3 jobs" in error
    assert "--yes" in error
    assert states(app) == ["pending"] * 3


def test_dry_run_only_counts(app: Penstock, shell: Shell) -> None:
    enqueue(app, 3)
    assert shell("cancel", "--queue", "default", "--dry-run").stdout == "Would cancel 3 jobs.\n"
    assert shell.json("cancel", "--queue", "default", "--dry-run") == {
        "matched": 3,
        "changed": 0,
        "skipped": 0,
        "dry_run": True,
    }
    assert states(app) == ["pending"] * 3


def test_cancel_by_filter(app: Penstock, shell: Shell) -> None:
    enqueue(app, 2, queue="mail", tags=["x"], key="k", correlation="c", tenant="t", parent=1)
    enqueue(app)
    wrong = shell("cancel", "--queue", "mail", "--tag", "y", "--yes")
    assert wrong.stdout == "Cancelled 0 jobs.\n"
    filters = "--queue mail --task greet --tag x --key k --correlation c --tenant t --parent 1"
    command = ["cancel", *filters.split(), "--older-than", "0s", "--yes", "--reason", "enough"]
    assert shell(*command).stdout == "Cancelled 2 jobs.\n"
    assert states(app) == ["cancelled", "cancelled", "pending"]
    entry = run_sync(app.log(1))[-1]
    assert entry.reason == "enough"
    assert "@" in entry.actor


def test_retry_by_error(app: Penstock, shell: Shell) -> None:
    enqueue(app, 2, retry=ONCE)
    run_one(app, Failed("KeyError: 'x'"))
    run_one(app, Failed("ValueError"))
    assert shell("retry", "--error", "KeyError", "--yes").stdout == "Retried 1 job.\n"
    assert states(app) == ["pending", "failed"]


def test_age(app: Penstock, shell: Shell) -> None:
    enqueue(app)
    for age in ("1h", "90", "2m", "3min", "1.5d", "1w"):
        found = shell.json("cancel", "--older-than", age, "--dry-run")
        assert found["matched"] == 0
        assert shell.json("cancel", "--since", age, "--dry-run")["matched"] == 1
    assert shell.json("cancel", "--older-than", "0s", "--dry-run")["matched"] == 1
    assert shell.json("cancel", "--since", "0s", "--dry-run")["matched"] == 0
    for wrong in ("soon", "-1h", "1y", "9" * 30 + "d"):
        assert "is not a time" in shell.error("cancel", "--older-than", wrong, code=2)


def test_ids_and_filters_do_not_go_together(app: Penstock, shell: Shell) -> None:
    enqueue(app)
    assert "or the IDs" in shell.error("cancel", "1", "--state", "pending", code=2)
    assert "or the IDs" in shell.error("retry", "1", "--dry-run", code=2)


def test_states_that_a_command_is_not_about_are_refused(app: Penstock, shell: Shell) -> None:
    enqueue(app)
    assert "not failed" in shell.error("cancel", "--state", "failed", "--yes", code=2)
    assert "cancel unfinished" in shell.error("delete", "--state", "pending", "--yes", code=2)


def test_delete_and_prioritise(app: Penstock, shell: Shell, tmp_path: Path) -> None:
    enqueue(app, 3)
    run_one(app, Done())
    archive = tmp_path / "old.jsonl"
    command = ("delete", "--task", "greet", "--yes", "--archive", str(archive))
    assert shell(*command).stdout == "Deleted 1 job.\n"
    assert len(archive.read_text().splitlines()) == 2
    assert shell("prioritise", "9", "--task", "greet", "--yes").stdout == "Prioritised 2 jobs.\n"
    assert shell("prioritise", "9", "--task", "greet", "--yes").stdout.startswith(
        "Prioritised 0 jobs; 2 "
    )
    assert [job.priority for job in run_sync(app.find())] == [9, 9]


def test_prune(app: Penstock, shell: Shell, tmp_path: Path) -> None:
    enqueue(app, 3, retry=ONCE)
    run_one(app, Done())
    run_one(app, Failed("no"))
    archive = tmp_path / "old.jsonl.gz"
    assert shell("prune").stdout == "Removed 0 jobs.\n"
    assert shell("prune", "--older-than", "0s", "--dry-run").stdout == "Would remove 2 jobs.\n"
    assert shell.json("prune", "--older-than", "0s", "--state", "failed")["changed"] == 1
    command = ("prune", "--older-than", "0s", "--archive", str(archive))
    assert shell(*command).stdout == "Removed 1 job.\n"
    assert states(app) == ["pending"]
    header, job = gzip.decompress(archive.read_bytes()).splitlines()
    assert json.loads(header)["kind"] == "archive"
    assert json.loads(job)["job"]["id"] == 1


def test_export_and_import_into_a_store_that_is_made_for_it(
    app: Penstock, shell: Shell, tmp_path: Path
) -> None:
    enqueue(app, 2, queue="mail")
    enqueue(app, 1)
    file, new = str(tmp_path / "jobs.jsonl.gz"), f"sqlite:///{tmp_path}/new.db"
    assert shell("export", file, "--queue", "mail").stdout == "Exported 2 jobs.\n"
    assert "there already" in shell.error("export", file, code=2)
    assert shell("import", file, "--dry-run", "--store", new).stdout == "There are 2 jobs.\n"
    assert not (tmp_path / "new.db").exists()
    assert shell("import", file, "--store", new).stdout == "Imported 2 jobs.\n"
    again = shell.json("import", file, "--store", new)
    assert (again["changed"], again["skipped"]) == (0, 2)
    assert shell("import", file).stdout.startswith("Imported 0 jobs; 2 were imported before")


def test_import_of_something_else(app: Penstock, shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hello\n")
    assert "not a file with jobs" in shell.error("import", str(tmp_path / "x"), code=2)
    missing = shell.error("import", str(tmp_path / "y"), code=2)
    assert missing.endswith(
        "No such file or directory; name an export or an archive that may be read"
    )
    other = Penstock("memory://")
    run_sync(other.export(tmp_path / "jobs.jsonl"))
    command = ("import", str(tmp_path / "jobs.jsonl"), "--store", "memory://")
    assert "lives inside" in shell.error(*command, code=2)


def on_terminal(arguments: list[str], typed: str = "", columns: int = 80) -> str:
    """What a command prints on a terminal."""
    main, terminal = pty.openpty()
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": str(columns), "TERM": "xterm"}
    os.write(main, typed.encode())
    subprocess.run(
        [*COMMAND, *arguments],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment,
        check=True,
        timeout=SOON,
    )
    os.close(terminal)
    printed = read_all(main).decode().replace("\r\n", "\n")
    return click.unstyle(printed)


def test_person_is_asked(app: Penstock, url: str) -> None:
    enqueue(app, 2)
    command = ["cancel", "--state", "pending", "--store", url]
    printed = on_terminal(command, "n\n")
    assert "Cancel 2 jobs? [y/N]" in printed
    assert "Nothing was changed" in printed
    assert states(app) == ["pending"] * 2
    assert "Cancelled 2 jobs." in on_terminal(command, "y\n")
    assert states(app) == ["cancelled"] * 2


def test_person_sees_the_progress_of_long_work(app: Penstock, url: str) -> None:
    run_sync(app.enqueue_many([app.tasks["greet"].of({"name": "Ada"})] * 700))
    printed = on_terminal(["cancel", "--state", "pending", "--store", url, "--yes"])
    assert "300 of 700" in printed
    assert printed.endswith("700 of 700\nCancelled 700 jobs.\n")


# Small things


def test_python_m_penstock_is_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "--version"]
    ran = subprocess.run(command, capture_output=True, check=True, timeout=SOON, text=True)
    assert ran.stdout.startswith("penstock ")


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("tasks.py", "tasks:app"),
        ("tasks", "tasks:app"),
        ("tasks.py:queue", "tasks:queue"),
        ("my/tasks.py:app", "my.tasks:app"),
        (":app", "tasks:app"),
    ],
)
def test_worker_of_a_file_gets_a_hint(shell: Shell, target: str, hint: str) -> None:
    assert shell.error("worker", target, code=2).endswith(f"try: penstock worker {hint}")


def test_narrow_terminal_shows_what_a_job_waits_for_in_a_word(app: Penstock, url: str) -> None:
    enqueue(app, delay=timedelta(hours=1))
    enqueue(app)
    run_sync(app.claim(worker="w"))
    run_sync(app.cancel(2))
    narrow = on_terminal(["jobs", "--store", url])
    assert [line.split()[2] for line in narrow.splitlines()[1:]] == ["stopping", "scheduled"]
    assert "pending (scheduled)" in on_terminal(["jobs", "--store", url], columns=120)


def test_long_text_wraps_at_words_and_keeps_its_indentation(app: Penstock, url: str) -> None:
    enqueue(app, retry=ONCE, key=" ".join(["key"] * 30))
    run_one(app, Failed("Traceback:\n    " + " ".join(["word"] * 40)))
    printed = on_terminal(["jobs", "1", "--store", url])
    page = printed.partition("\nLog\n")[0].splitlines()
    assert all(len(line) <= 80 for line in page)
    assert "            key key key" in printed
    assert "\n      word word" in printed
    assert "\n        word word" in printed
    assert "wo\n" not in printed
