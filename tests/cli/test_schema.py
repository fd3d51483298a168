"""`migrate-schema`: by a later version, on a store that programs of this version have open."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from penstock import run_sync
from penstock.stores import open_store
from penstock.stores.schemas import status
from tests.cli.support import COMMAND, Shell
from tests.environment import SOON
from tests.versions import TEXT, environment, make_later_version, program


@pytest.fixture(scope="session")
def later_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a version with one more migration, which needs a switch."""
    return make_later_version(tmp_path_factory.mktemp("later"))


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, url: str) -> str:
    """The URL of a store of this version."""
    place = url if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    run_sync(open_store(place).close())
    return place


class Later:
    """Runs commands of a later version on one store."""

    def __init__(self, version: Path, store: str) -> None:
        self._environment = {**environment(version), "PENSTOCK_STORE": store}

    def __call__(self, *args: str, code: int) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            [*COMMAND, *args],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=SOON,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def json(self, *args: str, code: int) -> Any:
        return json.loads(self(*args, "--json", code=code).stdout)


@pytest.fixture
def later(later_version: Path, store: str) -> Later:
    return Later(later_version, store)


def known(store: str) -> int:
    found = status(store)
    assert found is not None
    return found.schema


def oldest_program(store: str) -> int:
    found = status(store)
    assert found is not None
    return found.oldest_program


def test_store_of_this_version_is_current(store: str) -> None:
    shell = Shell(store)
    printed = shell("migrate-schema", "--check").stdout
    assert f"has schema {known(store)} " in printed
    assert f"knows schema {known(store)} " in printed
    assert printed.endswith("Nothing is left to do.\n")
    applied = shell("migrate-schema", "--apply")
    assert (applied.stdout, applied.stderr) == (printed, "")


def test_check_says_what_there_is_to_do_and_changes_nothing(store: str, later: Later) -> None:
    number = known(store)
    for _ in range(2):
        checked = later("migrate-schema", "--check", code=9)
        assert f"has schema {number} " in checked.stdout
        assert f"knows schema {number + 1} " in checked.stdout
        assert f"To apply: migration {number + 1} (novelty)\n" in checked.stdout
        assert f"To switch: migration {number + 1}: {TEXT}\n" in checked.stdout
        assert "held up" not in checked.stdout
        assert checked.stderr == "Run: penstock migrate-schema --apply\n"
    assert known(store) == number


def test_apply_migrates_and_switches(store: str, later: Later) -> None:
    number = known(store)
    applied = later("migrate-schema", "--apply", code=0)
    assert applied.stdout.endswith("Nothing is left to do.\n")
    assert applied.stderr.splitlines() == [
        f"migration {number + 1} (novelty) …",
        f"switch of migration {number + 1} …",
    ]
    assert later.json("migrate-schema", "--check", code=0)["oldest_program"] == number + 1
    refused = Shell(store).error("migrate-schema", "--check", code=5)
    assert f"programs that know schema {number + 1}" in refused
    assert "upgrade Penstock" in refused


def test_switch_is_held_up_by_an_older_program_that_is_named(store: str, later: Later) -> None:
    number, oldest = known(store), oldest_program(store)
    with program(store) as older:
        applied = later("migrate-schema", "--apply", code=9)
        assert f"migration {number + 1} (novelty) …" in applied.stderr
        assert f"To switch: migration {number + 1}: {TEXT}\n" in applied.stdout
        assert f", which knows schema {number}\n" in applied.stdout
        assert older.tell("write") == "done"
        found = later.json("migrate-schema", "--check", code=9)
        assert (found["schema"], found["oldest_program"]) == (number + 1, oldest)
        assert found["migrations"] == []
        (switch,) = found["switches"]
        assert {one["schema"] for one in switch["held_up_by"]} == {number}
        if store.startswith("sqlite"):
            assert older.process.pid in {one["process"] for one in switch["held_up_by"]}
        forced = later("migrate-schema", "--apply", "--force", code=0)
        assert forced.stderr == f"switch of migration {number + 1} …\n"
        assert older.tell("write").startswith("refused: ")


def test_commands_of_a_later_version_refuse_a_store_that_has_to_be_migrated(
    store: str, later: Later
) -> None:
    if store.startswith("sqlite"):
        store += "?migrate=manual"
    refused = later("status", "--store", store, code=5).stderr
    assert "penstock migrate-schema --apply" in refused


def test_variable_decides_who_migrates(store: str, later: Later) -> None:
    number = known(store)
    later._environment["PENSTOCK_MIGRATE"] = "manual"
    assert "migrate-schema --apply" in later("status", code=5).stderr
    assert known(store) == number
    later._environment["PENSTOCK_MIGRATE"] = "auto"
    later("status", code=0)
    assert later.json("migrate-schema", "--check", code=0)["schema"] == number + 1


def test_apply_creates_a_store_and_check_does_not(shell: Shell, tmp_path: Path) -> None:
    assert "there is no store" in shell.error("migrate-schema", "--check", code=5)
    assert not (tmp_path / "jobs.db").exists()
    assert shell("migrate-schema", "--apply").stderr == "tables …\nroutines …\n"
    assert shell("status").exit_code == 0


def test_journal_has_no_schema(tmp_path: Path) -> None:
    shell = Shell(f"journal:///{tmp_path}/jobs")
    run_sync(open_store(shell.url).close())
    for option in ("--check", "--apply"):
        assert shell("migrate-schema", option).stdout.endswith("has no schema to migrate.\n")
    assert shell.json("migrate-schema", "--check") is None


def test_wrong_command_lines(shell: Shell) -> None:
    assert "either --check or --apply" in shell.error("migrate-schema", code=2)
    both = shell.error("migrate-schema", "--check", "--apply", code=2)
    assert "either --check or --apply" in both
    assert "--force needs --apply" in shell.error("migrate-schema", "--check", "--force", code=2)
    server = shell.error("migrate-schema", "--check", "--store", "http://127.0.0.1:9", code=2)
    assert "needs stores" in server
    memory = shell.error("migrate-schema", "--check", "--store", "memory://", code=2)
    assert "not the URL of a store with a schema" in memory
