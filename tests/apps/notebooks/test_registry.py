"""What a process knows of a notebook that it has."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from penstock import ConfigurationError, Penstock
from penstock.apps.notebooks import Settings, install
from penstock.apps.notebooks.registry import OpenNotebook
from penstock.apps.notebooks.tables import Notebook
from penstock.server.app import Service
from penstock.server.authentication import Authenticator
from tests.apps.notebooks.support import Api, git, place, protection_for, served, working
from tests.environment import SOON


def test_own_write_is_recognised_until_somebody_does_anything_to_it(tmp_path: Path) -> None:
    notebook = OpenNotebook(
        Notebook(1, "garden", str(tmp_path), False, {}, datetime.now(UTC)), protection_for(tmp_path)
    )
    file = tmp_path / "a.md"
    assert not notebook.is_own("a.md")
    notebook.remember_write("a.md", place(notebook.tree, notebook.tree.stage(b"one"), "a.md"))
    assert notebook.is_own("a.md")
    written = file.stat()
    while file.stat().st_ctime_ns == written.st_ctime_ns:  # that clock goes by milliseconds
        with file.open("r+") as opened:
            opened.write("two")
        os.utime(file, ns=(written.st_atime_ns, written.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (3, written.st_mtime_ns)
    assert not notebook.is_own("a.md")
    notebook.remember_write("a.md", place(notebook.tree, notebook.tree.stage(b"three"), "a.md"))
    assert notebook.is_own("a.md")
    file.unlink()
    assert not notebook.is_own("a.md")
    notebook.close()


async def test_folder_with_files_becomes_a_notebook(tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "papers"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep/a.md").write_text("a")
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with served(url, tmp_path / "data", allowed=str(tmp_path / "mine")) as api:
        body = {"name": "papers", "path": str(folder), "git": False}
        await api("POST", "/notebooks", body, status=201)
        await api.work()
        await api.work()
        (file,) = (await api("GET", "/notebooks/papers/files"))["files"]
        assert file["path"] == "deep/a.md"
        for refused in (tmp_path, tmp_path / "other", "/", "relative"):
            await api("POST", "/notebooks", {"name": "x", "path": str(refused)}, status=422)
        inside = {"name": "x", "path": str(folder / "deep")}
        await api("POST", "/notebooks", inside, status=409)
        await api("DELETE", "/notebooks/papers", status=204)
        await api.work()
        await api("GET", "/notebooks/papers", status=404)
        assert (folder / "deep/a.md").exists()


async def test_notebook_that_is_there_already_is_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "roses/red").mkdir(parents=True)
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with served(url, tmp_path / "data", allowed=str(tmp_path)) as one:
        await one("POST", "/notebooks", {"name": "roses", "path": f"{home}/roses"}, status=201)
        await one.work()
        refused = await one("POST", "/notebooks", {"name": "red roses"}, status=422)
        assert "'red roses' is not a name for a notebook: letters" in refused["detail"]
        await one("PATCH", "/notebooks/roses", {"name": "../roses"}, status=422)
        for body, said in (
            ({"name": "garden"}, f"there is already a notebook 'garden', in {one.root}"),
            ({"name": "a", "path": f"{home}/roses"}, "is already notebook 'roses'"),
            ({"name": "a", "path": f"{home}/roses/red"}, "is inside notebook 'roses'"),
            ({"name": "a", "path": str(home)}, "contains notebook 'roses'"),
        ):
            assert said in (await one("POST", "/notebooks", body, status=409))["detail"]


async def test_notebook_that_was_removed_can_be_added_again(one: Api) -> None:
    await one.create("a.md", "one")
    await one.work()
    await one("DELETE", "/notebooks/garden", status=204)
    await one.work()
    body = {"name": "again", "path": str(one.root)}
    made = await one("POST", "/notebooks", body, status=201)
    await one.work()
    files = (await one("GET", "/notebooks/again/files"))["files"]
    assert [file["path"] for file in files] == ["a.md"]
    assert files[0]["notebook_id"] == made["id"]


async def test_settings_count_at_once_in_every_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with served(url, tmp_path / "data") as one, other_process(url, tmp_path) as other:
        await one.create("a.md", "one")
        await one.work()
        own = {"author": "Rose <rose@example.org>", "commit_interval": 0, "watch": True}
        changed = await other("PATCH", "/notebooks/garden", {"settings": own})
        assert changed["watched"] is True
        await one.work()  # what waited for the old interval does not wait any more
        assert git(one.root, "log", "--format=%an %ae") == "Rose rose@example.org\n"
        await one.create("b.md", "two")
        await one.work()
        assert git(one.root, "ls-files").split() == ["a.md", "b.md"]
        async with working(one):
            (one.root / "c.md").write_text("of a person")
            await known(one, "c.md")
        (watching,) = (task for task in asyncio.all_tasks() if "Watcher.run" in repr(task))
        await other("PATCH", "/notebooks/garden", {"settings": {"watch": False}})
        await one.work()
        await asyncio.wait([watching], timeout=30)
        assert watching.cancelled()


async def known(api: Api, path: str) -> None:
    """Wait until a file that somebody has put there is known."""
    seen = 0
    async with asyncio.timeout(SOON):
        while path not in await api.paths():
            seen = await api.app.wait(seen, 1)


@asynccontextmanager
async def other_process(url: str, folder: Path) -> AsyncIterator[Api]:
    """A process of the same server that serves requests and has no notebook."""
    app = Penstock(url)
    service = Service(app, [install(app, Settings(watch=False), folder / "data")])
    gate = Authenticator(app, open_without_tokens=True)
    service.guard(gate)
    transport = httpx.ASGITransport(app=service)
    async with (
        service.running(),
        gate.running(),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client,
    ):
        yield Api(client, app, folder / "data")


async def test_second_server_on_a_notebook_is_refused(one: Api, tmp_path: Path) -> None:
    other = Penstock(f"sqlite:///{tmp_path}/other.db")
    data = tmp_path / "data"
    application = install(other, Settings(watch=False), data)
    async with other, application.running():
        async with application.working():
            pass
        same = install(Penstock(one.app.url), Settings(watch=False), data)
        async with same.running():
            with pytest.raises(ConfigurationError, match="another server works on notebook"):
                async with same.working():
                    pass


async def test_store_without_tables_answers_why(tmp_path: Path) -> None:
    app = Penstock("memory://")
    application = install(app, Settings(), tmp_path)
    service = Service(app, [application])
    transport = httpx.ASGITransport(app=service)
    async with (
        service.running(),
        application.working(),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
    ):
        for path in ("/api/v1/notebooks", "/api/v1/events/metrics"):
            answer = await client.get(path)
            assert answer.status_code == 503
            assert "SQLite or PostgreSQL" in answer.json()["detail"]
