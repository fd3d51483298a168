"""`manage.py penstock`, with real processes: a worker that is killed loses nothing."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import transaction
from django.test import override_settings

from penstock import NewJob, run_sync
from penstock.django.framework import task_backends
from tests.cli.support import started
from tests.crash.processes import until
from tests.django.project.shop import tasks
from tests.django.project.shop.models import Order
from tests.environment import SOON

ROOT = Path(__file__).parents[2]
BACKEND = "penstock.django.backend.PenstockBackend"


def environment(site: Any) -> dict[str, str]:
    database = {name: site.database[name] for name in site.database if name.isupper()}
    return {
        **os.environ,
        "DJANGO_TEST_DATABASE": json.dumps(database),
        "DJANGO_SETTINGS_MODULE": "tests.django.project.settings",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
    }


def manage(site: Any, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "django", "penstock", *arguments],
        env=environment(site),
        capture_output=True,
        text=True,
        check=False,
    )


MANAGE = """
import os, pathlib, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "own_settings"
sys.path.append(pathlib.Path("ignored"))  # as Python ignores it
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""
CONFIGURING = """
import os, sys
os.environ.pop("DJANGO_SETTINGS_MODULE")
from django.conf import settings
from django.core.management import execute_from_command_line
import own_settings
settings.configure(**{name: value for name, value in vars(own_settings).items() if name.isupper()})
execute_from_command_line(sys.argv)
"""
SETTINGS = """
from tests.django.project.settings import *
INSTALLED_APPS = [*INSTALLED_APPS, "edited"]
"""
TASKS = """
import os
try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

@task
def version():
    return [os.getppid(), 1]
"""


@contextmanager
def worker(site: Any, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A worker, as a project runs it; killed in the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "django", "penstock", "worker", *options],
        env=environment(site),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert "Worker" in process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.every_store
def test_worker_runs_tasks_and_stops_gracefully(site: Any) -> None:
    with worker(site, "--concurrency", "2") as process:
        result = tasks.add.enqueue(1, 2)
        assert run_sync(site.app.result(int(result.id), timeout=timedelta(seconds=SOON))) == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON) == 0


@pytest.mark.every_store
def test_worker_that_is_killed_loses_nothing(site: Any, tmp_path: Path) -> None:
    """Orders are handled once each, though workers are killed in the middle of their tasks."""
    lease = timedelta(seconds=1)
    blocked = tasks.block.using(lease=lease).enqueue(str(tmp_path / "block"))
    with transaction.atomic():
        orders = [Order.objects.create(item=f"tea {n}") for n in range(40)]
        results = [tasks.handle.using(lease=lease).enqueue(order.pk) for order in orders]
    for attempt in (1, 2):
        with worker(site, "--concurrency", "2") as process:
            until((tmp_path / "block").exists, "the task did not begin")
            process.kill()  # -9, in the middle of a task
            process.wait()
        (tmp_path / "block").unlink()
        assert tasks.block.get_result(blocked.id).attempts == attempt
    (tmp_path / "block.go").touch()
    with worker(site):
        for result in (blocked, *results):
            run_sync(site.app.result(int(result.id), timeout=timedelta(seconds=SOON)))
    blocked.refresh()
    assert (blocked.return_value, blocked.attempts) == ("went on", 3)
    assert len(set(blocked.worker_ids)) == 3
    assert {order.handled for order in Order.objects.all()} == {1}
    verified = manage(site, "verify")
    assert verified.returncode == 0, verified.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the project `site`, whose only folder in the path is that of `manage.py`."""
    (tmp_path / "site/edited").mkdir(parents=True)
    for name, text in {
        "manage.py": MANAGE,
        "own_settings.py": SETTINGS,
        "edited/__init__.py": "",
        "edited/models.py": "from edited import tasks",  # `manage.py` imports it
        "edited/tasks.py": TASKS,
    }.items():
        (tmp_path / "site" / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("options", [["--reload"], ["--processes=2", "--reload"]])
def test_reloaded_worker_runs_the_edited_task(site: Any, project: Path, options: list[str]) -> None:
    new = NewJob(task="edited.tasks.version", payload="{}")
    program = [sys.executable, "site/manage.py", "penstock", "worker", *options]
    count = len(options)
    with started(program, project, environment(site)) as process:
        for version in (1, 2):
            for _ in range(count):
                process.wait_for("Worker ")
            (job,) = run_sync(site.app.enqueue_many([new]))
            result = run_sync(site.app.result(job.id, timeout=timedelta(seconds=SOON)))
            assert result == [process.pid, version]  # the process that was started is their parent
            if version == 1:
                tasks_file = project / "site/edited/tasks.py"
                # Of another size: compiled files are told apart by size and whole seconds only.
                tasks_file.write_text(TASKS.replace("1]", "2]") + "# edited\n")
                process.wait_for("tasks.py has changed: reloading")
        process.send_to_group(signal.SIGINT)
        assert process.wait() == 0


@pytest.mark.parametrize("option", ["--processes=2", "--reload"])
def test_worker_of_a_project_without_a_settings_module(
    site: Any, project: Path, option: str
) -> None:
    (project / "site/manage.py").write_text(CONFIGURING)
    program = [sys.executable, "site/manage.py", "penstock", "worker", option]
    (job,) = run_sync(site.app.enqueue_many([NewJob(task="edited.tasks.version", payload="{}")]))
    with started(program, project, environment(site)) as process:
        result = run_sync(site.app.result(job.id, timeout=timedelta(seconds=SOON)))
        assert result == [process.pid, 1]
        process.send_to_group(signal.SIGINT)
        assert process.wait() == 0


def test_commands_work_on_the_database_of_the_project(site: Any) -> None:
    result = tasks.add.using(queue_name="mail").enqueue(1, 2)
    found = manage(site, "jobs", "--json")
    assert found.returncode == 0, found.stderr
    assert [job["id"] for job in json.loads(found.stdout)["jobs"]] == [int(result.id)]
    assert manage(site, "pause", "mail").returncode == 0
    assert "paused" in manage(site, "status").stdout
    assert "manage.py penstock status" in manage(site, "status", "--help").stdout


def test_options_of_django_may_stand_anywhere(site: Any) -> None:
    found = manage(site, "status", "--settings", "tests.django.project.settings", "--json")
    assert found.returncode == 0, found.stderr


def test_errors_have_the_exit_codes_of_penstock(site: Any) -> None:
    found = manage(site, "jobs", "17")
    assert found.returncode == 3
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("backends", "options", "message"),
    [
        ({"default": {"BACKEND": f"{BACKEND}"}}, ["--backend", "other"], "no backend 'other'"),
        ({"a": {"BACKEND": BACKEND}, "b": {"BACKEND": BACKEND}}, [], "name one of the backends"),
        ({}, [], "no backend of TASKS is Penstock"),
    ],
)
def test_unclear_backend_is_refused(
    site: Any, backends: dict[str, Any], options: list[str], message: str
) -> None:
    with override_settings(TASKS=backends), pytest.raises(CommandError, match=message):
        call_command("penstock", *options, "status")
    assert task_backends["default"]
