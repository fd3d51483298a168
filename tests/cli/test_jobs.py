import asyncio
import json
from datetime import datetime, timedelta

import pytest

from penstock import Penstock, RetryPolicy, Worker, context, run_sync
from penstock.leases import Cancelled, Done, Failed
from tests.cli.support import Shell, on_terminal, run_one

ONCE = RetryPolicy(attempts=1)


def ids(document: object) -> list[int]:
    assert isinstance(document, dict)
    return [job["id"] for job in document["jobs"]]


def enqueue(app: Penstock, name: str = "Ada", **options: object) -> int:
    return run_sync(app.enqueue("greet", {"name": name}, **options)).id  # type: ignore[arg-type] # options as data


def test_list_shows_newest_first(app: Penstock, shell: Shell) -> None:
    enqueue(app)
    enqueue(app, delay=timedelta(minutes=90))
    head, newest, oldest = shell("jobs").stdout.splitlines()
    assert head.split() == ["id", "task", "state", "tries", "when"]
    assert newest.split() == ["2", "greet", "pending", "(scheduled)", "0/3", "in", "90", "min"]
    assert oldest.split()[:5] == ["1", "greet", "pending", "(ready)", "0/3"]
    assert oldest.endswith((" now", " s ago"))


def test_list_shows_queue_key_and_error_where_there_are_any(app: Penstock, shell: Shell) -> None:
    enqueue(app, queue="mail", key="a.md", retry=ONCE)
    run_one(app, Failed("Traceback:\nKeyError: 'x'"))
    head, row = shell("jobs").stdout.splitlines()
    assert head.split() == ["id", "task", "state", "tries", "when", "queue", "key", "error"]
    assert row.endswith("mail   a.md  KeyError: 'x'")


def test_empty_list_says_so(app: Penstock, shell: Shell) -> None:
    assert shell("jobs").stdout == "No jobs match.\n"
    assert shell.json("jobs") == {"jobs": [], "after": None}


def test_filters_narrow(app: Penstock, shell: Shell) -> None:
    app.task("other", lambda: None)
    done = enqueue(app)
    run_one(app, Done())
    mail = enqueue(app, queue="mail", key="k", tags=["t"])
    other = run_sync(app.enqueue("other")).id
    assert ids(shell.json("jobs", "--state", "done")) == [done]
    assert ids(shell.json("jobs", "--state", "done", "--state", "pending")) == [other, mail, done]
    for option in (("--queue", "mail"), ("--key", "k"), ("--tag", "t")):
        assert ids(shell.json("jobs", *option)) == [mail]
    assert ids(shell.json("jobs", "--task", "other")) == [other]
    assert ids(shell.json("jobs", "--task", "other", "--queue", "mail")) == []
    assert ids(shell.json("jobs", "--text", "mai")) == []
    assert ids(shell.json("jobs", "--text", "othe", "--since", "1h")) == [other]
    assert ids(shell.json("jobs", "--older-than", "1h")) == []


def test_pages_follow_each_other(app: Penstock, shell: Shell) -> None:
    for _ in range(3):
        enqueue(app)
    first = shell.json("jobs", "--limit", "2")
    assert (ids(first), first["after"]) == ([3, 2], 2)
    last = shell.json("jobs", "--limit", "2", "--after", "2")
    assert (ids(last), last["after"]) == ([1], None)
    assert shell("jobs", "--limit", "2").stdout.endswith("There are more jobs: add --after 2\n")


def test_job_in_full(app: Penstock, shell: Shell) -> None:
    enqueue(app, key="a.md", dedupe="d", tags=["x", "y"], timeout=timedelta(seconds=9), retry=ONCE)
    run_one(app, Failed("Traceback:\n  File\nKeyError: 'x'"))
    printed = shell("jobs", "1").stdout
    for text in (
        "Job 1: greet, failed",
        "It failed at",
        "queue     default, priority 5",
        "key       a.md",
        "dedupe    d (among unfinished)",
        "tags      x, y",
        "attempt   1 of 1",
        "timeout   9 s",
        '    "name": "Ada"',
        "  Traceback:\n    File\n  KeyError: 'x'",
        "attempt 1 of 1",
    ):
        assert text in printed
    log = printed.partition("\nLog\n")[2].splitlines()
    assert [line.split()[1] for line in log[1:]] == ["enqueued", "claimed", "failed"]


