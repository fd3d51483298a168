"""Use a Chroma server from several indexes: `python -m tests.vectors.chroma_clients URL FOLDER`.

Runs in its own process, since Chroma's client leaves its connections to the garbage collector.
"""

import sys
from pathlib import Path

from penstock.vectors import Index, open_index
from tests.vectors.support import DIMENSIONS, item, vector


def near(index: Index) -> set[str]:
    return {hit.id for hit in index.search(vector("red fox"), mode="vector")}


def main(url: str, folder: Path) -> None:
    def opened(name: str) -> Index:
        return open_index(folder / name, DIMENSIONS, vectors=f"chroma:{url}")

    with opened("one") as one, opened("one") as same, opened("other") as other:
        one.upsert([item("one", "red fox"), item("two", "blue sea")])
        assert near(same) == {"one", "two"}
        same.delete(["one"])
        assert near(one) == {"two"}
        assert near(other) == set()
        other.close()
        one.clear()
        one.upsert([item("three")])
        assert near(same) == {"three"}
    with opened("one") as again:
        assert near(again) == {"three"}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
