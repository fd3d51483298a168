"""The settings of the ingest application, and the folders that they allow it to read."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock import ConfigurationError
from penstock.apps.ingest.items import ItemType, Rejected, is_under
from penstock.apps.kit import Count, Packages, Processes, RetryDelay, Seconds, check_vectors

Bytes = Annotated[int, Meta(ge=1, le=10_000_000_000)]

PACKAGES = Packages(
    "ingest", ("faiss", "numpy", "pathspec", "tokenizers", "tree_sitter", "wordllama")
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How items are ingested. Times are in seconds."""

    roots: tuple[str, ...] = ()
    """The folders from which files may be read; by default the server's working directory."""
    workers: Processes = 1
    """Worker processes of the server; with 0, it accepts items and runs none."""
    concurrency: Count = 200
    """Items that a worker process runs at a time; their texts are embedded in batches."""
    embedder: str = "wordllama"
    """The embedder."""
    vectors: str = "faiss"
    """The vector store: `faiss`, or a server: `chroma:URL`, `qdrant:URL`."""
    max_file_size: Bytes = 5_000_000
    """Bytes; larger files are rejected, and skipped in folders."""
    retry_delay: RetryDelay = 5
    """The delay after a failed attempt; it doubles after each further one."""
    lease: Seconds = 300
    """How long after its worker was killed an item runs again."""
    leases: tuple[str, ...] = ()
    """The same for some types: `folder=900,library=1800`."""
    promote_after: Annotated[tuple[Seconds, ...], Meta(max_length=10)] = (300, 900)
    """The ages at which the priority of a waiting item rises by one; empty for never."""
    urls: tuple[str, ...] = ()
    """The allowed prefixes of library URLs: `https://docs.example.org/`; none by default."""
    url_timeout: Seconds = 60
    """How long a download may take."""
    max_archive_size: Bytes = 200_000_000
    """The largest size of an archive, and of its contents, in bytes."""
    max_archive_files: Count = 20_000
    """The largest number of files in an archive."""

    def check(self) -> None:
        """Raise `ConfigurationError` for settings that cannot work."""
        check_vectors("ingest.vectors", self.vectors)
        self.leases_by_type()
        for url in self.urls:
            if not url.startswith(("https://", "http://")) or url.count("/") < 3:  # noqa: PLR2004 - two of the scheme, one after the host
                raise ConfigurationError(
                    f"ingest.urls has {url!r}: expected a URL such as https://docs.example.org/"
                )

    def leases_by_type(self) -> dict[str, float]:
        """Return the leases of the types that have their own."""
        found = {}
        for one in self.leases:
            kind, _, seconds = one.partition("=")
            try:
                found[ItemType(kind).value] = msgspec.convert(seconds, Seconds, strict=False)
            except (ValueError, msgspec.ValidationError) as error:
                raise ConfigurationError(
                    f"ingest.leases has {one!r}: expected a type and its seconds, as folder=900; "
                    f"types are {', '.join(ItemType)}"
                ) from error
        return found


class Roots:
    """The folders that may be read; symbolic links are resolved, so that none leads out."""

    def __init__(self, roots: Sequence[str], data: Path) -> None:
        """`data` is the server's own data folder, which may never be read."""
        self.roots = tuple(os.path.realpath(root) for root in roots or (str(Path.cwd()),))
        self.data = os.path.realpath(data)

    def check(self, path: str) -> None:
        """Raise `Rejected` for a path that may not be read."""
        real = os.path.realpath(path)
        if not any(real == root or is_under(real, root) for root in self.roots):
            raise Rejected(
                f"{path} is outside the folders that may be read: {', '.join(self.roots)}; "
                "PENSTOCK_INGEST_ROOTS sets them"
            )
        if real == self.data or is_under(real, self.data):
            raise Rejected(f"{path} is inside the server's data folder")
