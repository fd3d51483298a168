"""The payloads of items, by type: what each has to say, and what in it tells items apart."""

import hashlib
import os.path
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

Text = Annotated[str, Meta(min_length=1, max_length=1_000)]
Path = Annotated[str, Meta(min_length=1, max_length=4_096)]
Pattern = Annotated[str, Meta(min_length=1, max_length=1_000)]
Patterns = Annotated[list[Pattern], Meta(max_length=1_000)]
_LONGEST_NAME = 255
"""Bytes that the name of a file may have; asking the system about a longer one is an error."""
Hash = Annotated[str, Meta(pattern=r"^(sha256:)?[0-9a-fA-F]{64}\Z")]


class Payload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an item says besides its type and operation."""

    def problems(self, _op: str | None, /) -> Iterator[tuple[str, str]]:
        """What is wrong with fields that are right by themselves."""
        yield from ()

    def identity(self) -> Mapping[str, Any]:
        """What makes two items the same, where tenant, collection, type and so on are."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @property
    def place(self) -> str:
        """What an item touches: items of the same place take turns, in their order."""
        raise NotImplementedError


class Content(Payload, frozen=True, kw_only=True):
    """A text. Without a `document_id` it is known by its own digest."""

    content: Annotated[str, Meta(max_length=800_000)] | None = None
    source_type: Text = "scratchbook"
    main_tag: Text | None = None
    full_tag: Text | None = None
    document_id: Text | None = None

    def problems(self, op: str | None, /) -> Iterator[tuple[str, str]]:
        """A text is needed, or for its deletion its name."""
        if op == "delete":
            if self.content is None and self.document_id is None:
                yield "content", "is missing, and document_id as well"
        elif self.content is None or not self.content.strip():
            yield "content", "is missing or blank"

    @property
    def place(self) -> str:
        """The name that the text is found under."""
        if self.document_id is not None:
            return self.document_id
        return f"content:{hashlib.sha256((self.content or '').encode()).hexdigest()[:16]}"


class File(Payload, frozen=True, kw_only=True):
    """A file. `file_hash` is the SHA-256 of its content, when it was enqueued."""

    file_path: Path
    file_type: Text | None = None
    file_hash: Hash | None = None
    size_bytes: Annotated[int, Meta(ge=0, le=2**62)] | None = None

    def problems(self, _op: str | None, /) -> Iterator[tuple[str, str]]:
        """The path has to be whole."""
        yield from path_problems("file_path", self.file_path)

    def identity(self) -> Mapping[str, Any]:
        """The path and the content, not what is said about them."""
        digest = None if self.file_hash is None else self.file_hash.removeprefix("sha256:").lower()
        return {"file_path": self.place, "file_hash": digest}

    @property
    def place(self) -> str:
        """Its path."""
        return normal(self.file_path)


class Folder(Payload, frozen=True, kw_only=True):
    """A folder. Without `patterns`, all text files in it count."""

    folder_path: Path
    recursive: bool = True
    recursive_depth: Annotated[int, Meta(ge=0, le=1_000)] | None = None
    patterns: Patterns = []
    ignore_patterns: Patterns = []

    def problems(self, _op: str | None, /) -> Iterator[tuple[str, str]]:
        """The path has to be whole, the patterns such as a `.gitignore` has."""
        yield from path_problems("folder_path", self.folder_path)
        yield from pattern_problems("patterns", self.patterns)
        yield from pattern_problems("ignore_patterns", self.ignore_patterns)

    @property
    def place(self) -> str:
        """Its path."""
        return normal(self.folder_path)


class Project(Payload, frozen=True, kw_only=True):
    """A folder that is a project; what is not said of it is looked up there."""

    project_root: Path
    git_remote: Text | None = None
    project_type: Text | None = None
    patterns: Patterns = []
    ignore_patterns: Patterns = []

    def problems(self, _op: str | None, /) -> Iterator[tuple[str, str]]:
        """The path has to be whole, the patterns such as a `.gitignore` has."""
        yield from path_problems("project_root", self.project_root)
        yield from pattern_problems("patterns", self.patterns)
        yield from pattern_problems("ignore_patterns", self.ignore_patterns)

    @property
    def place(self) -> str:
        """Its path."""
        return normal(self.project_root)


