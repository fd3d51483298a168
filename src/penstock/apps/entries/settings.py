"""The settings of entries, and the environment variables that other programs use for them."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from penstock import ConfigurationError
from penstock.apps.entries.types import EntryTypes, TypeSettings
from penstock.apps.kit import Processes, RetryDelay, Seconds, mismatch


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How entries are embedded. Durations are in seconds."""

    ALSO_CALLED: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "workers": ("CHL_NUM_EMBEDDING_WORKERS",),
        "batch_size": ("CHL_WORKER_BATCH_SIZE",),
        "poll_interval": ("CHL_WORKER_POLL_INTERVAL",),
        "retry_failed": ("CHL_QUEUE_RETRY_FAILED_ON_STARTUP",),
    }

    workers: Processes = 1
    """How many processes embed; 0 accepts entries without embedding them."""
    batch_size: Annotated[int, Meta(ge=1, le=1_000)] = 200
    """How many rows a process embeds and writes at a time."""
    poll_interval: Seconds = 1
    """How often to look for rows of dead processes; new rows wake a process at once."""
    retry_failed: bool = False
    """Whether to embed failed rows again when the server starts."""
    attempts: Annotated[int, Meta(ge=1, le=100)] = 1
    """How many attempts a row has before it fails; a killed process does not count."""
    retry_delay: RetryDelay = 5
    """How long to wait before the second attempt; doubles after each further one."""
    lease: Seconds = 15
    """How long after a process was killed its rows are embedded by another."""
    embedder: str = "wordllama"
    """The embedder of a store that has no entries yet."""
    embedders: tuple[str, ...] = ()
    """Further embedders for a rebuild, besides `wordllama`, `minilm` and the one above.

    A request cannot name any other: it would send texts and an API key to an address of its choice.
    """
    types: dict[str, Any] | None = None
    """Further entry types, each in a section of the settings file: `[entries.types.NAME]`."""

    def check(self) -> EntryTypes:
        """Return the entry types; raise `ConfigurationError` for settings that cannot work."""
        try:
            return EntryTypes.of(msgspec.convert(self.types or {}, dict[str, TypeSettings]))
        except msgspec.ValidationError as error:
            raise ConfigurationError(
                f"entries.types{mismatch(error, dict[str, TypeSettings])}"
            ) from error
