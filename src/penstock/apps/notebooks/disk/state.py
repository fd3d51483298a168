"""The state folder of a notebook: which server it belongs to, and the lock in it.

A folder may already contain a state folder: a clone can carry one, with contents and links that
somebody planted. A server uses it only if it created it or has worked with it before. To recognise
it, the server writes a random mark into it and records the mark in the data folder, out of reach of
anything that a notebook contains.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import socket
import stat
import uuid
from pathlib import Path
from typing import IO

from penstock.apps.notebooks.disk.files import is_regular, open_regular, replace_file
from penstock.apps.notebooks.errors import Locked, os_errors
from penstock.apps.notebooks.paths import STATE
from penstock.apps.notebooks.repository.configuration import Protection

ASIDE = "aside"
"""The subfolder of a new state folder that holds an unknown one, which is not used."""
_MARK = "mark"
_LENGTH = 32
_MARKS = re.compile(r"[0-9a-f]{32}")


def set_aside_if_foreign(root: Path, name: str, protection: Protection) -> str | None:
    """Move a state folder aside that this server does not know, and return its new path.

    Raises `Locked` if another server works with it.
    """
    state = root / STATE
    with os_errors(STATE):
        if not os.path.lexists(state) or not stat.S_ISDIR(state.lstat().st_mode):
            return None  # a link is refused when it is opened
        mark = _mark(state)
        if mark is not None and mark == _recorded(root, protection):
            return None
        if is_regular(f"{state}/lock"):
            lock(root, name).close()
        new = root / f"{STATE}-{uuid.uuid4().hex}"
        new.mkdir(0o700)
        state.rename(new / ASIDE)
        new.rename(state)
        return f"{STATE}/{ASIDE}"


def record_as_own(root: Path, protection: Protection) -> None:
    """Record the state folder, so that it is recognised when the notebook is added again."""
    state = root / STATE
    with os_errors(STATE):
        mark = _mark(state)
        if mark is None:
            mark = uuid.uuid4().hex
            replace_file(f"{state}/{_MARK}", mark.encode())
        if mark != _recorded(root, protection):
            record = _record_of(root, protection)
            record.parent.mkdir(parents=True, exist_ok=True)
            replace_file(str(record), mark.encode())


def lock(root: Path, name: str) -> IO[str]:
    """Lock a notebook until the file is closed or the process ends; raises `Locked`."""
    with os_errors(f"{STATE}/lock"):
        handle = open_regular(f"{root}/{STATE}/lock", os.O_RDWR | os.O_CREAT)
    file = os.fdopen(handle, "a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read(200).strip() or "an unknown process"
        file.close()
        raise Locked(
            f"another server works on notebook {name!r} in {root}: {holder}; stop it, or serve the "
            "notebook there"
        ) from None
    except BaseException:
        file.close()
        raise
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file


def _mark(state: Path) -> str | None:
    return _read(f"{state}/{_MARK}")


def _recorded(root: Path, protection: Protection) -> str | None:
    return _read(str(_record_of(root, protection)))


def _record_of(root: Path, protection: Protection) -> Path:
    return protection.private / "states" / hashlib.sha256(os.fsencode(root)).hexdigest()[:24]


def _read(file: str) -> str | None:
    with contextlib.suppress(OSError, ValueError), os.fdopen(open_regular(file), "rb") as opened:
        text = opened.read(_LENGTH + 1).decode("ascii")
        return text if _MARKS.fullmatch(text) else None
    return None