class Library(Payload, frozen=True, kw_only=True):
    """The documentation of a library: a folder, an archive or a URL."""

    library_name: Annotated[str, Meta(pattern=r"^[^/\s][^/\0]{0,199}\Z")]
    library_version: Annotated[str, Meta(pattern=r"^[^/\s][^/\0]{0,99}\Z")] | None = None
    source_url: Path | None = None

    def problems(self, op: str | None, /) -> Iterator[tuple[str, str]]:
        """Where the documentation is has to be said, except to delete it."""
        if op != "delete" and self.source_url is None:
            yield "source_url", "is missing: a folder, an archive, or a URL that is allowed"
        if self.source_url is not None and "://" not in self.source_url:
            yield from path_problems("source_url", self.source_url)

    @property
    def place(self) -> str:
        """The folder that its documents seem to be in."""
        version = "" if self.library_version is None else f"@{self.library_version}"
        return f"library:{self.library_name}{version}"


class DeleteTenant(Payload, frozen=True, kw_only=True):
    """A tenant, of whom nothing is left."""

    tenant_id_to_delete: Annotated[str, Meta(min_length=1, max_length=200)]
    reason: Text | None = None

    def identity(self) -> Mapping[str, Any]:
        """Whoever asks for it, and why."""
        return {"tenant_id_to_delete": self.tenant_id_to_delete}

    @property
    def place(self) -> str:
        """All that there is."""
        return ""


class DeleteDocument(Payload, frozen=True, kw_only=True):
    """A document by its path or id; and parts of documents by theirs."""

    document_id: Path
    point_ids: Annotated[list[Path], Meta(max_length=10_000)] = []

    @property
    def place(self) -> str:
        """What the document is found under."""
        return normal(self.document_id)


class Rename(Payload, frozen=True, kw_only=True):
    """A file or folder that has another path now."""

    old_path: Path
    new_path: Path
    is_folder: bool = False

    def problems(self, _op: str | None, /) -> Iterator[tuple[str, str]]:
        """Two whole paths, neither inside of the other."""
        yield from path_problems("old_path", self.old_path)
        yield from path_problems("new_path", self.new_path)
        old, new = normal(self.old_path), normal(self.new_path)
        if old == new:
            yield "new_path", "is the old one"
        elif is_under(new, old) or is_under(old, new):
            yield "new_path", "lies inside of the old one, or around it"

    @property
    def place(self) -> str:
        """Where it was."""
        return normal(self.old_path)


PAYLOADS: Mapping[str, type[Payload]] = {
    "content": Content,
    "file": File,
    "folder": Folder,
    "project": Project,
    "library": Library,
    "delete_tenant": DeleteTenant,
    "delete_document": DeleteDocument,
    "rename": Rename,
}


def normal(path: str) -> str:
    """A path as it is compared: without `.`, `..` and doubled slashes; other names stay."""
    if not path.startswith("/"):
        return path
    return "/" + os.path.normpath(path).lstrip("/")


def is_under(path: str, folder: str) -> bool:
    """Whether a path lies below a folder."""
    return path.startswith(folder.rstrip("/") + "/")


def path_problems(field: str, path: str) -> Iterator[tuple[str, str]]:
    """Why a path cannot be one on this machine."""
    if not path.startswith("/"):
        yield field, "expected an absolute path"
    names = path.encode("utf-8", "surrogatepass").split(b"/")
    if max(map(len, names)) > _LONGEST_NAME:
        yield field, f"has a name of more than {_LONGEST_NAME} bytes"


def pattern_problems(field: str, patterns: list[str]) -> Iterator[tuple[str, str]]:
    """Which of these are no patterns."""
    from penstock.vectors.walking import spec

    for pattern in patterns:
        try:
            spec([pattern])
        except ValueError as error:
            yield field, str(error)
