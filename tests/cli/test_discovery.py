"""Which app a worker finds, and which modules it imports for their tasks."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from penstock.cli.discovery import load_app
from penstock.core.errors import ConfigurationError
from tests.cli.support import Shell

APP = 'from penstock import Penstock\n\napp = Penstock("sqlite:///jobs.db")\n'
TASK = """
from {app} import app

@app.task
def {task}() -> None:
    pass
"""
MODULES = {
    "single.py": APP + "\n@app.task\ndef greet() -> None:\n    pass\n\nsame = app\n",
    "program.py": "import single\nclass settings:\n    app = single.app\n",
    "several.py": APP + 'other = Penstock("sqlite:///other.db")\n',
    "empty.py": APP,
    "bare.py": "",
    "needy.py": "import nowhere_to_be_found",
    "crash.py": "\n1 / 0",
    "quits.py": "raise SystemExit(3)",
    # A package with task modules at several depths.
    "shop/__init__.py": "",
    "shop/app.py": APP,
    "shop/tasks.py": TASK.format(app="shop.app", task="report"),
    "shop/mail/__init__.py": "",
    "shop/mail/tasks/__init__.py": "",
    "shop/mail/tasks/sending.py": TASK.format(app="shop.app", task="send"),
    "shop/extra.py": TASK.format(app="shop.app", task="extra"),
    "shop/broken/__init__.py": "1 / 0",
    "shop/broken/models.py": "",
    # Packages that cannot be run.
    "bad/__init__.py": "",
    "bad/tasks.py": "\n\n1 / 0",
    "useless/__init__.py": "",
    "useless/tasks.py": "",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder; what is imported from it is forgotten afterwards."""
    write(tmp_path, MODULES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    before = set(sys.modules)
    importlib.invalidate_caches()
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def write(folder: Path, modules: Mapping[str, str]) -> None:
    for name, text in modules.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_app_is_found_in_the_current_folder() -> None:
    assert set(load_app("single:app").tasks) == {"greet"}


def test_app_may_be_an_attribute() -> None:
    assert set(load_app("program:settings.app").tasks) == {"greet"}


def test_only_app_of_a_module_need_not_be_named() -> None:
    assert load_app("single") is load_app("single:same")


@pytest.mark.parametrize("target", ["shop", "shop.mail"])
def test_task_modules_of_a_package_are_imported_and_lead_to_the_app(target: str) -> None:
    tasks = set(load_app(target).tasks)
    assert tasks == ({"report", "send"} if target == "shop" else {"send"})
    assert "shop.broken" not in sys.modules
    assert "shop.extra" not in sys.modules


def test_module_that_is_no_package_brings_only_itself(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"shop\.app:app has no tasks"):
        load_app("shop.app:app")


def test_further_modules_are_imported_by_name() -> None:
    assert set(load_app("shop", ["shop.extra"]).tasks) == {"report", "send", "extra"}
    assert set(load_app("shop.app", ["shop.extra"]).tasks) >= {"extra"}


def test_package_with_its_app_imports_task_modules_that_import_it(folder: Path) -> None:
    write(folder, {"own/__init__.py": APP, "own/tasks.py": TASK.format(app="own", task="t")})
    assert set(load_app("own:app").tasks) == set(load_app("own").tasks) == {"t"}


@pytest.mark.parametrize(
    ("target", "message", "step"),
    [
        ("single:", "'single:' does not name an app", "penstock worker single"),
        ("./sub/tasks.py", "does not name an app", "penstock worker sub.tasks"),
        (":", "':' does not name an app", "penstock worker tasks"),
        ("single:nope", "module 'single' has no 'nope'", "penstock worker single:app"),
        ("single:greet", "single:greet is a Task, not a Penstock", "penstock worker single:app"),
        ("several", "has 2 apps: several:app, several:other", "penstock worker several:app"),
        ("empty:app", "empty:app has no tasks", "penstock worker empty:app --import MODULE"),
        ("empty", "empty has no tasks", "penstock worker empty --import MODULE"),
        (
            "nope:app",
            "no module 'nope' in this folder",
            "the same command in the folder of nope.py",
        ),
        ("a.b:app", "no module 'a' in this folder", "the same command in the folder of a/b.py"),
        ("bare:app", "module 'bare' has no 'app'", 'app = Penstock("sqlite:///penstock.db")'),
        ("bare", "no Penstock in module 'bare'", 'app = Penstock("sqlite:///penstock.db")'),
        ("useless", "no Penstock in 'useless', nor in the modules", "penstock worker useless."),
        ("needy:app", "importing 'needy' failed: ModuleNotFoundError", 'python -c "import needy"'),
        ("crash:app", "ZeroDivisionError: division by zero", 'python -c "import crash"'),
        ("quits:app", "importing 'quits' failed: SystemExit: 3", 'python -c "import quits"'),
        ("bad", "importing 'bad.tasks' failed: ZeroDivisionError", 'python -c "import bad.tasks"'),
    ],
)
def test_app_that_cannot_be_had_is_explained(target: str, message: str, step: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_app(target)
    assert message in str(caught.value)
    assert caught.value.__notes__[0].startswith(step)


def test_import_that_fails_is_explained() -> None:
    with pytest.raises(ConfigurationError, match=r"no module 'shop\.nope'"):
        load_app("shop", ["shop.nope"])


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("tasks.py", "tasks"),
        ("tasks.py:queue", "tasks:queue"),
        ("my/tasks.py:app", "my.tasks:app"),
        (":app", "tasks:app"),
    ],
)
def test_worker_of_a_file_gets_a_hint(shell: Shell, target: str, hint: str) -> None:
    assert shell.error("worker", target, code=2).endswith(f"try: penstock worker {hint}")
