"""Nothing of a framework is imported unless it is used."""

import json
import subprocess
import sys

import pytest

FRAMEWORKS = {"aiosqlite", "django", "fastapi", "flask", "sqlalchemy", "starlette", "uvicorn"}


def imported(program: str) -> set[str]:
    """Return the packages of other people that a program has imported at its end."""
    shown = "\nimport json, sys; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    ran = subprocess.run(
        [sys.executable, "-c", program + shown], capture_output=True, text=True, check=True
    )
    return set(json.loads(ran.stdout)) - sys.stdlib_module_names


def test_core_imports_its_few_dependencies_only() -> None:
    found = imported("import penstock") - imported("import sysconfig; sysconfig.get_config_vars()")
    assert found <= {"penstock", "cronsim", "msgspec", "typing_extensions"}


def test_penstock_that_is_used_imports_no_framework() -> None:
    program = """
from penstock import Penstock, run_sync
app = Penstock("sqlite://")
app.task("f", lambda: None)
"""
    assert imported(program) & FRAMEWORKS == set()


@pytest.mark.parametrize(
    ("module", "needed"),
    [
        ("penstock.integrations", set()),
        ("penstock.integrations.sqlalchemy", set()),
        ("penstock.integrations.flask", set()),
        ("penstock.integrations.asgi", {"fastapi", "starlette"}),
    ],
)
def test_integration_imports_its_own_framework_only(module: str, needed: set[str]) -> None:
    assert imported(f"import {module}") & FRAMEWORKS == needed


def test_missing_framework_is_named() -> None:
    program = (
        "import sys; sys.modules['starlette'] = None\n"
        "try:\n    import penstock.integrations.asgi\n"
        "except ImportError as error:\n    print(error)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "pip install 'penstock[server]'" in ran.stdout
