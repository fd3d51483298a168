"""Where a run took place: figures of two machines do not compare."""

import os
import platform
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

IN_MEMORY = ("tmpfs", "ramfs")


def describe(folder: Path) -> Mapping[str, str]:
    """Return what to know of the machine beside the figures."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count()),
        "load": f"{os.getloadavg()[0]:.1f}",
        "file system": filesystem(folder),
    }


def versions(packages: Iterable[str]) -> Mapping[str, str]:
    """Return the versions of what is measured."""
    found = {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def filesystem(folder: Path) -> str:
    """The type of the file system a folder is on, as far as the system tells."""
    mounts: dict[Path, str] = {}
    with suppress(FileNotFoundError):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, point, kind, *_ = line.split()
            mounts[Path(point)] = kind
    places = (folder.resolve(), *folder.resolve().parents)
    return next((mounts[place] for place in places if place in mounts), "unknown")
