"""Finds links in a repository: through them git would read and write in another one.

It is asked at every use of a repository, which may have many thousands of refs and objects. So what
is known of a folder holds until the system notes a change of it.
"""

import os
import stat
import threading
import time
from typing import NamedTuple

_BELOW = frozenset({"objects", "refs", "logs"})
"""What git writes to, whatever the depth."""
_HARMLESS = frozenset({"hooks", "description", "lfs", "annex"})
"""What no command of the server's reads."""
_SETTLED = 2.0
"""Seconds after which a change of a folder has another time than the one before it."""
_MOST = 100_000


class _Looked(NamedTuple):
    inode: int
    changed: int
    link: str | None
    folders: tuple[str, ...]


_known: dict[str, _Looked] = {}
_busy = threading.Lock()


def link_within(directory: str) -> str | None:
    """A link, or another thing that is neither file nor folder, in the directory of a repository.

    None if there is none. `HEAD` may be a link to a branch, as old versions of git made it.
    """
    top = _look(directory)
    if top.link is not None:
        return top.link
    waiting = [one for one in top.folders if os.path.basename(one) in _BELOW]
    while waiting:
        looked = _look(waiting.pop())
        if looked.link is not None:
            return looked.link
        waiting += looked.folders
    return None


def _look(folder: str) -> _Looked:
    """What is in a folder; nothing if it has gone meanwhile."""
    try:
        about = os.lstat(folder)
        known = _known.get(folder)
        if known is not None and known[:2] == (about.st_ino, about.st_ctime_ns):
            return known
        with os.scandir(folder) as found:
            entries = list(found)
    except OSError:
        return _Looked(0, 0, None, ())
    is_settled = time.time() - about.st_ctime > _SETTLED
    links = (one.path for one in entries if _is_foreign(one))
    folders = tuple(one.path for one in entries if one.is_dir(follow_symlinks=False))
    looked = _Looked(about.st_ino, about.st_ctime_ns, min(links, default=None), folders)
    with _busy:
        if not is_settled:
            _known.pop(folder, None)
        else:
            if len(_known) >= _MOST:
                _known.clear()
            _known[folder] = looked
    return looked


def _is_foreign(entry: "os.DirEntry[str]") -> bool:
    if entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False):
        return False
    if entry.name in _HARMLESS:
        return False
    try:
        if not stat.S_ISLNK(os.lstat(entry.path).st_mode):
            return True
        target = os.readlink(entry.path)
    except FileNotFoundError:
        return False
    names = target.split("/")
    return entry.name != "HEAD" or names[:2] != ["refs", "heads"] or ".." in names
