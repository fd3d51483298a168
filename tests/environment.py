"""The environment in which tests run: the same for everybody, whatever the caller's looks like.

Terminal, colours, locale, time zone, signals, umask, proxies, and the configuration of git, pip
and the XDG folders are set here, once for each process of a run. Child processes inherit them.
The caller's variables are kept only where they name programs, certificates and package
registries, or tune the tests.
"""

import contextlib
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

RUN = "_PENSTOCK_TEST_RUN"
"""Names the run in every process that it starts; not a name that commands take for a setting."""

SOON = 240
"""Seconds that a test waits for a condition before it fails.

Far longer than any condition takes on an idle machine, so that a busy one fails no test.
"""

FIXED = {
    # Before NumPy is imported: its threads would wait for cores that other tests have.
    "OPENBLAS_NUM_THREADS": "1",
    "COLORTERM": "truecolor",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "LC_ALL": "C.UTF-8",
    "NO_PROXY": "127.0.0.1,localhost,::1",
    "TERM": "xterm-256color",
    "TZ": "UTC",
}
KEPT = (
    "CI",
    "CURL_CA_BUNDLE",
    "DYLD_LIBRARY_PATH",
    "LD_LIBRARY_PATH",
    "LOGNAME",
    "NODE_EXTRA_CA_CERTS",
    "PATH",
    "PYENV_ROOT",
    "PYENV_VERSION",
    "REQUESTS_CA_BUNDLE",
    "SHELL",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "SystemRoot",
    "TMPDIR",
    "USER",
    "VIRTUAL_ENV",
    RUN,
)
KEPT_PREFIXES = ("PIP_", "PYTEST_XDIST_", "UV_")
TUNING = (
    "PENSTOCK_BROWSER_JOBS",
    "PENSTOCK_CHILD_KILLS",
    "PENSTOCK_CHROMIUM",
    "PENSTOCK_CRASH_ROUNDS",
    "PENSTOCK_CRASH_STRIDE",
    "PENSTOCK_MANY",
    "PENSTOCK_NOTEBOOK_KILLS",
    "PENSTOCK_NOTEBOOK_SEED",
    "PENSTOCK_OUTAGES",
    "PENSTOCK_PROOF_SECONDS",
    "PENSTOCK_SNAPSHOTS",
    "PENSTOCK_TEST_BACKLOG",
    "PENSTOCK_TEST_POSTGRES",
)
"""Variables that change what the tests do."""

_PROXIES = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
# Those that a shell or `nohup` may have set to be ignored, which children would inherit.
_SIGNALS = ("SIGHUP", "SIGQUIT", "SIGTERM", "SIGCHLD", "SIGUSR1", "SIGUSR2", "SIGTSTP", "SIGWINCH")


def prepare(*, begins: bool) -> None:
    """Give this process the environment of tests; call it before anything reads the old one.

    `begins` tells a run from its workers, which share its mark. A test may start a run of its own,
    which must not take the processes of this one for its own.
    """
    if begins:
        os.environ.pop(RUN, None)
    wanted = cleaned(os.environ)
    os.environ.clear()
    os.environ.update(wanted)
    time.tzset()
    os.umask(0o022)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in _SIGNALS:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def cleaned(caller: Mapping[str, str]) -> dict[str, str]:
    """The environment of tests that a caller's environment leads to."""
    kept = {
        name: value
        for name, value in caller.items()
        if name in KEPT or name in TUNING or name.startswith(KEPT_PREFIXES)
    }
    environment = {"PATH": os.defpath, RUN: uuid.uuid4().hex, **kept, **FIXED}
    _add_pip(environment, caller)
    return environment | _folders(environment)


def _add_pip(environment: MutableMapping[str, str], caller: Mapping[str, str]) -> None:
    """Let pip find its registry and proxy as before, although home and proxies are others."""
    home = Path(caller.get("HOME") or Path("~").expanduser())
    config = Path(caller.get("XDG_CONFIG_HOME") or home / ".config")
    for file in (config / "pip" / "pip.conf", home / ".pip" / "pip.conf"):
        if file.is_file():
            environment.setdefault("PIP_CONFIG_FILE", str(file))
    for name in _PROXIES:
        if caller.get(name):
            environment.setdefault("PIP_PROXY", caller[name])


def _folders(environment: Mapping[str, str]) -> dict[str, str]:
    """A home of the run's own, empty, shared by its processes; `remove` takes it away."""
    home = _home(environment[RUN])
    home.mkdir(mode=0o700, exist_ok=True)
    return {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local" / "share"),
        "XDG_STATE_HOME": str(home / ".local" / "state"),
    }


def _home(run: str) -> Path:
    return Path(tempfile.gettempdir()) / f"penstock-tests-{run}"


def remove() -> None:
    """Remove the home of the run, at its end."""
    shutil.rmtree(_home(os.environ[RUN]), ignore_errors=True)


def left_behind(patience: float) -> dict[int, str]:
    """The command lines of processes of this run that do not end, by their ids; Linux only.

    Processes that are about to end have `patience` seconds for it.
    """
    deadline = time.monotonic() + patience
    while (found := dict(_others())) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def end(processes: Mapping[int, str]) -> None:
    """End these processes of this run."""
    for number in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def _others() -> Iterator[tuple[int, str]]:
    mark = f"{RUN}={os.environ[RUN]}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to somebody else
            number = int(folder.name)
            if number != os.getpid() and mark in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if command:  # else it has ended, and nobody has asked for its exit status yet
                    yield number, command.strip()
