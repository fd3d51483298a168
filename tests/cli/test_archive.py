import gzip
import json
from pathlib import Path

from penstock import Penstock, run_sync
from penstock.leases import Done, Failed
from tests.cli.support import ONCE, Shell, enqueue, run_one, states


def test_prune(app: Penstock, shell: Shell, tmp_path: Path) -> None:
    enqueue(app, 3, retry=ONCE)
    run_one(app, Done())
    run_one(app, Failed("no"))
    archive = tmp_path / "old.jsonl.gz"
    assert shell("prune").stdout == "Removed 0 jobs.\n"
    assert shell("prune", "--older-than", "0s", "--dry-run").stdout == "Would remove 2 jobs.\n"
    assert shell.json("prune", "--older-than", "0s", "--state", "failed")["changed"] == 1
    command = ("prune", "--older-than", "0s", "--archive", str(archive))
    assert shell(*command).stdout == "Removed 1 job.\n"
    assert states(app) == ["pending"]
    header, job = gzip.decompress(archive.read_bytes()).splitlines()
    assert json.loads(header)["kind"] == "archive"
    assert json.loads(job)["job"]["id"] == 1


def test_export_and_import_into_a_store_that_is_made_for_it(
    app: Penstock, shell: Shell, tmp_path: Path
) -> None:
    enqueue(app, 2, queue="mail")
    enqueue(app, 1)
    file, new = str(tmp_path / "jobs.jsonl.gz"), f"sqlite:///{tmp_path}/new.db"
    assert shell("export", file, "--queue", "mail").stdout == "Exported 2 jobs.\n"
    assert "already exists" in shell.error("export", file, code=2)
    assert shell("import", file, "--dry-run", "--store", new).stdout == "There are 2 jobs.\n"
    assert not (tmp_path / "new.db").exists()
    assert shell("import", file, "--store", new).stdout == "Imported 2 jobs.\n"
    again = shell.json("import", file, "--store", new)
    assert (again["changed"], again["skipped"]) == (0, 2)
    assert shell("import", file).stdout.startswith("Imported 0 jobs; 2 were imported before")


def test_import_of_something_else(app: Penstock, shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hello\n")
    assert "not an export or archive" in shell.error("import", str(tmp_path / "x"), code=2)
    missing = shell.error("import", str(tmp_path / "y"), code=2)
    assert missing.endswith(
        "No such file or directory; name an export or an archive that may be read"
    )
    other = Penstock("memory://")
    run_sync(other.archive.export(tmp_path / "jobs.jsonl"))
    command = ("import", str(tmp_path / "jobs.jsonl"), "--store", "memory://")
    assert "exists only inside" in shell.error(*command, code=2)
