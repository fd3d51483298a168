"""Runs of the indexer: they do only what is necessary, and repeat what was interrupted."""

import os
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock import ConfigurationError
from penstock.apps.indexing.files import Files
from penstock.apps.indexing.job import (
    Choice,
    Cutting,
    NothingIndexed,
    NotVerified,
    Report,
)
from tests.apps.indexing.support import Indexed, Quiet, asked, write


def many(n: int) -> dict[str, str]:
    return {
        f"{i % 7}/{i:03}.md": f"# Title {i}\n\nword{i} text\n\n## Two\n\nmore{i}" for i in range(n)
    }


# Only what is needed


def test_unchanged_folder_is_done_with_no_new_chunk(indexed: Indexed, folder: Path) -> None:
    write(folder, {"a.md": "# A\n\none", "b.txt": "two"})
    first = indexed.run(asked(folder))
    assert (first.files_total, first.files_indexed, first.chunks_created) == (2, 2, 2)
    before = indexed.content()
    indexed.embedder.texts.clear()
    second = indexed.run(asked(folder))
    assert (second.files_unchanged, second.files_indexed, second.chunks_created) == (2, 0, 0)
    assert second.total_chunks == 2
    assert indexed.embedder.texts == []
    assert indexed.content() == before


def test_only_what_changed_is_embedded_and_what_is_gone_leaves(
    indexed: Indexed, folder: Path
) -> None:
    write(folder, {"a.md": "alpha", "b.md": "beta", "c.md": "gamma"})
    indexed.run(asked(folder))
    indexed.embedder.texts.clear()
    write(folder, {"b.md": "delta"})
    (folder / "c.md").unlink()
    report = indexed.run(asked(folder))
    assert indexed.embedder.texts == ["delta"]
    assert (report.files_indexed, report.files_unchanged, report.files_deleted) == (1, 1, 1)
    assert (report.chunks_removed, report.total_chunks) == (1, 2)
    assert indexed.paths() == {"a.md", "b.md"}
    with indexed.opened() as (_, index):
        assert [hit.text for hit in index.search(text="gamma", mode="bm25")] == []


def test_shorter_file_leaves_no_old_chunk(indexed: Indexed, folder: Path) -> None:
    write(folder, {"a.md": "# A\n\none\n\n# B\n\ntwo " + "word " * 600})
    indexed.run(asked(folder, cutting=Cutting(size=64, overlap=0)))
    write(folder, {"a.md": "short"})
    indexed.run(asked(folder, cutting=Cutting(size=64, overlap=0)))
    assert [chunk[5] for chunk in indexed.content()["chunks"]] == ["short"]


@pytest.mark.parametrize(
    "other", [{"cutting": Cutting(size=64, overlap=0)}, {"force": True}, {"metadata_file": "m"}]
)
def test_other_parameters_embed_all_again(
    indexed: Indexed, folder: Path, other: dict[str, Any]
) -> None:
    write(folder, {"a.md": "alpha", "m.json": '{"team": "red"}'})
    if "metadata_file" in other:
        other = {"metadata_file": str(folder / "m.json")}
    indexed.run(asked(folder))
    assert indexed.run(asked(folder, **other)).files_indexed == 1


def test_what_is_excluded_now_leaves(indexed: Indexed, folder: Path) -> None:
    write(folder, {"a.md": "alpha", "old/b.md": "beta"})
    indexed.run(asked(folder))
    indexed.run(asked(folder, choice=Choice(exclude=("old/",))))
    assert indexed.paths() == {"a.md"}


def test_metadata_of_the_folder_is_on_every_chunk(indexed: Indexed, folder: Path) -> None:
    write(folder, {"a.md": "alpha", "m.json": '{"team": "red"}', "bad.json": "[1]"})
    indexed.run(asked(folder, metadata_file=str(folder / "m.json")))
    with indexed.opened() as (_, index):
        (hit,) = index.search(text="alpha", mode="bm25")
    assert hit.metadata["team"] == "red"
    for file in ("bad.json", "none.json"):
        with pytest.raises(ConfigurationError):
            indexed.run(asked(folder, metadata_file=str(folder / file)))


def test_code_is_cut_by_definitions_or_as_text(indexed: Indexed, folder: Path) -> None:
    source = "".join(f"def f{i}():\n    return {'1 + ' * 60}1\n\n\n" for i in range(3))
    write(folder, {"a.py": source})
    choice = Choice(include_code=True)
    small = Cutting(size=150, overlap=0)
    indexed.run(asked(folder, choice=choice, cutting=small))
    assert {chunk[4] for chunk in indexed.content()["chunks"]} == {"f0", "f1", "f2"}
    indexed.run(asked(folder, choice=choice, cutting=replace(small, strategy="text_based")))
    assert {chunk[4] for chunk in indexed.content()["chunks"]} == {"a.py"}


