"""What the database of a collection records of its files and folders."""

from pathlib import Path

from penstock.apps.indexing.files import Files, known_folders
from penstock.apps.indexing.job import Watching
from tests.apps.indexing.support import Indexed, asked, write


def test_totals_of_folders_follow_their_files(indexed: Indexed, folder: Path) -> None:
    write(folder, {"a.md": "alpha", "sub/b.md": "beta", "sub/c.md": "gamma"})
    indexed.run(asked(folder))
    indexed.run(asked(folder / "sub", force=True))
    with Files(indexed.folder) as files:
        totals = {Path(one.path).name: (one.files, one.chunks) for one in files.folders()}
    assert totals == {"project": (1, 1), "sub": (2, 2)}


def test_watching_stays_until_it_is_changed(indexed: Indexed, folder: Path) -> None:
    write(folder, {"a.md": "alpha"})
    for watching, expected in (
        (Watching(on=True, debounce=3), (True, 3)),
        (Watching(), (True, 3)),
        (Watching(on=False), (False, 3)),
    ):
        indexed.run(asked(folder, watching=watching))
        (found,) = known_folders(indexed.folder)
        assert (found.watched, found.debounce) == expected
