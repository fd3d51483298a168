from pathlib import Path

import pytest

from penstock import Penstock, run_sync
from penstock.leases import Done, Failed
from tests.cli.support import ONCE, Shell, enqueue, on_terminal, run_one, states


@pytest.mark.parametrize("command", [["cancel"], ["retry"], ["delete"], ["prioritise", "9"]])
def test_some_filter_is_needed(app: Penstock, shell: Shell, command: list[str]) -> None:
    enqueue(app)
    assert "add a filter" in shell.error(*command, "--yes", code=2)
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
        assert "is not a duration" in shell.error("cancel", "--older-than", wrong, code=2)


def test_ids_and_filters_do_not_go_together(app: Penstock, shell: Shell) -> None:
    enqueue(app)
    assert "IDs cannot be combined with filters" in shell.error(
        "cancel", "1", "--state", "pending", code=2
    )
    assert "IDs cannot be combined with filters" in shell.error("retry", "1", "--dry-run", code=2)


def test_states_that_a_command_is_not_about_are_refused(app: Penstock, shell: Shell) -> None:
    enqueue(app)
    assert "not to failed" in shell.error("cancel", "--state", "failed", "--yes", code=2)
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
