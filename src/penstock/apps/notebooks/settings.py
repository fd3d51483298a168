"""The settings of notebooks."""

import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock import Retention

AuthorText = Annotated[str, Meta(max_length=300, pattern=r"^[^<>\x00-\x1f]+ <[^<>\x00-\x1f]*>$")]
Seconds = Annotated[float, Meta(ge=0, le=86_400)]
Retained = Annotated[float, Meta(ge=60, le=315_360_000)]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Where notebooks are, and how they are kept. Times are in seconds."""

    root: str | None = None
    """The folder for new notebooks; by default `notebooks` in the data folder."""
    allowed: str = ""
    """Folders whose subfolders may become notebooks, separated by `:`."""
    max_file_size: Annotated[int, Meta(ge=1, le=10_000_000_000)] = 50_000_000
    """In bytes; a larger content is refused with 413."""
    max_queue: Annotated[int, Meta(ge=1, le=10_000_000)] = 100_000
    """How many operations may wait; more are refused with 429."""
    max_retries: Annotated[int, Meta(ge=1, le=100)] = 3
    """How often an operation is attempted in total if its errors are transient."""
    retry_delay: Seconds = 1
    """The delay before the second attempt; it doubles with each further attempt."""
    completed_event_retention: Retained | None = None
    """How long operations are kept after they end; by default as long as the server keeps jobs."""
    failed_event_retention: Retained | None = None
    """The same for failed operations."""
    lease: Annotated[float, Meta(ge=0.1, le=86_400)] = 10
    """How long after a crash of the server an operation that was running is run again."""
    commit_interval: Seconds = 5
    """How long after the first uncommitted change a commit is made."""
    commit_paths: Annotated[int, Meta(ge=1, le=1_000_000)] = 100
    """When this many paths have changed, they are committed at once."""
    author: AuthorText | None = None
    """The author of commits, as `NAME <ADDRESS>`; by default the configured user of git."""
    trusted_filters: Annotated[str, Meta(max_length=1_000, pattern=r"^[A-Za-z0-9._, -]*$")] = ""
    """Filters that attributes may name, such as `lfs`, separated by commas.

    Their commands come from the git configuration of the server's user.
    """
    watch: bool = True
    """Whether changes that others make to files are detected."""
    scan_interval: Annotated[float, Meta(ge=0.1, le=86_400)] = 300
    """How often all files of a watched notebook are compared with what is known of them."""

    @property
    def retention(self) -> Retention:
        """How long operations are kept after they end; zero where the server decides."""
        return Retention(
            finished=timedelta(seconds=self.completed_event_retention or 0),
            failed=timedelta(seconds=self.failed_event_retention or 0),
        )


def folder_for_new(settings: Settings, data: Path) -> Path:
    """Return the folder for new notebooks."""
    return Path(settings.root).absolute() if settings.root else data / "notebooks"


def is_watched(settings: Settings, *, own: bool | None) -> bool:
    """Whether a notebook with this setting of its own, or None, is watched."""
    return settings.watch if own is None else own


def allowed_roots(settings: Settings, data: Path) -> list[Path]:
    """Return the folders that may contain notebooks, with links resolved."""
    given = [Path(one) for one in settings.allowed.split(os.pathsep) if one]
    return [one.resolve() for one in (folder_for_new(settings, data), *given)]


def trusted_filters(settings: Settings) -> frozenset[str]:
    """Return the names of the filters that may run."""
    return frozenset(re.split(r"[, ]+", settings.trusted_filters)) - {""}
