import json
from datetime import timedelta

import pytest

from penstock import NewJob, Penstock, run_sync
from penstock.errors import TooManyQueues
from penstock.leases import Done
from tests.cli.support import Shell, run_one

MINUTE = timedelta(minutes=1)


def fill(app: Penstock) -> None:
    """In `mail` one job that is done, one running, one ready, one scheduled, one blocked."""
    greet = app.tasks["greet"].using(queue="mail")
    for _ in range(2):
        run_sync(greet.enqueue("Ada"))
    run_one(app, Done())
    run_sync(app.leases.claim(worker="w"))
    for _ in range(2):
        run_sync(greet.using(key="k").enqueue("Ada"))
    run_sync(greet.using(delay=timedelta(hours=1)).enqueue("Ada"))


def test_status_counts_by_state_and_reason(app: Penstock, shell: Shell) -> None:
    fill(app)
    head, row, workers = shell("status").stdout.splitlines()
    assert dict(zip(head.split(), row.split(), strict=True)) == {
        "queue": "mail",
        "pending": "3",
        "ready": "1",
        "scheduled": "1",
        "blocked": "1",
        "running": "1",
        "done": "1",
        "failed": "·",
    }
    assert workers == "1 worker is alive."


def test_status_as_json_has_every_count(app: Penstock, shell: Shell) -> None:
    fill(app)
    run_sync(
        app.limits.queue("mail", 9, rate=(100, timedelta(seconds=1.5)), promote_after=10 * MINUTE)
    )
    run_sync(app.limits.task("greet", 3))
    run_sync(app.limits.throttle("customer-", 2))
    assert shell.json("status") == {
        "store": shell.url,
        "queues": [
            {
                "name": "mail",
                "paused": False,
                "paused_until": None,
                "max_pending": 9,
                "concurrency": None,
                "rate": [100, 1.5],
                "promote_after": 600.0,
                "states": {
                    "pending": 3,
                    "running": 1,
                    "done": 1,
                    "failed": 0,
                    "cancelled": 0,
                    "superseded": 0,
                },
                "waiting": {"ready": 1, "scheduled": 1, "blocked": 1},
            }
        ],
        "limits": [
            {"kind": "task", "name": "greet", "concurrency": 3},
            {"kind": "throttle", "name": "customer-", "concurrency": 2},
        ],
        "workers": {"alive": 1, "silent": 0},
        "seal": None,
    }


def test_status_shows_pauses_and_limits(app: Penstock, shell: Shell) -> None:
    run_sync(app.queues.pause("mail"))
    run_sync(app.limits.queue("mail", 1000))
    _, row, _ = shell("status").stdout.splitlines()
    assert row.split()[:3] == ["mail", "paused", "1,000"]


def test_status_shows_limits_of_what_runs(app: Penstock, shell: Shell) -> None:
    limits = {"concurrency": 5, "rate": (100, MINUTE), "promote_after": 10 * MINUTE}
    run_sync(app.limits.queue("mail", **limits))  # type: ignore[arg-type] # options as data
    run_sync(app.limits.task("greet", 3))
    run_sync(app.limits.throttle("customer-", 2))
    titles, row, *limits_of_others, _ = shell("status").stdout.splitlines()
    assert "at once" in titles
    assert "limit" not in titles
    assert row.startswith("mail         5  100 in 60 s          10 min")
    assert limits_of_others == [
        "At most 3 jobs of task greet run at a time.",
        "At most 2 jobs of throttle customer-… run at a time.",
    ]


def test_status_of_an_unused_store(app: Penstock, shell: Shell) -> None:
    assert shell("status").stdout == "There are no queues yet.\nNo worker is alive.\n"


def test_pause_and_resume(app: Penstock, shell: Shell) -> None:
    fill(app)
    assert shell("pause", "mail").stdout == (
        "Queue mail is paused; to resume it: penstock resume mail\n"
    )
    assert run_sync(app.leases.claim(worker="w")) == []
    assert shell.json("resume", "mail") == {
        "name": "mail",
        "paused": False,
        "paused_until": None,
        "max_pending": None,
        "concurrency": None,
        "rate": None,
        "promote_after": None,
    }
    assert len(run_sync(app.leases.claim(worker="w"))) == 1


