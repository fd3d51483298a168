"""A fleet of two versions on one store: replaced one by one under load, with kills, and back again.

The older version is the commit in `oldest_version.txt`, the first that leaves jobs of unknown tasks
alone; it is built by `git archive` into a tree of its own. Raise it only when a version that is
older than the new one is no longer supported beside the present one.
"""

import random
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from penstock.core.lifecycle import Event, State
from penstock.engine.penstock import run_sync
from penstock.stores.sql.schema import load_scripts
from tests import tiers
from tests.crash.client import Client
from tests.crash.history import Stored, read_store
from tests.crash.processes import ROOT, Child, Zygote, until
from tests.crash.recording import Claimed, read_history, store_url
from tests.crash.serving import free_port
from tests.crash.support import (
    QUEUES,
    assert_promises_kept,
    client,
    done,
    on_both,
    wait_for_another,
)

OLDEST = (Path(__file__).parent / "oldest_version.txt").read_text(encoding="utf-8").strip()
KILLS = tiers.amount(1, 4)
"""How many others are killed and started again while one is replaced."""
CAST = ("plain_producer", "worker", "http_server", "http_publisher", "http_worker")
"""Twice, with a server each."""
NOVEL = ("novel", "fresh")
"""A task of the newer program, which takes two versions, and its former name."""


def archive_of(commit: str) -> bytes:
    """The sources and tests of a version of this repository."""
    command = ["git", "-C", str(ROOT), "archive", commit, "src", "tests"]
    found = subprocess.run(command, capture_output=True, check=False)
    if found.returncode:
        said = found.stderr.decode().strip()
        pytest.fail(
            f"the history of this clone has no commit {commit}, which the older half of the fleet "
            f"is built from ({said}); in a shallow clone, run: git fetch --unshallow"
        )
    return found.stdout


@pytest.fixture(scope="module")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """Starts clients of the oldest version that knows these rules."""
    root = tmp_path_factory.mktemp("oldest")
    with tarfile.open(fileobj=BytesIO(archive_of(OLDEST))) as archive:
        archive.extractall(root, filter="data")
    for name in ("sqlite", "postgres"):
        folder = root / "src" / "penstock" / "stores" / name / "migrations"
        before = max(int(script.name[:4]) for script in folder.glob("*.sql"))
        present = load_scripts(f"penstock.stores.{name}").version
        assert before < present, f"the present version has no further migration for {name}"
    with Zygote(root) as started:
        yield started
        started.kill_all()


class Fleet:
    """Processes of two versions; the newer ones also know the task `novel` and its former name."""

    def __init__(self, seed: int, older: Zygote, newer: Zygote, app: Client) -> None:
        self._rng = random.Random(seed)
        self._zygotes = {"older": older, "newer": newer}
        self._app = app
        self._places = [(role, port) for port in (free_port(), free_port()) for role in CAST]
        self._versions = ["older"] * len(self._places)
        self._processes: list[Child] = []

    def start_all(self) -> None:
        self._processes = [self._start(n) for n in range(len(self._places))]

    def _start(self, n: int) -> Child:
        role, port = self._places[n]
        version = self._versions[n]
        seed = self._rng.getrandbits(32)
        options = {"novel": True} if version == "newer" else {}
        zygote = self._zygotes[version]
        return zygote.start(role, self._app.folder, seed=seed, port=port, lease=1.0, **options)

    def replace_all(self, version: str) -> None:
        """Replace one after the other by another version, while some of the others are killed."""
        order = [*range(len(self._places))]
        self._rng.shuffle(order)
        for n in order:
            self._versions[n] = version
            self._kill(n)
            for _ in range(KILLS):
                self._kill(self._rng.randrange(len(self._places)))
            wait_for_another(self._app)

    def _kill(self, n: int) -> None:
        self._processes[n].kill()
        self._processes[n] = self._start(n)

    def end(self) -> None:
        """Stop producing, do what is left, and end."""
        for n, (role, _) in enumerate(self._places):
            if role not in {"worker", "http_server", "http_worker"}:
                self._processes[n].kill()
        for queue in QUEUES:
            run_sync(self._app.queues.resume(queue))
        until(
            lambda: not run_sync(self._app.store.backlog())[0],
            "some jobs are left",
            progress=lambda: done(self._app),
        )
        for process in self._processes:
            process.kill()


def migrate(url: str) -> None:
    """What an operator runs with the new version while the older fleet works."""
    command = [sys.executable, "-m", "penstock", "migrate-schema", "--apply", "--store", url]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.timeout(1500)
@on_both
def test_fleet_of_two_versions_keeps_all_promises(
    zygote: Zygote, oldest: Zygote, folder: Path
) -> None:
    first = oldest.start("script", folder)  # the older version makes the store
    first.succeed()
    with client(folder, novel=True) as app:  # it opens the store when it first uses it
        fleet = Fleet(1, oldest, zygote, app)
        fleet.start_all()
        wait_for_claims(folder)
        migrate(store_url(folder))
        wait_for_claims(folder)
        wait_for_another(app)
        novel = zygote.start("novel_producer", folder, novel=True)
        fleet.replace_all("newer")
        for task in NOVEL:
            until(lambda task=task: done_of(app, task) > 0, f"no job of {task} is done")  # type: ignore[misc] # bound at once
        fleet.replace_all("older")
        before = len(read_store(folder).log)
        until(lambda: len(read_store(folder).log) > before + 50, "the older ones do not go on")
        novel.kill()
        waiting = [job for job in read_store(folder).jobs.values() if job.task in NOVEL]
        assert any(job.state is State.PENDING for job in waiting), "they wait for newer workers"
        fleet.replace_all("newer")
        fleet.end()
    assert_promises_kept(folder)
    assert_no_attempt_was_burnt(read_store(folder))


def wait_for_claims(folder: Path) -> None:
    """Wait until workers have claimed some jobs, without opening the store."""

    def claims() -> int:
        return sum(isinstance(note, Claimed) for note in read_history(folder))

    before = claims()
    until(lambda: claims() > before + 5, "nothing is claimed any more")


def done_of(app: Client, task: str) -> int:
    return sum(
        job.task == task and job.state is State.DONE for job in read_store(app.folder).jobs.values()
    )


def assert_no_attempt_was_burnt(stored: Stored) -> None:
    """Jobs of the new task have run on workers that know it only, and none failed for another."""
    novel = {job.id for job in stored.jobs.values() if job.task in NOVEL}
    assert {stored.jobs[one].task_version for one in novel} == {1, 2}
    assert {stored.jobs[one].state for one in novel} == {State.DONE}
    failed = [entry for entry in stored.log if entry.event is Event.FAILED]
    assert not [entry for entry in failed if entry.job_id in novel]
    assert not [entry for entry in stored.log if "UnknownTask" in (entry.error or "")]


def test_oldest_version_is_a_commit_of_this_history() -> None:
    assert len(archive_of(OLDEST)) > 1_000_000
    with pytest.raises(pytest.fail.Exception, match="git fetch --unshallow"):
        archive_of("0" * 40)
