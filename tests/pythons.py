"""Interpreters of other versions that this machine has, for tests that repeat others with them."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SUPPORTED = (11, 12, 13)
"""Minor versions of Python 3, as the classifiers of the package say."""


@cache
def interpreter(minor: int) -> Path | None:
    """Python of this minor version that runs and can make environments."""
    code = (
        "import ensurepip, sys, venv;"
        f"assert sys.version_info[:2] == (3, {minor}); print(sys.executable)"
    )
    for path in _candidates(f"python3.{minor}"):
        ran = subprocess.run([path, "-c", code], check=False, capture_output=True, text=True)
        if ran.returncode == 0:
            return Path(ran.stdout.strip())
    return None


def _candidates(name: str) -> Iterator[Path]:
    """Programs of this name; that of PATH may be a shim of pyenv that refuses to run."""
    if found := shutil.which(name):
        yield Path(found)
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)  # tests have a HOME of their own
    pyenv = Path(os.environ.get("PYENV_ROOT") or home / ".pyenv") / "versions"
    uv = Path(
        os.environ.get("UV_PYTHON_INSTALL_DIR") or home / ".local" / "share" / "uv" / "python"
    )
    for folder in (pyenv, uv):
        yield from sorted(folder.glob(f"*/bin/{name}"), reverse=True)
