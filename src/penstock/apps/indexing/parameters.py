"""What is asked of an indexing job, and what of it changes its result.

Arguments are decoded into these types when a job runs: what a route would refuse does not fit.
Whether a path may be read is up to `Places.check`, at that moment.
"""

import hashlib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

COLLECTION = "default"
"""The collection of requests that name none."""

Collection = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
"""A name that is that of a folder as well."""

Operation = Literal["index", "add"]
Strategy = Literal["ast_aware", "text_based"]
_Names = Annotated[tuple[Annotated[str, Meta(max_length=100)], ...], Meta(max_length=100)]
_Patterns = Annotated[tuple[Annotated[str, Meta(max_length=1_000)], ...], Meta(max_length=1_000)]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which files of a folder are indexed."""

    recursive: bool = True
    include_code: bool = False
    languages: _Names = ()
    """Of source code; without any, all that are known."""
    include: _Patterns = ()
    """Patterns of files that are taken besides documents and code, as in a `.gitignore`."""
    exclude: _Patterns = ()
    types: _Names = ()
    """Names of presets; with any, only their files are taken."""


class Cutting(msgspec.Struct, frozen=True, kw_only=True):
    """How files are cut into chunks; with another, all of them are cut and embedded again."""

    size: Annotated[int, Meta(ge=16, le=8_192)] = 512
    overlap: Annotated[int, Meta(ge=0, le=4_096)] = 50
    strategy: Strategy = "ast_aware"


class Watching(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a folder is kept indexed from now on; None leaves that as it is."""

    on: bool | None = None
    debounce: Annotated[float, Meta(ge=0.1, le=3_600)] | None = None


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """An indexing job, whole: the arguments of its task.

    `folder` is what is indexed, or for `add` the folder around `paths`. With `force`, files that
    have not changed are embedded again as well.
    """

    folder: Annotated[str, Meta(min_length=1)]
    operation: Operation = "index"
    paths: Annotated[tuple[str, ...], Meta(max_length=1_001)] = ()
    collection: Collection = COLLECTION
    choice: Choice = Choice()
    cutting: Cutting = Cutting()
    watching: Watching = Watching()
    metadata_file: str | None = None
    force: bool = False
    source: Literal["manual", "auto"] = "manual"

    @property
    def dedupe(self) -> str:
        """The same for all jobs that would do the same, whoever asks for them."""
        same = msgspec.structs.replace(self, source="manual", force=False)
        return hashlib.sha256(msgspec.json.encode(same, order="sorted")).hexdigest()
