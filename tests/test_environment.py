"""The tests run in the same environment, whatever environment they are started in."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import environment

ROOT = Path(__file__).parents[1]
HOSTILE = {
    "ALL_PROXY": "socks5://127.0.0.1:1",
    "CLICOLOR_FORCE": "1",
    "COLUMNS": "17",
    "FORCE_COLOR": "1",
    "GIT_DIR": "/nowhere",
    "HOME": "/nowhere",
    "HTTP_PROXY": "http://127.0.0.1:1",
    "LANG": "tr_TR.ISO-8859-9",
    "LC_ALL": "POSIX",
    "LINES": "3",
    "NO_COLOR": "1",
    "NO_PROXY": "example.org",
    "PENSTOCK_STORE": "sqlite:///nowhere.db",
    "PENSTOCK_TOKEN": "wrong",
    "PGHOST": "nowhere",
    "PYTHONOPTIMIZE": "2",
    "PYTHONWARNINGS": "ignore",
    "TERM": "dumb",
    "TZ": "Pacific/Kiritimati",
    "XDG_CONFIG_HOME": "/nowhere",
    "http_proxy": "http://127.0.0.1:1",
}
REPORT = """
import json, os, signal, subprocess, sys, time
from tests import environment
environment.prepare(begins=True)
child = "import signal, json; print(json.dumps([str(signal.getsignal(n)) for n in NUMBERS]))"
numbers = [int(n) for n in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)]
signals = subprocess.check_output([sys.executable, "-c", child.replace("NUMBERS", str(numbers))])
mask = os.umask(0)
environment.remove()
print(json.dumps({
    "environment": dict(os.environ), "umask": mask, "zone": time.tzname,
    "signals": json.loads(signals), "blocked": list(signal.pthread_sigmask(0, ())),
}))
"""


def report(variables: Mapping[str, str], *, hostile: bool) -> dict[str, Any]:
    """What a process and its children find after preparing, when started in this way."""

    def spoil() -> None:
        if hostile:
            os.umask(0o077)
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})

    found: dict[str, Any] = json.loads(
        subprocess.check_output(
            [sys.executable, "-c", REPORT],
            cwd=ROOT,
            env=dict(variables),
            preexec_fn=spoil,
        )
    )
    own = {"HOME", environment.RUN, "PIP_CONFIG_FILE", "PIP_PROXY"}
    found["environment"] = {
        name: value
        for name, value in found["environment"].items()
        if name not in own and not name.startswith("XDG_")
    }
    return found


def test_hostile_environment_leads_to_the_same_as_a_bare_one() -> None:
    assert report(HOSTILE, hostile=True) == report({}, hostile=False)


def test_tests_run_in_the_prepared_environment() -> None:
    assert {name: os.environ[name] for name in environment.FIXED} == environment.FIXED
    assert "NO_COLOR" not in os.environ
    assert Path.home().name.startswith("penstock-tests-")
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def test_programs_registries_and_knobs_of_the_caller_are_kept() -> None:
    caller = {
        "PATH": "/opt/bin",
        "PIP_INDEX_URL": "https://packages.example",
        "SSL_CERT_FILE": "/certificates",
        "PENSTOCK_CHROMIUM": "/opt/chromium",
        "https_proxy": "http://proxy.example",
        environment.RUN: os.environ[environment.RUN],
    }
    found = environment.cleaned(caller)
    assert {name: found[name] for name in caller if name != "https_proxy"} == {
        name: value for name, value in caller.items() if name != "https_proxy"
    }
    assert found["PIP_PROXY"] == "http://proxy.example"
    assert "https_proxy" not in found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="only Linux shows them")
def test_process_that_a_run_leaves_behind_is_found_and_ended() -> None:
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as left:
        found = environment.left_behind(patience=0)
        assert found[left.pid] == "/bin/cat"
        environment.end({left.pid: found[left.pid]})
        assert left.wait(60) == -signal.SIGKILL


def test_run_inside_of_a_run_leaves_the_processes_of_the_other_alone() -> None:
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as other:
        test = f"{__file__}::test_programs_registries_and_knobs_of_the_caller_are_kept"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
        inner = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert inner.returncode == 0, inner.stdout
        assert other.poll() is None
        assert Path.home().exists()
        other.kill()
