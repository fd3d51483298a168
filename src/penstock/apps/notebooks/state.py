"""Whose state folder it is that a notebook's folder contains.

A folder may come with one: a clone can carry it, with contents and links that somebody planted. It
is used only if this server made it, or has worked with it before. A random mark in it is noted in
the data folder, where nothing that a notebook contains can pretend it.
"""

import contextlib
import hashlib
import os
import re
import stat
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO

from penstock.apps.notebooks.configuration import Protection
from penstock.apps.notebooks.errors import sorting
from penstock.apps.notebooks.paths import STATE
from penstock.apps.notebooks.plain import is_plain, open_plain, replace_file

ASIDE = "aside"
"""The folder in a state folder with one that was there before, and is not used."""
_MARK = "mark"
_LENGTH = 32
_MARKS = re.compile(r"[0-9a-f]{32}")


def set_aside_if_foreign(
    root: Path, protection: Protection, lock: Callable[[], IO[str]]
) -> str | None:
    """Put a state folder aside that this server does not know; where it is then.

    `lock` raises where another server works with it.
    """
    state = root / STATE
    with sorting(STATE):
        if not os.path.lexists(state) or not stat.S_ISDIR(state.lstat().st_mode):
            return None  # a link is refused by who opens it
        mark = _mark(state)
        if mark is not None and mark == _noted(root, protection):
            return None
        if is_plain(f"{state}/lock"):
            lock().close()
        made = root / f"{STATE}-{uuid.uuid4().hex}"
        made.mkdir(0o700)
        state.rename(made / ASIDE)
        made.rename(state)
        return f"{STATE}/{ASIDE}"


def note_as_own(root: Path, protection: Protection) -> None:
    """Know the state folder of a notebook again, when it is removed and added."""
    state = root / STATE
    with sorting(STATE):
        mark = _mark(state)
        if mark is None:
            mark = uuid.uuid4().hex
            replace_file(f"{state}/{_MARK}", mark.encode())
        if mark != _noted(root, protection):
            note = _note_of(root, protection)
            note.parent.mkdir(parents=True, exist_ok=True)
            replace_file(str(note), mark.encode())


def _mark(state: Path) -> str | None:
    return _read(f"{state}/{_MARK}")


def _noted(root: Path, protection: Protection) -> str | None:
    return _read(str(_note_of(root, protection)))


def _note_of(root: Path, protection: Protection) -> Path:
    return protection.private / "states" / hashlib.sha256(os.fsencode(root)).hexdigest()[:24]


def _read(file: str) -> str | None:
    with contextlib.suppress(OSError, ValueError), os.fdopen(open_plain(file), "rb") as opened:
        text = opened.read(_LENGTH + 1).decode("ascii")
        return text if _MARKS.fullmatch(text) else None
    return None
