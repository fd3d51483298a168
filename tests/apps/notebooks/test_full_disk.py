"""A server whose disk takes no more, in truth: nothing of ours stands in for the system.

Everywhere a process can be forbidden to write large files. Where it may mount a file system of its
own, a small one is filled as well.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.apps.notebooks.support import files_of, git
from tests.server.support import Server

SIZE = 16_000_000
SOON = 60
MOUNTED = (
    *("unshare", "--user", "--map-root-user", "--mount", "sh", "-c"),
    f'mount -t tmpfs -o size={SIZE} tmpfs "$0" && exec "$@"',
)
GO_ON = "os.execv(sys.argv[2], sys.argv[2:])"
LIMITED = (
    *(sys.executable, "-c"),
    f"import os, sys, resource as r; r.setrlimit(r.RLIMIT_FSIZE, ({SIZE},) * 2); {GO_ON}",
)


def may_mount(folder: Path) -> bool:
    try:
        return (
            subprocess.run([*MOUNTED, str(folder), "true"], check=False, timeout=60).returncode == 0
        )
    except FileNotFoundError:  # not a Linux
        return False


class Small:
    """A server on a small disk, with one notebook."""

    def __init__(self, server: Server, root: Path) -> None:
        self.server = server
        self.root = root
        self.client = httpx.Client(base_url=f"{server.url}/api/v1", timeout=SOON)

    def __call__(self, method: str, path: str, *, status: int = 200, **options: Any) -> Any:
        answer = self.client.request(method, path, **options)
        assert answer.status_code == status, answer.text
        return answer.json()

    def write(self, path: str, content: bytes, *, status: int = 200, sync: str = "true") -> Any:
        place = f"/notebooks/garden/content?path={path}&sync={sync}&timeout={SOON}"
        return self("PUT", place, content=content, status=status)

    def check(self) -> None:
        """Nothing is left behind, and disk, metadata and HEAD agree."""
        self("POST", f"/events/commit?sync=true&timeout={SOON}", json={"notebook": "garden"})
        known = {
            one["path"]: one["size"] for one in self("GET", "/notebooks/garden/files")["files"]
        }
        assert {path: file.stat().st_size for path, file in files_of(self.root)} == known
        assert not list((self.root / ".penstock/staged").iterdir())
        copy = shutil.copytree(self.root, self.server.folder / "copy")  # git asks where it is
        assert git(copy, "status", "--porcelain") == ""
        assert sorted(git(copy, "ls-files").split()) == sorted(known)
        assert git(copy, "fsck", "--full", "--strict", "--no-dangling") == ""


class Working(Server):
    workers = 2


def small_server(folder: Path, *program: str) -> Iterator[Small]:
    disk = folder / "disk"
    disk.mkdir()
    settings = {"ROOT": str(disk), "RETRY_DELAY": "0.1", "MAX_RETRIES": "9"}
    environment = {f"PENSTOCK_NOTEBOOKS_{name}": value for name, value in settings.items()}
    server = Working(folder, PENSTOCK_APPS="notebooks", **environment)
    try:
        server.start(*program, str(disk), sys.executable, "-m", "penstock.cli.main")
        assert server.process is not None
        # What it has mounted is seen from where it stands.
        small = Small(server, Path(f"/proc/{server.process.pid}/root{disk}/garden"))
        with small.client:
            small("POST", "/notebooks", json={"name": "garden"}, status=201)
            yield small
    finally:
        server.kill()


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Small]:
    """Where no file may be large."""
    yield from small_server(tmp_path, *LIMITED)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    """Where all files together are not large, if that can be had; else where none is."""
    (tmp_path / "trial").mkdir()
    yield from small_server(tmp_path, *(MOUNTED if may_mount(tmp_path / "trial") else LIMITED))


def test_file_that_the_system_refuses_halfway_leaves_nothing(limited: Small) -> None:
    limited.write("a.md", b"one")
    refused = limited.write("a.md", bytes(SIZE + 1), status=422)
    assert "File too large" in refused["detail"]
    limited.write("b.md", b"two")
    limited.check()


def test_full_disk_is_said_and_what_was_accepted_waits_for_room(small: Small) -> None:
    small.write("a.md", b"one")
    ballast = small.root.parent / "ballast"
    ballast.write_bytes(bytes(SIZE - 4_000_000))
    refused = small.client.put(
        "/notebooks/garden/content?path=a.md", content=bytes(SIZE + 1), timeout=SOON
    )
    assert refused.status_code in (422, 503)
    assert refused.json()["detail"].endswith(("File too large", "No space left on device"))
    accepted = small.write("a.md", bytes(2_500_000), status=202, sync="false")
    place = f"/events/{accepted['event_id']}"
    deadline = time.monotonic() + SOON
    while (event := small("GET", place))["status"] != "completed" and not event["retry_count"]:
        assert time.monotonic() < deadline, event
        time.sleep(0.05)
    ballast.unlink()
    assert small("GET", f"{place}/wait?timeout={SOON}")["status"] == "completed"
    small.check()