def test_pause_for_a_time(app: Penstock, shell: Shell) -> None:
    fill(app)
    assert shell("pause", "mail", "--for", "10m").stdout == (
        "Queue mail is paused for 10 min; to resume it: penstock resume mail\n"
    )
    [queue] = run_sync(app.queues.list())
    assert queue.paused_until is not None
    _, row, _ = shell("status").stdout.splitlines()
    assert row.startswith("mail   paused for 10 min")
    assert shell.json("status")["queues"][0]["paused_until"] is not None
    assert "not a duration" in shell.error("pause", "mail", "--for", "soon", code=2)


def test_pause_of_a_queue_without_jobs_is_doubted(app: Penstock, shell: Shell) -> None:
    fill(app)
    for command in (["pause", "mai"], ["limit", "mailx", "3"]):
        assert shell(*command).stderr == (
            f"penstock: warning: no queue {command[1]!r} exists yet; did you mean 'mail'?\n"
        )
        assert shell(*command).stderr == ""
    assert run_sync(app.queues.list())[0].paused


@pytest.mark.parametrize("command", [["pause", "nope"], ["limit", "nope", "3"]])
def test_warning_in_json_is_json_on_stderr(command: list[str], app: Penstock, shell: Shell) -> None:
    result = shell(*command, "--json")
    assert json.loads(result.stdout)["name"] == "nope"
    assert json.loads(result.stderr) == {"warning": "no queue 'nope' exists yet"}


@pytest.mark.parametrize(
    "command", [["jobs"], ["cancel", "--yes"], ["retry", "--yes"], ["delete", "--yes"]]
)
def test_filter_by_an_unknown_queue_is_doubted(
    command: list[str], app: Penstock, shell: Shell
) -> None:
    fill(app)
    assert shell(*command, "--queue", "mial").stderr == (
        "penstock: warning: no queue 'mial' exists yet; did you mean 'mail'?\n"
    )
    assert shell(*command, "--queue", "mail", "--task", "none").stderr == ""


@pytest.mark.parametrize("command", ["resume", "drain"])
def test_unknown_queue_is_not_found(command: str, app: Penstock, shell: Shell) -> None:
    assert shell.error(command, "mial", code=3) == (
        "penstock: there is no queue 'mial'; try: penstock status"
    )
    assert run_sync(app.queues.list()) == []
    fill(app)
    assert shell.error(command, "mial", code=3) == (
        "penstock: there is no queue 'mial'; did you mean 'mail'? try: penstock status"
    )


def test_limit_is_set_and_lifted(app: Penstock, shell: Shell) -> None:
    fill(app)
    assert (
        shell("limit", "mail", "1000").stdout == "Queue mail accepts at most 1,000 pending jobs.\n"
    )
    assert run_sync(app.queues.list())[0].max_pending == 1000
    assert shell("limit", "mail", "none").stdout == "Queue mail has no limits.\n"
    assert run_sync(app.queues.list())[0].max_pending is None


def test_limits_of_what_runs_are_set_and_lifted(app: Penstock, shell: Shell) -> None:
    fill(app)
    given = shell("limit", "mail", "--concurrency", "5", "--rate", "100/1", "--promote-after", "60")
    assert given.stdout == (
        "Queue mail runs at most 5 jobs at a time, starts at most 100 jobs in 1 s, "
        "promotes jobs after 60 s.\n"
    )
    shell("limit", "mail", "9", "--concurrency", "none")
    [queue] = run_sync(app.queues.list())
    assert (queue.max_pending, queue.concurrency) == (9, None)
    assert (queue.rate, queue.promote_after) == ((100, timedelta(seconds=1)), MINUTE)
    shell("limit", "mail", "none", "--rate", "none", "--promote-after", "none")
    [queue] = run_sync(app.queues.list())
    assert (queue.max_pending, queue.rate, queue.promote_after) == (None, None, None)


