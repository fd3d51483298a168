"""The arguments of indexing jobs."""

from pathlib import Path

from msgspec.structs import replace

from penstock.apps.indexing.job import Choice, Cutting, Parameters, Watching
from tests.apps.indexing.support import asked


def test_dedupe_covers_all_that_changes_the_result(folder: Path) -> None:
    base = asked(folder)
    others = [
        replace(base, folder="/elsewhere"),
        replace(base, operation="add", paths=("/x",)),
        replace(base, collection="other"),
        replace(base, choice=Choice(include_code=True)),
        replace(base, choice=Choice(exclude=("x",))),
        replace(base, cutting=Cutting(size=64)),
        replace(base, watching=Watching(on=True)),
        replace(base, metadata_file="/m.json"),
    ]
    assert len({one.dedupe for one in (base, *others)}) == len(others) + 1
    assert replace(base, source="auto").dedupe == base.dedupe
    assert set(Parameters.__struct_fields__) == {
        "choice", "collection", "cutting", "folder", "force", "metadata_file", "operation",
        "paths", "source", "watching",
    }  # a new one has to be in the list above  # fmt: skip
