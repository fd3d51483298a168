"""Forked children of a test."""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable

import pytest

from tests.environment import SOON


def fork(check: Callable[[], object]) -> int:
    """Run this in a forked child, whose exit code tells whether it went well."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            check()
            code = 0
        except BaseException:  # noqa: BLE001 - nothing of pytest may run on in the child
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def ended_well(child: int) -> None:
    """Wait for a child, but not for ever."""
    pause = threading.Event()
    for _ in range(SOON * 100):
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        pause.wait(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail("the forked child did not end")
