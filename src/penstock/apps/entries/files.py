"""Files that were sent to be imported: kept until the import has ended."""

import re
import time
import uuid
from contextlib import suppress
from pathlib import Path

from penstock.apps.entries.entries import Entries
from penstock.apps.entries.formats import FORMATS, UnreadableFile

KEPT = 86_400
"""Seconds after which a file goes that no import has removed: who sent it was cut off."""
_NAME = re.compile(rf"[0-9a-f]{{32}}\.({'|'.join(FORMATS)})")


def new_file(entries: Entries, kind: str) -> Path:
    """Where a file of this format is put; what was forgotten there goes."""
    if kind not in FORMATS:
        raise UnreadableFile(f"there is no format {kind!r:.80}; known are {', '.join(FORMATS)}")
    folder = _folder(entries)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        with suppress(OSError):
            if old.stat().st_mtime < time.time() - KEPT:
                old.unlink()
    return folder / f"{uuid.uuid4().hex}.{kind}"


def sent_file(entries: Entries, name: str) -> Path:
    """The file of this name; raises `UnreadableFile` for one that was not sent."""
    path = _folder(entries) / name
    if not _NAME.fullmatch(name) or not path.is_file():
        raise UnreadableFile(f"there is no file {name!r:.80} that was sent to be imported")
    return path


def _folder(entries: Entries) -> Path:
    return entries.shelves.folder / "imports"
