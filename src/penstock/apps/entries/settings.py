"""The settings of entries, and the names that other programs have for some of them."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from penstock import ConfigurationError
from penstock.apps.entries.entrytypes import EntryTypes, TypeSettings
from penstock.core.mismatch import mismatch

Seconds = Annotated[float, Meta(ge=0.1, le=86_400)]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How entries are embedded. Times are in seconds."""

    ALSO_CALLED: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "workers": ("CHL_NUM_EMBEDDING_WORKERS",),
        "batch_size": ("CHL_WORKER_BATCH_SIZE",),
        "poll_interval": ("CHL_WORKER_POLL_INTERVAL",),
        "retry_failed": ("CHL_QUEUE_RETRY_FAILED_ON_STARTUP",),
    }

    workers: Annotated[int, Meta(ge=0, le=64)] = 1
    """How many processes embed; 0 accepts entries and embeds none."""
    batch_size: Annotated[int, Meta(ge=1, le=1_000)] = 200
    """How many rows a process embeds and writes at a time."""
    poll_interval: Seconds = 1
    """How often rows of a process that fell silent are looked for; new ones wake it at once."""
    retry_failed: bool = False
    """Whether rows that failed are tried again when the server starts."""
    attempts: Annotated[int, Meta(ge=1, le=100)] = 1
    """How often a row is tried in all before it has failed; a killed process does not count."""
    retry_delay: Annotated[float, Meta(ge=0, le=86_400)] = 5
    """How long it rests before the next attempt; twice as long after each further one."""
    lease: Seconds = 15
    """How long after a kill of a process its rows are taken up again."""
    embedder: str = "wordllama"
    """What turns text into vectors, for a store that has no entries yet."""
    embedders: tuple[str, ...] = ()
    """Further ones that a rebuild may go over to; `wordllama`, `minilm` and the one above always.

    Others are not taken from a request: texts and the key of a service would be sent there.
    """
    types: dict[str, Any] | None = None
    """Further types of entries, each a section of the file: `[entries.types.NAME]`."""

    def check(self) -> EntryTypes:
        """The types of entries; raises `ConfigurationError` for what cannot work."""
        try:
            return EntryTypes.of(msgspec.convert(self.types or {}, dict[str, TypeSettings]))
        except msgspec.ValidationError as error:
            raise ConfigurationError(
                f"entries.types{mismatch(error, dict[str, TypeSettings])}"
            ) from error