def test_running_job_shows_its_lease(app: Penstock, shell: Shell) -> None:
    enqueue(app)
    (job,) = run_sync(app.leases.claim(worker="host:1"))
    printed = shell("jobs", "1").stdout
    assert "worker    host:1" in printed
    assert f"lease     token {job.token}, 30 s long" in printed


def test_job_in_full_as_json(app: Penstock, shell: Shell) -> None:
    enqueue(app, "Grüße\n日本")
    run_one(app, Done('{"a":[1]}'))
    job = shell.json("jobs", "1")
    assert job["args"] == {"name": "Grüße\n日本"}
    assert job["result"] == {"a": [1]}
    assert job["state"] == "done"
    assert job["explanation"]["reason"] == "finished"
    assert [entry["event"] for entry in job["log"]] == ["enqueued", "claimed", "done"]
    assert job["enqueued_at"].endswith("Z")
    assert datetime.fromisoformat(job["finished_at"]).tzinfo is not None
    assert isinstance(job["log"][-1]["duration"], float)


def test_unknown_job_is_not_found(app: Penstock, shell: Shell) -> None:
    for command in ("jobs", "explain", "cancel", "retry"):
        result = shell(command, "9", code=3)
        assert result.stderr == (
            "penstock: there is no job 9; retention may have removed it; try: penstock jobs\n"
        )


def test_error_as_json(app: Penstock, shell: Shell) -> None:
    result = shell("explain", "9", "--json", code=3)
    assert result.stdout == ""
    error = json.loads(result.stderr)
    assert error["type"] == "JobNotFound"
    assert "no job 9" in error["error"]


def test_filters_do_not_go_with_an_id(app: Penstock, shell: Shell) -> None:
    assert "filters" in shell.error("jobs", "1", "--state", "done", code=2)


@pytest.mark.parametrize(
    "command",
    [["jobs"], ["explain"], ["cancel"], ["retry"], ["log"]],
    ids=" ".join,
)
def test_id_is_taken_as_applications_print_it(
    command: list[str], app: Penstock, shell: Shell
) -> None:
    run_sync(app.cancel(enqueue(app)))
    run_sync(app.retry(1))
    assert shell(*command, "job_1").exit_code == 0


@pytest.mark.parametrize("wrong", ["0", "job_0", "seven", "job_", "4٢", "-3", "1.5", str(2**63)])
def test_what_is_no_job_id_is_refused_with_an_example(
    wrong: str, app: Penstock, shell: Shell
) -> None:
    for command in ("jobs", "explain", "cancel", "retry", "log"):
        assert shell.error(command, "--", wrong, code=2) == (
            f"penstock: {wrong!r} is not a job ID; job IDs are numbers, as in `penstock jobs 42`; "
            f"try: penstock {command} --help"
        )


def test_options_take_job_ids_in_the_same_forms(app: Penstock, shell: Shell) -> None:
    first, second = enqueue(app), enqueue(app)
    listed = shell.json("jobs", "--after", f"job_{second}")
    assert [job["id"] for job in listed["jobs"]] == [first]
    assert shell.json("jobs", "--parent", f"job_{first}")["jobs"] == []
    waiting = shell.json("enqueue", "greet", "--after", f"job_{first}")["job"]
    assert f"job {first}" in shell("explain", str(waiting["id"])).stdout
    for command in (["jobs", "--after"], ["jobs", "--parent"], ["enqueue", "greet", "--after"]):
        assert f"{command[-1]}: 'abc' is not a job ID" in shell.error(*command, "abc", code=2)


def test_explain_says_why(app: Penstock, shell: Shell) -> None:
    enqueue(app, key="k")
    enqueue(app, key="k")
    assert shell("explain", "2").stdout == "Job 2: job 1, which is pending, holds its key 'k'\n"
    explanation = shell.json("explain", "2")
    assert explanation["reason"] == "blocked"
    assert explanation["blocked_by"] == 1
    assert explanation.keys() == {"job_id", "reason", "text", "blocked_by"}


def test_cancel_ends_pending_and_asks_running_jobs(app: Penstock, shell: Shell) -> None:
    enqueue(app)
    run_sync(app.leases.claim(worker="w"))
    enqueue(app)
    assert shell("cancel", "1", "2").stdout == (
        "Job 1 is running (asked to stop).\nJob 2 is cancelled.\n"
    )


