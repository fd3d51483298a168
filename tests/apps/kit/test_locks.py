"""Locks on files, between processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.apps.kit import Busy, locked

HOLD = """
import sys
from pathlib import Path
from penstock.apps.kit import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "lock"
    with locked(file), pytest.raises(Busy, match="folder/lock"), locked(file, wait=False):
        pytest.fail("two hold the lock")
    with locked(file, wait=False):
        pass


def test_lock_ends_with_the_process_that_holds_it(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(Busy), locked(file, wait=False):
            pytest.fail("two hold the lock")
        holder.kill()
    with locked(file):  # waits until the kill has taken effect
        pass
