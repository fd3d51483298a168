"""The settings of ingestion."""

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock import ConfigurationError

Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Bytes = Annotated[int, Meta(ge=1, le=10_000_000_000)]
Seconds = Annotated[float, Meta(ge=0.1, le=31_536_000)]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How items are ingested. Times are in seconds."""

    roots: tuple[str, ...] = ()
    """The folders that files may be read from; by default where the server was started."""
    workers: Annotated[int, Meta(ge=0, le=64)] = 1
    """How many processes of the server work on items; 0 accepts items and runs none."""
    concurrency: Count = 200
    """How many items such a process has under way; what they have to embed is put together."""
    embedder: str = "wordllama"
    """What turns text into vectors."""
    vectors: str = "faiss"
    """What finds the nearest: `faiss`, or a server: `chroma:URL`, `qdrant:URL`."""
    max_file_size: Bytes = 5_000_000
    """Bytes; larger files are rejected, and passed by in folders."""
    retry_delay: Annotated[float, Meta(ge=0, le=86_400)] = 5
    """How long an item rests after an attempt that failed; twice as long after each further one."""
    lease: Seconds = 300
    """How long after a kill of its worker an item is taken up again."""
    leases: tuple[str, ...] = ()
    """The same for some types: `folder=900,library=1800`."""
    promote_after: Annotated[tuple[Seconds, ...], Meta(max_length=10)] = (300, 900)
    """A waiting item gains a priority at each of these ages; none turns that off."""
    urls: tuple[str, ...] = ()
    """What the URLs of libraries may begin with: `https://docs.example.org/`; none by default."""
    url_timeout: Seconds = 60
    """How long it may take to fetch one."""
    max_archive_size: Bytes = 200_000_000
    """Bytes of an archive, and of all that is in it."""
    max_archive_files: Count = 20_000
    """Files of an archive."""

    def check(self) -> None:
        """Raise `ConfigurationError` for what cannot work."""
        kind, _, url = self.vectors.partition(":")
        if self.vectors != "faiss" and (kind not in ("chroma", "qdrant") or not url):
            raise ConfigurationError(
                f"ingest.vectors is {self.vectors!r}: expected faiss, chroma:URL or qdrant:URL; "
                "a folder of Chroma or Qdrant can be open in one process only"
            )
        self.leases_by_type()
        for url in self.urls:
            if not url.startswith(("https://", "http://")) or url.count("/") < 3:  # noqa: PLR2004 - those of the scheme, and one behind the host
                raise ConfigurationError(
                    f"ingest.urls has {url!r}: expected such as https://docs.example.org/"
                )

    def leases_by_type(self) -> dict[str, float]:
        """The lease of each type that has its own."""
        from penstock.apps.ingest.items import ItemType

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
