"""What is asked of an indexing job, and what of it changes its result."""

import hashlib
from typing import Literal

import msgspec

COLLECTION = "default"
"""The collection of requests that name none."""

Operation = Literal["index", "add"]
Strategy = Literal["ast_aware", "text_based"]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which files of a folder are indexed."""

    recursive: bool = True
    include_code: bool = False
    languages: tuple[str, ...] = ()
    """Of source code; without any, all that are known."""
    include: tuple[str, ...] = ()
    """Patterns of files that are taken besides documents and code, as in a `.gitignore`."""
    exclude: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    """Names of presets; with any, only their files are taken."""


class Cutting(msgspec.Struct, frozen=True, kw_only=True):
    """How files are cut into chunks; with another, all of them are cut and embedded again."""

    size: int = 512
    overlap: int = 50
    strategy: Strategy = "ast_aware"


class Watching(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a folder is kept indexed from now on; None leaves that as it is."""

    on: bool | None = None
    debounce: float | None = None


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """An indexing job, whole: the arguments of its task.

    `folder` is what is indexed, or for `add` the folder around `paths`. With `force`, files that
    have not changed are embedded again as well.
    """

    folder: str
    operation: Operation = "index"
    paths: tuple[str, ...] = ()
    collection: str = COLLECTION
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
