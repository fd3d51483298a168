"""Every line of a log in JSON is an object, whatever it tells of."""

import json
import os
import subprocess
import sys

import pytest

from penstock.logs import FORMAT

SCRIPT = """
import gc, logging, threading, warnings
from penstock.logs import set_up_child_logging

class Odd:
    def __del__(self):
        raise RuntimeError("from __del__")

def fail():
    raise ValueError("in a thread")

set_up_child_logging()
logging.getLogger("some").warning("two\\nlines")
warnings.warn("old and odd", UserWarning)
thread = threading.Thread(target=fail, name="mine")
thread.start()
thread.join()
Odd()
gc.collect()
raise SystemError("at the end")
"""


def output(kind: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("\\\\n", "\\n")],
        env={**os.environ, FORMAT: kind, "PYTHONWARNINGS": "default"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    return done.stderr.splitlines()


def test_warnings_and_uncaught_exceptions_are_objects_too() -> None:
    said = [json.loads(line) for line in output("json")]
    messages = [one["message"] for one in said]
    assert messages[0] == "two\nlines"
    for part in ("old and odd", "in thread mine", "Odd.__del__"):
        assert any(part in message for message in messages), part
    assert messages[-1] == "uncaught exception"
    errors = [one.get("error", "") for one in said]
    for part in ("in a thread", "from __del__", "at the end"):
        assert any(part in error for error in errors), part


def test_lines_for_people_stay_as_they_are() -> None:
    lines = output("text")
    assert lines[0] == "WARNING some: two"
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(lines[-1])
