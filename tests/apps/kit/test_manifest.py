"""Manifests: every application has one, and it is true."""

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

import penstock.apps
from penstock.apps.kit import manifest as manifests
from penstock.apps.kit.manifest import Manifest, application_names, manifest_of
from penstock.apps.kit.namespaces import Namespaces
from tests.apps.support import registered, served

SOURCE = Path(penstock.apps.__file__).parent


def test_every_folder_is_an_application() -> None:
    folders = {one.parent.name for one in SOURCE.glob("*/__init__.py")} - {"kit"}
    assert folders == set(application_names())


@pytest.mark.parametrize("name", application_names())
def test_manifest_names_every_task_and_queue_that_is_registered(name: str, tmp_path: Path) -> None:
    manifest = manifest_of(name)
    app = registered(name, tmp_path)
    tasks = app.tasks
    assert manifest.name == name
    assert manifest.summary
    if name != "events":  # its jobs have no handler in this package
        assert manifest.tasks.keys() == tasks.keys()
    assert {task.queue for task in tasks.values()} <= set(manifest.queues)
    assert app.limits.reserving == set(manifest.queues)


@pytest.mark.parametrize("name", application_names())
def test_tasks_and_queues_of_an_application_are_its_own(name: str) -> None:
    manifest = manifest_of(name)
    assert manifest.tasks
    assert manifest.queues
    assert {Namespaces().owner("task", task) for task in manifest.tasks} == {name}
    assert {Namespaces().owner("queue", queue) for queue in manifest.queues} == {name}


def test_routes_of_manifests_are_served(tmp_path: Path) -> None:
    declared = [route.declared for route in served(tmp_path).routes]
    paths = {f"{one.method} {one.path}" for one in declared}
    paths |= {
        path.replace("{operation}", name)
        for path in paths
        for name in ("import", "rebuild", "reembed", "sync")
    }
    for name in application_names():
        manifest = manifest_of(name)
        assert {manifest.route_for(task) for task in (*manifest.tasks, "other")} <= paths


@pytest.fixture
def no_manifests() -> Iterator[None]:
    """Forgets the manifests that were read."""
    manifest_of.cache_clear()
    yield
    manifest_of.cache_clear()


@pytest.mark.usefixtures("no_manifests")
def test_application_that_lacks_a_package_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> NoReturn:
        raise ModuleNotFoundError("No module named 'no_such_package'", name="no_such_package")

    monkeypatch.setattr(manifests, "importlib", SimpleNamespace(import_module=fail))
    assert "events" in application_names()
    assert manifest_of("events") == Manifest("events")
    assert Namespaces().owner("queue", "events") == "events"


@pytest.mark.usefixtures("no_manifests")
def test_application_with_a_defect_is_not_taken_for_one_that_lacks_a_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "penstock.apps.events", None)  # its import fails
    with pytest.raises(ModuleNotFoundError, match=r"penstock\.apps\.events"):
        manifest_of("events")


def test_import_rules_cover_every_application() -> None:
    settings = tomllib.loads((SOURCE.parents[2] / "pyproject.toml").read_text("utf-8"))
    rules = {rule["name"]: rule for rule in settings["tool"]["importlinter"]["contracts"]}
    public = rules["Applications import the public API and the kit only"]
    assert public["source_modules"] == [f"penstock.apps.{name}" for name in application_names()]
    others = rules["No application imports another, and the kit imports none"]
    assert others["layers"] == [" | ".join(application_names()), "kit"]
