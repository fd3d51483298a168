"""What a process knows of a notebook that it has."""

import os
from datetime import UTC, datetime
from pathlib import Path

from penstock.apps.notebooks.books import Book
from penstock.apps.notebooks.tables import Notebook
from tests.apps.notebooks.support import place, protection_for


def test_own_write_is_recognised_until_somebody_does_anything_to_it(tmp_path: Path) -> None:
    book = Book(
        Notebook(1, "garden", str(tmp_path), False, {}, datetime.now(UTC)), protection_for(tmp_path)
    )
    file = tmp_path / "a.md"
    assert not book.is_own("a.md")
    book.wrote("a.md", place(book.tree, book.tree.stage(b"one"), "a.md"))
    assert book.is_own("a.md")
    written = file.stat()
    while file.stat().st_ctime_ns == written.st_ctime_ns:  # that clock goes by milliseconds
        with file.open("r+") as opened:
            opened.write("two")
        os.utime(file, ns=(written.st_atime_ns, written.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (3, written.st_mtime_ns)
    assert not book.is_own("a.md")
    book.wrote("a.md", place(book.tree, book.tree.stage(b"three"), "a.md"))
    assert book.is_own("a.md")
    file.unlink()
    assert not book.is_own("a.md")
    book.close()