def test_reason_and_person_stand_in_the_log(app: Penstock, shell: Shell) -> None:
    enqueue(app)
    shell("cancel", "1", "--reason", "wrong name")
    entry = run_sync(app.log(1))[-1]
    assert entry.reason == "wrong name"
    assert "@" in entry.actor


def test_retry_runs_a_failed_job_again(app: Penstock, shell: Shell) -> None:
    enqueue(app, retry=ONCE)
    run_one(app, Failed("oops"))
    assert shell("retry", "1").stdout == "Job 1 is pending (ready).\n"
    run_one(app, Cancelled())
    (job,) = shell.json("retry", "1")["jobs"]
    assert (job["state"], job["attempt"]) == ("pending", 0)


def test_refused_job_does_not_keep_others_from_moving(app: Penstock, shell: Shell) -> None:
    enqueue(app)
    run_one(app, Done())
    enqueue(app)
    result = shell("cancel", "1", "2", code=4)
    assert result.stdout == "Job 2 is cancelled.\n"
    assert result.stderr.startswith("penstock: job 1 is done")
    assert result.stderr.endswith("try: penstock explain 1\n")


def test_refusals_as_json_are_one_line_each(app: Penstock, shell: Shell) -> None:
    enqueue(app)
    result = shell("cancel", "1", "8", "9", "--json", code=3)
    assert ids(json.loads(result.stdout)) == [1]
    errors = [json.loads(line) for line in result.stderr.splitlines()]
    assert [error["type"] for error in errors] == ["JobNotFound", "JobNotFound"]


def test_job_named_twice_is_moved_once(app: Penstock, shell: Shell) -> None:
    enqueue(app)
    assert ids(shell.json("cancel", "1", "1")) == [1]


def test_job_shows_whose_it_is_and_how_far(app: Penstock, shell: Shell) -> None:
    @app.task
    async def resize() -> None:
        context().progress(3, 4, "img-3.png")

    parent = run_sync(resize.enqueue())
    whose = resize.using(tenant="acme", throttle="api", correlation="monday", parent=parent.id)
    job = run_sync(whose.enqueue())
    assert json.loads(shell("jobs", str(job.id), "--json").stdout)["progress"] is None
    asyncio.run(Worker(app).run(until_empty=True))
    printed = shell("jobs", str(job.id)).stdout
    for line in (
        "tenant    acme",
        "throttle  api",
        "batch     monday",
        f"parent    job {parent.id}",
    ):
        assert f"  {line}\n" in printed
    assert "  progress  3 of 4 (75%), img-3.png\n" in printed
    assert json.loads(shell("jobs", str(job.id), "--json").stdout)["progress"]["done"] == 3


def test_job_shows_its_checkpoint_and_last_lines(app: Penstock, shell: Shell) -> None:
    @app.task(retry=RetryPolicy(attempts=1))
    async def copy() -> None:
        await context().checkpoint({"page": 17})
        for n in range(25):
            context().logger.info("page %d", n)
        raise ValueError("torn")

    job = run_sync(copy.enqueue())
    assert shell.json("jobs", str(job.id))["checkpoint"] is None
    asyncio.run(Worker(app).run(until_empty=True))
    printed = shell("jobs", str(job.id)).stdout
    assert 'Checkpoint\n  {\n    "page": 17\n  }\n' in printed
    assert "page 24" in printed
    assert "page 15" in printed
    assert "page 14" not in printed
    hint = f"The job has 25 lines; to see all of them: penstock jobs {job.id} --lines 1000\n"
    assert hint in printed
    every = shell("jobs", str(job.id), "--lines", "1000").stdout
    assert "page 0\n" in every
    assert "to see all" not in every
    said = shell.json("jobs", str(job.id), "--lines", "2")
    assert said["checkpoint"] == {"page": 17}
    assert [line["text"] for line in said["lines"]] == ["page 23", "page 24"]
    assert shell.json("jobs", str(job.id), "--lines", "0")["lines"] == []


def test_narrow_terminal_shows_what_a_job_waits_for_in_a_word(app: Penstock, url: str) -> None:
    enqueue(app, delay=timedelta(hours=1))
    enqueue(app)
    run_sync(app.leases.claim(worker="w"))
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
