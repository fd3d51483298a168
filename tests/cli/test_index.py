"""`penstock index` and `penstock search`, with a server and without one."""

import signal
from pathlib import Path

import pytest

from penstock.cli import application, index
from tests.apps.indexing.support import Embeddings, serving, write
from tests.apps.support import Commands
from tests.cli.support import COMMAND, started


@pytest.fixture
def shell(tmp_path: Path, embeddings: Embeddings) -> Commands:
    folder = tmp_path / "project"
    folder.mkdir()
    write(
        folder,
        {
            "docs/retry.md": "# Retry\n\nA failed job is tried again with a growing pause.",
            "docs/pump.py": "def pump(water):\n    return water + 1\n",
            "docs/bin.md": b"\0",
        },
    )
    return Commands(
        folder,
        PENSTOCK_INDEXING_EMBEDDER=embeddings.configuration,
        PENSTOCK_INDEXING_WATCH_DEBOUNCE="0.1",
    )


def test_folder_is_indexed_and_searched_without_a_server(shell: Commands) -> None:
    assert "Nothing found" in shell("search", "water")
    said = shell("index", "docs")
    assert "docs: 2 files indexed (2 chunks), 0 unchanged, 0 removed, 1 skipped\n" in said
    assert "  1 binary" in said
    assert shell.json("index", "docs")["result"]["files_unchanged"] == 2
    assert "retry.md:1-3  1.00" in shell("search", "pause of a failed job")
    found = shell.json("search", "water job", "--type", "code", "-k", "3")["results"]
    assert [Path(one["source"]).name for one in found] == ["pump.py"]
    assert shell.json("index", "docs", "--no-code")["result"]["files_deleted"] == 1
    assert shell.json("search", "water", "--mode", "bm25")["results"] == []
    refused = shell("index", "docs", "--type", "films", code=2)
    assert "include_types: 'films' is unknown" in refused
    refused = shell("index", "docs", "--chunk-size", "1", code=2)
    assert "chunk_size: must be an integer from 16 to 8,192" in refused
    (shell.folder / "empty").mkdir()
    assert "nothing to index" in shell("index", "empty", code=4)


def test_id_that_is_printed_leads_to_the_job(shell: Commands) -> None:
    name = shell.json("index", "docs")["id"]
    assert name == "job_1"
    store = ("--store", "sqlite:///penstock-data/penstock.db")
    assert "indexing.run" in shell("jobs", name, *store)
    assert "Job 1" in shell("explain", name, *store)


def test_server_does_it_when_it_is_named(shell: Commands, embeddings: Embeddings) -> None:
    with serving(shell.folder, embeddings) as server:
        asked = shell.json("index", "docs", "--no-wait", "--url", server.url)
        assert asked["job_id"] == "job_1"
        assert server.finished("job_1")["status"] == "done"
        assert "2 files indexed" in shell("index", "docs", "--force", "--url", server.url)
        assert "pump.py:1-2" in shell("search", "water", "--url", server.url)
        refused = shell("index", "/usr", "--url", server.url, code=2)
        assert "PENSTOCK_ALLOW_EXTERNAL_PATHS" in refused
    unreachable = shell("search", "water", "--url", server.url, code=5)
    assert server.url in unreachable


def test_folder_is_kept_indexed_until_ctrl_c(
    shell: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PENSTOCK_INDEXING_EMBEDDER", "PENSTOCK_INDEXING_WATCH_DEBOUNCE"):
        monkeypatch.setenv(name, shell.environment[name])
    with started((*COMMAND, "index", "docs", "--watch"), shell.folder) as process:
        process.wait_for("2 files indexed")
        process.wait_for("2 unchanged")  # it is watched from here on
        write(shell.folder, {"docs/new.md": "a heron"})
        process.wait_for("1 files indexed")
        process.send(signal.SIGINT)
        assert process.wait() == 130
    assert "new.md" in shell("search", "heron")


def test_missing_packages_are_named(
    shell: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from click.testing import CliRunner

    monkeypatch.setattr(application, "_PACKAGES", ("no_such_package",))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(index.search, ["water"])
    assert "the indexing application needs no_such_package" in str(done.exception)