def test_adding_removes_nothing(indexed: Indexed, folder: Path) -> None:
    write(folder, {"docs/a.md": "alpha", "docs/b.md": "beta", "notes/c.md": "gamma"})
    indexed.run(asked(folder / "docs"))
    (folder / "docs/a.md").unlink()
    paths = (str(folder / "docs/b.md"), str(folder / "notes"))
    report = indexed.run(asked(folder, operation="add", paths=paths))
    assert (report.files_total, report.files_deleted) == (2, 0)
    assert indexed.paths() == {"a.md", "b.md", "c.md"}


def test_file_below_two_folders_is_held_once(indexed: Indexed, folder: Path) -> None:
    write(folder, {"a.md": "alpha", "sub/b.md": "beta"})
    indexed.run(asked(folder / "sub"))
    indexed.run(asked(folder))
    assert len(indexed.content()["chunks"]) == 2
    (folder / "sub/b.md").unlink()
    indexed.run(asked(folder))  # the file belongs to the other folder, but it is gone
    assert indexed.paths() == {"a.md"}


# What is skipped


def test_unfit_files_are_skipped_with_the_reason(indexed: Indexed, folder: Path) -> None:
    write(folder, {"a.md": "alpha", "b.md": b"\0\1\2", "c.md": "x" * 10_001})
    (folder / "d.md").symlink_to(folder / "a.md")
    (folder / os.fsdecode(b"caf\xe9.md")).write_text("x")
    report = indexed.run(asked(folder))
    assert report.files_skipped == 4
    assert report.skipped == {
        "binary": 1,
        "larger than 10,000 bytes": 1,
        "name is not UTF-8": 1,
        "symbolic link": 1,
    }
    assert (str(folder / "b.md"), "binary") in report.examples
    assert report.files_total == 2  # those that were read


def test_text_in_other_encodings_is_read(indexed: Indexed, folder: Path) -> None:
    write(folder, {"a.md": "größe".encode("utf-16"), "b.md": "größe".encode("cp1252")})
    write(folder, {"c.md": "größe".encode("utf-8-sig")})
    indexed.run(asked(folder))
    assert {chunk[5] for chunk in indexed.content()["chunks"]} == {"größe"}


def test_file_that_becomes_a_link_while_the_job_runs_is_not_followed(
    indexed: Indexed, folder: Path, tmp_path: Path
) -> None:
    write(tmp_path / "outside", {"secret.md": "secret"})
    write(folder, {"a.md": "alpha", "b.md": "beta"})

    class Swap(Quiet):
        def progress(self, report: Report, done: int, path: str) -> None:
            if done == 1:
                (folder / "b.md").unlink()
                (folder / "b.md").symlink_to(tmp_path / "outside" / "secret.md")

    report = indexed.run(asked(folder), observer=Swap())
    assert report.files_skipped == 1
    assert [chunk[5] for chunk in indexed.content()["chunks"]] == ["alpha"]


# The job judges its own result


def test_empty_folder_fails_with_a_clear_reason(indexed: Indexed, folder: Path) -> None:
    with pytest.raises(NothingIndexed, match="no file matches the request"):
        indexed.run(asked(folder))


def test_folder_whose_files_gave_no_chunks_fails(indexed: Indexed, folder: Path) -> None:
    write(folder, {"a.md": "", "b.md": b"\0", "c.md": " \n"})
    with pytest.raises(NothingIndexed, match="contain no text: 1 skipped"):
        indexed.run(asked(folder))


def test_empty_folder_fails_also_beside_another_in_the_collection(
    indexed: Indexed, folder: Path
) -> None:
    write(folder, {"full/a.md": "alpha"})
    (folder / "empty").mkdir()
    indexed.run(asked(folder / "full"))
    with pytest.raises(NothingIndexed):
        indexed.run(asked(folder / "empty"))


def test_missing_chunks_are_noticed_and_made_again(indexed: Indexed, folder: Path) -> None:
    write(folder, {"a.md": "alpha", "b.md": "beta"})
    indexed.run(asked(folder))
    with indexed.opened() as (_, index):
        index.delete([f"{folder}/a.md#0"])
    with pytest.raises(NotVerified, match=r"the index has 1 chunks of .*, not 2"):
        indexed.run(asked(folder))
    assert indexed.run(asked(folder)).total_chunks == 2


