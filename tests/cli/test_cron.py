import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from penstock import Penstock, run_sync
from tests.cli.support import Shell


@pytest.fixture
def app(url: str) -> Iterator[Penstock]:
    """A program with three schedules, which a worker has stored."""
    app = Penstock(url)

    @app.task(cron="0 4 * * *", timezone="Europe/Berlin")
    def nightly() -> None:
        pass

    @app.task(queue="reports")
    def report(region: str) -> None:
        pass

    run_sync(app.schedules.register())
    run_sync(app.schedules.put("eu", report.new("eu"), every=timedelta(hours=2), overlap=False))
    run_sync(app.schedules.put("us", report.new("us"), cron="*/5 * * * *", missed="all"))
    run_sync(app.schedules.pause("us"))
    yield app
    run_sync(app.close())


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize("command", [["cron", "list"], ["cron"]])
def test_list_shows_rhythm_and_next_run(shell: Shell, command: list[str]) -> None:
    head, *rows = shell(*command).stdout.splitlines()
    assert head.split() == ["name", "next", "task", "when", "timezone"]
    eu, nightly, us = (row.split() for row in rows)
    assert eu == ["eu", "in", "120", "min", "report", "Every", "2", "hours"]
    assert (nightly[0], nightly[-1]) == ("nightly", "Europe/Berlin")
    assert " ".join(nightly[-5:-1]) == "At 04:00 every day"
    assert us[:2] == ["us", "paused"]


def test_list_as_json_has_every_field(app: Penstock, shell: Shell) -> None:
    eu, nightly, us = shell.json("cron", "list")["schedules"]
    [stored] = [
        schedule for schedule in run_sync(app.schedules.list()) if schedule.name == "nightly"
    ]
    assert stored.next is not None
    assert nightly == {
        "name": "nightly",
        "task": "nightly",
        "spec": "At 04:00 every day",
        "cron": "0 4 * * *",
        "every": None,
        "timezone": "Europe/Berlin",
        "missed": "once",
        "overlap": True,
        "declared": True,
        "paused": False,
        "next": f"{stored.next:%Y-%m-%dT%H:%M:%S.%f}Z",
        "last": None,
        "last_job": None,
    }
    assert (eu["every"], eu["cron"], eu["overlap"], eu["declared"]) == (7200, None, False, False)
    assert (us["paused"], us["missed"]) == (True, "all")
    assert shell.json("cron") == shell.json("cron", "list")


def test_list_of_nothing_says_so(url: str, shell: Shell) -> None:
    empty = Penstock(url)
    _ = empty.store
    run_sync(empty.close())
    assert "There are no schedules" in shell("cron", "list").stdout
    assert shell.json("cron", "list") == {"schedules": []}


def test_run_enqueues_at_once_and_leaves_the_rhythm(app: Penstock, shell: Shell) -> None:
    before = run_sync(app.schedules.list())
    printed = shell("cron", "run", "eu").stdout
    [job] = run_sync(app.find())
    assert printed == f"Enqueued job {job.id}; to see it: penstock jobs {job.id}\n"
    assert (job.task, job.args, job.queue) == ("report", {"region": "eu"}, "reports")
    assert job.run_at <= datetime.now(UTC)
    assert run_sync(app.schedules.list()) == before
    assert shell("cron", "run", "eu").stdout == (
        f"Job {job.id} of this schedule is already pending.\n"
    )
    assert shell.json("cron", "run", "us")["args"] == {"region": "us"}


def test_pause_and_resume(app: Penstock, shell: Shell) -> None:
    assert shell("cron", "pause", "eu").stdout == (
        "Schedule eu is paused; to resume it: penstock cron resume eu\n"
    )
    assert shell.json("cron", "pause", "eu")["paused"] is True
    assert shell("cron", "resume", "eu").stdout.startswith(
        "Schedule eu is resumed; its next run is in 120 min, at "
    )
    assert shell.json("cron", "resume", "us")["paused"] is False
    assert not any(schedule.paused for schedule in run_sync(app.schedules.list()))


def test_remove(app: Penstock, shell: Shell) -> None:
    assert shell("cron", "remove", "eu").stdout == "Removed schedule eu.\n"
    assert shell.json("cron", "remove", "us") == {"name": "us", "removed": True}
    assert [schedule.name for schedule in run_sync(app.schedules.list())] == ["nightly"]


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize("command", ["run", "pause", "resume", "remove"])
def test_unknown_schedule_is_code_3(shell: Shell, command: str) -> None:
    line = shell.error("cron", command, "nope", code=3)
    assert line == "penstock: there is no schedule 'nope'; try: penstock cron list"
    error = json.loads(shell.error("cron", command, "nope", "--json", code=3))
    assert error["type"] == "ScheduleNotFound"


@pytest.mark.usefixtures("app")
def test_suggestions_name_the_store_that_was_given(shell: Shell) -> None:
    printed = shell("cron", "pause", "eu", "--store", shell.url).stdout
    assert printed.endswith(f"penstock cron resume eu --store {shell.url}\n")


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize("option", [["--json"], ["--store", "sqlite:///another.db"]])
def test_option_before_the_command_is_refused(shell: Shell, option: list[str]) -> None:
    result = shell("cron", *option, "pause", "eu", code=2)
    assert "go after the command" in result.stderr
