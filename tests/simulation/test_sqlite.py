"""The adapter between the SQLite store and apsw does what `sqlite3` does."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOME = [f"tests/contract/test_{name}.py" for name in ("add", "mirror", "tables", "transition")]
ALL = pytest.param(
    ["tests/contract"], marks=pytest.mark.repeats("that the adapter passes the contract suite")
)


@pytest.mark.parametrize("paths", [SOME, ALL], ids=["some", "all"])
def test_adapter_passes_the_contract_suite(paths: list[str], tmp_path: Path) -> None:
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", f"--basetemp={tmp_path}/tests"]
    plugin = ["-p", "tests.simulation.apsw_everywhere", "-k", "sqlite"]
    played = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *plugin, *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert played.returncode == 0, played.stdout[-5000:]
