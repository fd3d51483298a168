import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock import Job, NewJob, Penstock, run_sync
from penstock.core.workers import WorkerInfo
from penstock.engine.task import announcement
from tests.cli.support import Shell
from tests.server.support import served

APP = """
from penstock import Penstock

app = Penstock("memory://")


@app.task(queue="mail", priority=7)
def send(to: str, copies: int = 1) -> None: ...
"""


def test_values_are_json_where_they_can_be(app: Penstock, shell: Shell) -> None:
    output = shell("enqueue", "greet", "name=Ada", "n=3", "flags=[true,null]", "text=a=b").stdout
    assert output == "Job 1 is pending (ready).\n"
    job = run_sync(app.get(1))
    assert job.args == {"name": "Ada", "n": 3, "flags": [True, None], "text": "a=b"}


def test_arguments_come_as_one_object_or_on_stdin(app: Penstock, shell: Shell) -> None:
    shell("enqueue", "greet", "--args", '{"name": "Ada"}')
    shell("enqueue", "greet", "--args", "-", stdin='{"name": "Eve"}')
    assert [run_sync(app.get(n)).args["name"] for n in (1, 2)] == ["Ada", "Eve"]


def test_options_reach_the_job(app: Penstock, shell: Shell) -> None:
    shell("enqueue", "greet", "name=x")
    document = shell.json(
        "enqueue", "greet", "--queue", "mail", "--priority", "9", "--delay", "60", "--key", "k",
        "--dedupe", "d", "--tag", "a", "--tag", "b", "--tenant", "t", "--after", "1",
    )  # fmt: skip
    assert isinstance(document, dict)
    job = run_sync(app.get(document["job"]["id"]))
    assert (job.queue, job.priority, job.key, job.dedupe) == ("mail", 9, "k", "d")
    assert (job.tags, job.tenant, job.needs) == (("a", "b"), "t", 1)
    assert (job.run_at - job.enqueued_at).total_seconds() == 60


def test_options_are_those_that_a_worker_has_announced(app: Penstock, shell: Shell) -> None:
    assert "no live worker has announced the task 'send'" in shell("enqueue", "send").stderr
    task = app.task("send", lambda: None, queue="mail", priority=7, version=3)
    worker = WorkerInfo(
        name="w", host="h", seen_at=datetime.now(UTC), tasks=(announcement(task, "send"),)
    )
    run_sync(app.store.heartbeat([worker]))
    assert shell("enqueue", "send", "--priority", "2").stderr == ""
    job = run_sync(app.get(2))
    assert (job.queue, job.priority, job.task_version) == ("mail", 2, 3)


def test_warning_is_json_where_the_answer_is(shell: Shell, app: Penstock) -> None:
    run_sync(app.queues.list())
    said = shell("enqueue", "send", "--json").stderr
    assert json.loads(said) == {
        "warning": "no live worker has announced the task 'send'; the job waits for one"
    }


@pytest.mark.parametrize("scopes", [("publish",), ("publish", "read")], ids="+".join)
def test_warning_of_a_server_is_shown_whatever_the_token_may_read(
    scopes: tuple[str, ...],
    app: Penstock,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_TOKEN", run_sync(app.tokens.create("ci", scopes)))
    with served(tmp_path, "--store", url, "--workers", "0") as (_, address):
        shell = Shell(address)
        expected = "no live worker has announced the task 'send'; the job waits for one"
        assert shell("enqueue", "send").stderr == f"penstock: warning: {expected}\n"
        assert json.loads(shell("enqueue", "send", "--json").stderr) == {"warning": expected}


def test_worker_that_announces_no_tasks_may_run_any(app: Penstock, shell: Shell) -> None:
    worker = WorkerInfo(name="w", host="h", seen_at=datetime.now(UTC), tasks=None)
    run_sync(app.store.heartbeat([worker]))
    assert shell("enqueue", "send").stderr == ""


def test_duplicate_does_not_wait_for_a_worker(app: Penstock, shell: Shell) -> None:
    run_sync(app.queues.list())
    shell("enqueue", "send", "--dedupe", "d")
    again = shell("enqueue", "send", "--dedupe", "d").stderr
    assert again == "penstock: warning: no live worker has announced the task 'send'\n"


def test_other_warnings_of_the_client_are_shown_as_they_are(
    shell: Shell, app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_sync(app.queues.list())

    async def warn(self: Penstock, new: Sequence[NewJob]) -> list[Job]:
        logging.getLogger("penstock.client.connection").warning("the server is old")
        return await stored(self, new)

    stored = Penstock.enqueue_many
    monkeypatch.setattr(Penstock, "enqueue_many", warn)
    assert "penstock: warning: the server is old\n" in shell("enqueue", "send").stderr


def test_duplicate_is_told(app: Penstock, shell: Shell) -> None:
    shell("enqueue", "greet", "--dedupe", "d")
    again = shell("enqueue", "greet", "--dedupe", "d").stdout
    assert again == "Nothing was enqueued: job 1 has this dedupe key.\n"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["name"], "'name' is not NAME=VALUE"),
        (["=3"], "'=3' is not NAME=VALUE"),
        (['{"n": 3}'], "is not NAME=VALUE; a JSON object goes after --args"),
        (["n=1", "--args", "{}"], "not both"),
        (["--args", "[1]"], "--args is not a JSON object"),
        (["--delay", "soon"], "'soon' is not a number of seconds"),
        (["--priority", "11"], "11 is not in the range"),
        (["--after", "9"], "no job 9 to wait for"),
    ],
)
def test_wrong_input_is_told_and_nothing_stored(
    app: Penstock, shell: Shell, given: list[str], message: str
) -> None:
    failed = shell("enqueue", "greet", *given, code=3 if "--after" in given else 2)
    assert message in failed.stderr
    assert not run_sync(app.count())


def test_app_checks_task_and_arguments(
    app: Penstock, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "posts.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    shell("enqueue", "send", "to=Ada", "--app", "posts:app")
    job = run_sync(app.get(1))
    assert (job.queue, job.priority, json.loads(job.payload)) == ("mail", 7, {"to": "Ada"})
    assert "its tasks are: send" in shell("enqueue", "snd", "--app", "posts:app", code=3).stderr
    wrong = shell("enqueue", "send", "copies=many", "to=x", "--app", "posts:app", code=2)
    assert "copies" in wrong.stderr
