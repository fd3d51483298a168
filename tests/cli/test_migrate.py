import json
import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import JobQuery, Penstock, run_sync
from penstock.cli.migrate import _Meter
from penstock.engine.migration import Moved
from penstock.leases import Done
from tests.cli.support import COMMAND, Shell, read_all, run_one, started
from tests.environment import SOON


@pytest.fixture
def there(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/there.db"


@pytest.fixture
def other(there: str) -> Iterator[Penstock]:
    app = Penstock(there)
    yield app
    run_sync(app.close())


def enqueue(app: Penstock, n: int = 1) -> None:
    for _ in range(n):
        run_sync(app.enqueue("greet", {"name": "Ada"}))


def jobs(app: Penstock) -> list[str]:
    return [job.state.value for job in run_sync(app.find(JobQuery(newest_first=False)))]


def test_it_moves_and_says_so(
    app: Penstock, shell: Shell, url: str, there: str, other: Penstock
) -> None:
    enqueue(app, 3)
    run_one(app, Done())
    run_sync(app.queues.pause("mail"))
    run_sync(app.store.deregister(["w"]))
    moved = shell("migrate", url, there)
    assert moved.stdout == "Moved 3 jobs, and 2 queues, 0 limits, 0 schedules, 0 tokens.\n"
    assert moved.stderr == "3 of 3 jobs\n"
    assert jobs(other) == ["done", "pending", "pending"]
    again = shell("migrate", url, there)
    assert again.stdout.startswith("Moved 0 jobs (3 jobs had been moved before), and 2 queues")
    assert again.stderr == ""
    assert shell("status").stdout.endswith(f"The jobs of this store have moved to {there}.\n")
    assert shell.json("status")["seal"] == {"passage": "left", "place": there}
    error = shell.error("enqueue", "greet", code=5)
    assert f"the jobs of this store have moved to {there}" in error


def test_json_counts(app: Penstock, shell: Shell, url: str, there: str) -> None:
    enqueue(app, 2)
    expected = {"jobs": 2, "queues": 1, "limits": 0, "schedules": 0, "tokens": 0}
    planned = shell.json("migrate", url, there, "--dry-run")
    assert planned == {**expected, "moved": 0, "dry_run": True}
    moved = shell.json("migrate", url, there)
    assert moved == {**expected, "moved": 2, "dry_run": False}


def test_dry_run_says_that_a_journal_is_in_use(
    app: Penstock, shell: Shell, url: str, tmp_path: Path
) -> None:
    enqueue(app)
    taken = Penstock(f"journal:///{tmp_path}/journal")
    run_sync(taken.count())
    error = shell.error("migrate", url, taken.url, "--dry-run", code=5)
    assert "is in use by process" in error
    assert "created" not in error
    run_sync(taken.close())


def test_dry_run_creates_and_changes_nothing(
    app: Penstock, shell: Shell, url: str, there: str, tmp_path: Path
) -> None:
    enqueue(app, 2)
    result = shell("migrate", url, there, "--dry-run")
    assert result.stdout == "Would move 2 jobs, and 1 queue, 0 limits, 0 schedules, 0 tokens.\n"
    assert result.stderr == f"there is no store at {tmp_path}/there.db; it will be created\n"
    assert not (tmp_path / "there.db").exists()
    enqueue(app)
    assert jobs(app) == ["pending"] * 3


def test_active_worker_is_named(
    app: Penstock, shell: Shell, url: str, there: str, other: Penstock
) -> None:
    enqueue(app)
    run_sync(app.leases.claim(worker="busy"))
    _ = other.store
    for how in ([], ["--dry-run"]):
        error = shell.error("migrate", url, there, *how, code=4)
        assert f"workers are active on {url}: busy holds 1 job until" in error
        assert "stop them first, nothing was moved" in error
    assert jobs(other) == []


def test_worker_on_the_old_store_ends_with_the_error(
    app: Penstock, shell: Shell, url: str, there: str, tmp_path: Path
) -> None:
    shell("migrate", url, there)
    program = (
        f"from penstock import Penstock\napp = Penstock({url!r})\napp.task('t', lambda: None)\n"
    )
    (tmp_path / "tasks.py").write_text(program, "utf-8")
    with started([*COMMAND, "worker", "tasks:app"], tmp_path) as process:
        assert process.wait() == 5, process.printed
    assert f"the jobs of this store have moved to {there}" in process.printed[-1]


@pytest.mark.parametrize(
    ("source", "target", "code", "text"),
    [
        ("memory://", "{there}", 2, "ends with its process"),
        ("{url}", "memory://", 2, "ends with its process"),
        ("{url}", "{url}", 2, "are the same store"),
        ("http://localhost:1", "{there}", 2, "needs stores"),
        ("{url}", "http://localhost:1", 2, "needs stores"),
        ("{url}", "nonsense://x", 2, "unknown store URL"),
        ("{there}", "{url}", 5, "there is no store"),
    ],
)
def test_what_cannot_be(
    *,
    source: str,
    target: str,
    code: int,
    text: str,
    app: Penstock,
    shell: Shell,
    url: str,
    there: str,
) -> None:
    enqueue(app)
    places = [place.format(url=url, there=there) for place in (source, target)]
    assert text in shell.error("migrate", *places, code=code)
    assert jobs(app) == ["pending"]
    enqueue(app)


def test_terminal_shows_one_line(app: Penstock, url: str, there: str, tmp_path: Path) -> None:
    enqueue(app, 3)
    inside, outside = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "migrate", url, there, "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=outside,
    )
    os.close(outside)
    printed = read_all(inside)
    output, _ = process.communicate(timeout=SOON)
    assert json.loads(output)["moved"] == 3
    assert printed == b"\r3 of 3 jobs\r\n"


def test_elsewhere_every_tenth_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with _Meter() as meter:
        for n in range(0, 101, 5):
            meter.show(Moved(jobs=100, moved=n))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"{n} of 100 jobs" for n in range(10, 101, 10)]