def test_several_ages_are_set_and_shown(app: Penstock, shell: Shell) -> None:
    given = shell("limit", "mail", "--promote-after", "60,180")
    assert given.stdout.endswith("Queue mail promotes jobs after 60 s and 3 min.\n")
    assert run_sync(app.queues.list())[0].promote_after == (MINUTE, 3 * MINUTE)
    assert shell.json("status")["queues"][0]["promote_after"] == [60, 180]
    assert "60 s and 3 min" in shell("status").stdout


def test_limit_without_any_is_refused(app: Penstock, shell: Shell) -> None:
    assert "no limit is given" in shell.error("limit", "mail", code=2)


@pytest.mark.parametrize("rate", ["100", "1/", "/1", "x/1", "1/x", "-1/1", "1/-1"])
def test_rate_that_is_none_is_refused(rate: str, app: Penstock, shell: Shell) -> None:
    assert "--rate" in shell.error("limit", "mail", "--rate", rate, code=2)


@pytest.mark.parametrize("limit", ["many", "1.5", "9" * 40])
def test_limit_that_is_no_number_is_refused(limit: str, app: Penstock, shell: Shell) -> None:
    assert "neither an integer nor 'none'" in shell.error("limit", "mail", limit, code=2)


def test_queue_name_is_checked(app: Penstock, shell: Shell) -> None:
    assert "printable" in shell.error("pause", "a\nb", code=2)


def test_drain_of_nothing_is_done(app: Penstock, shell: Shell) -> None:
    assert shell("drain").stdout.startswith("Drained after ")
    drained = shell.json("drain")
    assert (drained["status"], drained["remaining"]) == ("drained", 0)
    assert isinstance(drained["elapsed"], float)


def test_drain_that_runs_out_of_time_has_its_own_code(app: Penstock, shell: Shell) -> None:
    fill(app)
    result = shell("drain", "mail", "--timeout", "0", code=6)
    assert result.stdout.startswith("Not drained: 4 jobs left after")
    assert '"status": "timeout"' in shell("drain", "--timeout", "0", "--json", code=6).stdout


def test_drain_of_a_paused_queue_ends_at_once(app: Penstock, shell: Shell) -> None:
    run_sync(app.tasks["greet"].enqueue("Ada"))
    run_sync(app.queues.pause("default"))
    result = shell("drain", code=6)
    assert "1 job left" in result.stdout
    assert "in paused queues; to list them: penstock status" in result.stdout


def test_status_shows_a_page_and_says_how_to_see_the_next(app: Penstock, shell: Shell) -> None:
    names = [f"q{n:03}" for n in range(104)]
    run_sync(app.enqueue_many([NewJob(task="t", payload="{}", queue=name) for name in names]))
    first = shell("status").stdout
    assert "q099" in first
    assert "q100" not in first
    assert "100 of 104 queues" in first
    assert "--after q099" in first
    assert "q100" in shell("status", "--after", "q099").stdout
    found = shell.json("status", "--name", "10")
    assert [queue["name"] for queue in found["queues"]] == ["q010", *names[100:]]
    assert len(shell.json("status")["queues"]) == 104
    assert len(shell.json("status", "--limit", "3")["queues"]) == 3
    assert "No queue has such a name." in shell("status", "--name", "nowhere").stdout


def test_queue_is_removed_when_asked(app: Penstock, shell: Shell) -> None:
    run_sync(app.limits.queue("mail", 5))
    assert shell("remove", "mail").stdout == "Queue mail is removed.\n"
    assert run_sync(app.queues.list()) == []
    assert "there is no queue" in shell.error("remove", "mail", code=3)


def test_number_of_queues_is_limited(app: Penstock, shell: Shell) -> None:
    assert shell("limit-queues", "1").stdout == "The store accepts at most 1 queue.\n"
    run_sync(app.tasks["greet"].enqueue("Ada"))
    with pytest.raises(TooManyQueues, match="limit of 1"):
        run_sync(app.tasks["greet"].using(queue="other").enqueue("Ada"))
    assert "at most 1 queue." in shell("status").stdout
    assert shell.json("limit-queues", "none") == {"queues": 100_000}
    run_sync(app.tasks["greet"].using(queue="other").enqueue("Ada"))
