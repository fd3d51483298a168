import asyncio
import os
from pathlib import Path

from penstock import JobQuery, State
from tests.apps.ingest.support import Bench


async def test_a_folder_becomes_items_with_patterns_depth_and_ignore_rules(table: Bench) -> None:
    for name in ("a.py", "b.rs", "c.txt", "sub/d.py", "sub/deep/e.py", "sub/skip/f.py", "out.py"):
        table.write(f"p/{name}", f"text of {name}")
    table.write("p/.gitignore", "out.py\n")
    table.write("p/g.py", b"\0\1")
    table.write(os.fsdecode(b"p/caf\xe9.py"), "x")
    job = await table.run(
        "folder",
        "ingest",
        {
            "folder_path": str(table.folder / "p"),
            "recursive_depth": 1,
            "patterns": ["*.py", "*.rs"],
            "ignore_patterns": ["skip/"],
        },
    )
    names = {str(Path(path).relative_to(table.folder / "p")) for path in table.chunks()}
    assert names == {"a.py", "b.rs", "sub/d.py"}
    assert job.returned["files"] == 3
    assert job.returned["passed_by"] == {"binary": 1, "name is not UTF-8": 1}
    assert await table.app.bulk(JobQuery(parent=job.id)).tally() == {State.DONE: 3}


async def test_a_folder_removes_missing_files(either: Bench) -> None:
    kept, gone = either.write("p/a.md", "kept"), either.write("p/b.md", "gone")
    folder = {"folder_path": str(either.folder / "p")}
    await either.run("folder", "ingest", folder)
    assert set(either.chunks()) == {kept, gone}
    await asyncio.to_thread(Path(gone).unlink)
    assert (await either.run("folder", "scan", folder)).returned["files_removed"] == 1
    assert set(either.chunks()) == {kept}
    await either.run("folder", "delete", folder)
    assert either.chunks() == {}


async def test_a_scan_leaves_its_files_for_later(table: Bench) -> None:
    table.write("p/a.md", "text")
    job = await table.run("folder", "scan", {"folder_path": str(table.folder / "p")}, priority=7)
    [child] = await table.app.find(JobQuery(parent=job.id))
    assert child.priority == 0


async def test_a_project_reports_its_type(table: Bench) -> None:
    table.write("p/pyproject.toml", "[project]\n")
    table.write("p/.git/config", '[remote "origin"]\n\turl = https://me:secret@example.org/p.git\n')
    job = await table.run("project", "ingest", {"project_root": str(table.folder / "p")})
    assert job.returned["project_type"] == "python"
    assert job.returned["git_remote"] == "https://example.org/p.git"
    assert list(table.chunks()) == [str(table.folder / "p/pyproject.toml")]
    table.write("p/Cargo.toml", "[package]\n")
    job = await table.run("project", "scan", {"project_root": str(table.folder / "p")})
    assert job.returned["project_type"] == "mixed"
