"""Where a run took place: figures of two machines do not compare."""

import os
import platform
import sqlite3
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

IN_MEMORY = ("tmpfs", "ramfs")


def describe(folder: Path) -> Mapping[str, str]:
    """Return what to know of the machine beside the figures."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{memory / 1024**3:.0f} GB",
        "load": f"{os.getloadavg()[0]:.1f}",
        "file system": filesystem(folder),
    }


def _processor() -> str:
    """The model of the processor, as far as the system tells."""
    with suppress(FileNotFoundError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def versions(packages: Iterable[str]) -> Mapping[str, str]:
    """Return the versions of what is measured, ours first."""
    found = {
        "penstock": version("penstock"),
        "commit": commit(Path(__file__).parent),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def commit(tree: Path) -> str:
    """Return the commit of a working tree, marked if the package differs; `unknown` without git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tree), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    try:
        found = git("rev-parse", "--short", "HEAD")
        changed = git("status", "--porcelain", "--", ":/src")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{found}-dirty" if changed else found


def filesystem(folder: Path) -> str:
    """The type of the file system a folder is on, as far as the system tells."""
    mounts: dict[Path, str] = {}
    with suppress(FileNotFoundError):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, point, kind, *_ = line.split()
            mounts[Path(point)] = kind
    places = (folder.resolve(), *folder.resolve().parents)
    return next((mounts[place] for place in places if place in mounts), "unknown")