# How far it is


def test_progress_counts_every_file_in_order(indexed: Indexed, folder: Path) -> None:
    write(folder, many(20))
    indexed.run(asked(folder), at_once=8)
    assert [done for done, _ in indexed.observer.told] == list(range(1, 21))
    paths = [path for _, path in indexed.observer.told]
    assert paths == sorted(paths)
    assert [report.files_indexed for _, report in indexed.observer.kept][:2] == [8, 16]


# After a crash


class Torn(BaseException):
    """The process is killed here."""


def tear(place: int) -> dict[str, Any]:
    """Raise at the n-th step of all that a run does to its two files."""
    steps = iter(range(10_000))

    def torn(real: Any) -> Any:
        def step(self: Any, *args: Any) -> None:
            if next(steps) == place:
                raise Torn
            real(self, *args)
            if next(steps) == place:
                raise Torn

        return step

    return {name: torn(getattr(Files, name)) for name in ("doubt", "keep", "forget", "note_done")}


@pytest.mark.parametrize("seed", range(12))
def test_index_that_was_torn_and_resumed_equals_one_made_in_one_go(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    torn, whole = Indexed(tmp_path / "torn"), Indexed(tmp_path / "whole")
    write(folder, many(60))
    if chance.random() < 0.5:  # there is an older state of it
        torn.run(asked(folder))
        for n in chance.sample(range(60), 20):
            path = folder / f"{n % 7}/{n:03}.md"
            path.unlink() if chance.random() < 0.5 else path.write_text(f"new{n}")
    job, observer, reports = 100, Quiet(), []
    for _ in range(200):
        after, before = observer.kept[-1] if observer.kept else ("", None)
        with monkeypatch.context() as patch:
            for name, step in tear(chance.randrange(12)).items():
                patch.setattr(Files, name, step)
            try:
                reports.append(
                    torn.run(
                        asked(folder),
                        after=after,
                        before=before,
                        job=job,
                        at_once=7,
                        observer=observer,
                    )
                )
                break
            except Torn:
                pass
    single = whole.run(asked(folder))
    assert reports, "it came to no end"
    assert torn.content() == whole.content()
    assert reports[0].total_chunks == single.total_chunks
    assert reports[0].files_total == single.files_total


@pytest.mark.parametrize("torn", ["keep", "forget"])
def test_file_that_is_as_before_after_a_crash_is_found_as_before(
    indexed: Indexed, folder: Path, monkeypatch: pytest.MonkeyPatch, torn: str
) -> None:
    """The index was written and the record of its files was not, so neither is trusted."""

    def kill(*_: object) -> None:
        raise Torn

    write(folder, {"a.md": "alpha", "b.md": "beta"})
    indexed.run(asked(folder))
    before = indexed.content()
    if torn == "keep":
        write(folder, {"a.md": "other"})
    else:
        (folder / "a.md").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(Files, torn, kill)
        with pytest.raises(Torn):
            indexed.run(asked(folder))
    assert indexed.content()["chunks"] != before["chunks"]
    write(folder, {"a.md": "alpha"})
    indexed.run(asked(folder))
    assert indexed.content() == before


def test_resumed_run_does_not_embed_again_what_was_done(indexed: Indexed, folder: Path) -> None:
    write(folder, many(20))

    class Killed(Quiet):
        def checkpoint(self, after: str, report: Report) -> None:
            super().checkpoint(after, report)
            raise Torn

    killed = Killed()
    with pytest.raises(Torn):
        indexed.run(asked(folder), job=1, at_once=10, observer=killed)
    done = len(indexed.embedder.texts)
    after, before = killed.kept[-1]
    report = indexed.run(asked(folder), job=1, after=after, before=before, at_once=10)
    assert done == 10
    assert len(indexed.embedder.texts) == len(set(indexed.embedder.texts)) == 20
    assert (report.files_indexed, report.files_total, report.chunks_created) == (20, 20, 20)
    assert indexed.observer.told[0][0] == 11


def test_forced_run_goes_on_as_well(indexed: Indexed, folder: Path) -> None:
    write(folder, many(20))
    indexed.run(asked(folder), job=1)
    indexed.embedder.texts.clear()

    class Killed(Quiet):
        def checkpoint(self, after: str, report: Report) -> None:
            raise Torn  # before it was told to anybody

    with pytest.raises(Torn):
        indexed.run(asked(folder, force=True), job=2, at_once=10, observer=Killed())
    report = indexed.run(asked(folder, force=True), job=2, at_once=10)
    assert len(indexed.embedder.texts) == 20
    assert report.files_indexed == 20
