"""Items: their types, operations, payloads, priorities and idempotency keys.

`checked` reports everything that is wrong with an item, field by field.
"""

import hashlib
import json
import os.path
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from penstock.apps.kit import NAME_LIMIT, PathText, has_long_name, is_package_missing, mismatch

Named = TypeVar("Named", bound=StrEnum)


class Rejected(Exception):
    """An item that cannot be ingested, now or later; the message says why."""


class InvalidItem(ValueError):
    """An item that cannot be stored; `problems` maps fields to what is wrong with them."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        self.problems = dict(problems)
        super().__init__("; ".join(f"{field}: {text}" for field, text in problems.items()))


# Payloads

Text = Annotated[str, Meta(min_length=1, max_length=1_000)]
Patterns = Annotated[list[Text], Meta(max_length=1_000)]
Hash = Annotated[str, Meta(pattern=r"^(sha256:)?[0-9a-fA-F]{64}\Z")]


class Payload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The data of an item that depends on its type."""

    def problems(self, _op: str | None, /) -> Iterator[tuple[str, str]]:
        """Yield what is wrong with fields that are valid on their own."""
        yield from ()

    def identity(self) -> Mapping[str, Any]:
        """Return the part of the idempotency key that comes from the payload."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @property
    def place(self) -> str:
        """The path that an item changes; items of the same place run one at a time, in order."""
        raise NotImplementedError


class Content(Payload, frozen=True, kw_only=True):
    """A text. Without a `document_id`, its digest identifies it."""

    content: Annotated[str, Meta(max_length=800_000)] | None = None
    source_type: Text = "scratchbook"
    main_tag: Text | None = None
    full_tag: Text | None = None
    document_id: Text | None = None

    def problems(self, op: str | None, /) -> Iterator[tuple[str, str]]:
        """Require a text, or for its deletion its ID."""
        if op == "delete":
            if self.content is None and self.document_id is None:
                yield "content", "is required, unless document_id is given"
        elif self.content is None or not self.content.strip():
            yield "content", "must be given and must not be blank"

    @property
    def place(self) -> str:
        """The ID of the text, or one derived from its digest."""
        if self.document_id is not None:
            return self.document_id
        return f"content:{hashlib.sha256((self.content or '').encode()).hexdigest()[:16]}"


class File(Payload, frozen=True, kw_only=True):
    """A file. `file_hash` is the SHA-256 of its content when it was enqueued."""

    file_path: PathText
    file_type: Text | None = None
    file_hash: Hash | None = None
    size_bytes: Annotated[int, Meta(ge=0, le=2**62)] | None = None

    def problems(self, _op: str | None, /) -> Iterator[tuple[str, str]]:
        """Require an absolute path."""
        yield from path_problems("file_path", self.file_path)

    def identity(self) -> Mapping[str, Any]:
        """Return the path and the hash of the content only."""
        digest = None if self.file_hash is None else self.file_hash.removeprefix("sha256:").lower()
        return {"file_path": self.place, "file_hash": digest}

    @property
    def place(self) -> str:
        """The normalised path."""
        return normal(self.file_path)


class Folder(Payload, frozen=True, kw_only=True):
    """A folder. Without `patterns`, all its text files are ingested."""

    folder_path: PathText
    recursive: bool = True
    recursive_depth: Annotated[int, Meta(ge=0, le=1_000)] | None = None
    patterns: Patterns = []
    ignore_patterns: Patterns = []

    def problems(self, _op: str | None, /) -> Iterator[tuple[str, str]]:
        """Require an absolute path and patterns in the syntax of `.gitignore`."""
        yield from path_problems("folder_path", self.folder_path)
        yield from pattern_problems("patterns", self.patterns)
        yield from pattern_problems("ignore_patterns", self.ignore_patterns)

    @property
    def place(self) -> str:
        """The normalised path."""
        return normal(self.folder_path)


class Project(Payload, frozen=True, kw_only=True):
    """A project folder; the type and the Git remote are detected unless given."""

    project_root: PathText
    git_remote: Text | None = None
    project_type: Text | None = None
    patterns: Patterns = []
    ignore_patterns: Patterns = []

    def problems(self, _op: str | None, /) -> Iterator[tuple[str, str]]:
        """Require an absolute path and patterns in the syntax of `.gitignore`."""
        yield from path_problems("project_root", self.project_root)
        yield from pattern_problems("patterns", self.patterns)
        yield from pattern_problems("ignore_patterns", self.ignore_patterns)

    @property
    def place(self) -> str:
        """The normalised path."""
        return normal(self.project_root)


class Library(Payload, frozen=True, kw_only=True):
    """The documentation of a library: a folder, an archive or a URL."""

    library_name: Annotated[str, Meta(pattern=r"^[^/\s][^/\0]{0,199}\Z")]
    library_version: Annotated[str, Meta(pattern=r"^[^/\s][^/\0]{0,99}\Z")] | None = None
    source_url: PathText | None = None

    def problems(self, op: str | None, /) -> Iterator[tuple[str, str]]:
        """Require the source of the documentation, except to delete it."""
        if op != "delete" and self.source_url is None:
            yield "source_url", "is required: a folder, an archive, or an allowed URL"
        if self.source_url is not None and "://" not in self.source_url:
            yield from path_problems("source_url", self.source_url)

    @property
    def place(self) -> str:
        """The virtual folder of its documents."""
        version = "" if self.library_version is None else f"@{self.library_version}"
        return f"library:{self.library_name}{version}"


class DeleteTenant(Payload, frozen=True, kw_only=True):
    """A tenant whose collections and items are all deleted."""

    tenant_id_to_delete: Annotated[str, Meta(min_length=1, max_length=200)]
    reason: Text | None = None

    def identity(self) -> Mapping[str, Any]:
        """Return the tenant only, whatever the reason."""
        return {"tenant_id_to_delete": self.tenant_id_to_delete}

    @property
    def place(self) -> str:
        """Everything."""
        return ""


class DeleteDocument(Payload, frozen=True, kw_only=True):
    """A document by its path or ID, and chunks of any documents by their IDs."""

    document_id: PathText
    point_ids: Annotated[list[PathText], Meta(max_length=10_000)] = []

    @property
    def place(self) -> str:
        """The path or ID of the document."""
        return normal(self.document_id)


class Rename(Payload, frozen=True, kw_only=True):
    """A file or folder that was renamed."""

    old_path: PathText
    new_path: PathText
    is_folder: bool = False

    def problems(self, _op: str | None, /) -> Iterator[tuple[str, str]]:
        """Require two absolute paths, neither inside the other."""
        yield from path_problems("old_path", self.old_path)
        yield from path_problems("new_path", self.new_path)
        old, new = normal(self.old_path), normal(self.new_path)
        if old == new:
            yield "new_path", "must differ from old_path"
        elif is_under(new, old) or is_under(old, new):
            yield "new_path", "must not be inside old_path or contain it"

    @property
    def place(self) -> str:
        """The old path."""
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
    """Normalise an absolute path: remove `.`, `..` and repeated slashes."""
    if not path.startswith("/"):
        return path
    return "/" + os.path.normpath(path).lstrip("/")


def is_under(path: str, folder: str) -> bool:
    """Return whether a path is below a folder."""
    return path.startswith(folder.rstrip("/") + "/")


def path_problems(field: str, path: str) -> Iterator[tuple[str, str]]:
    """Yield why a path cannot exist."""
    if not path.startswith("/"):
        yield field, "must be an absolute path"
    if has_long_name(path):
        yield field, f"contains a name of more than {NAME_LIMIT} bytes"


def pattern_problems(field: str, patterns: list[str]) -> Iterator[tuple[str, str]]:
    """Yield which patterns are invalid.

    A server without the packages accepts them: the worker checks items again.
    """
    try:
        from penstock.vectors import parse_patterns
    except ImportError as error:
        if not is_package_missing(error):
            raise
        return
    for pattern in patterns:
        try:
            parse_patterns([pattern])
        except ValueError as error:
            yield field, str(error)


# Items


class ItemType(StrEnum):
    """What an item is about."""

    CONTENT = "content"
    FILE = "file"
    FOLDER = "folder"
    PROJECT = "project"
    LIBRARY = "library"
    DELETE_TENANT = "delete_tenant"
    DELETE_DOCUMENT = "delete_document"
    RENAME = "rename"


class Operation(StrEnum):
    """What an item does."""

    INGEST = "ingest"
    UPDATE = "update"
    DELETE = "delete"
    SCAN = "scan"


_WRITES = frozenset({Operation.INGEST, Operation.UPDATE, Operation.DELETE})
_WALKS = frozenset({Operation.INGEST, Operation.DELETE, Operation.SCAN})

MATRIX: Mapping[ItemType, frozenset[Operation]] = {
    ItemType.CONTENT: _WRITES,
    ItemType.FILE: _WRITES,
    ItemType.FOLDER: _WALKS,
    ItemType.PROJECT: _WALKS,
    ItemType.LIBRARY: _WRITES,
    ItemType.DELETE_TENANT: frozenset({Operation.DELETE}),
    ItemType.DELETE_DOCUMENT: frozenset({Operation.DELETE}),
    ItemType.RENAME: frozenset({Operation.UPDATE}),
}
"""The operations that each type allows."""

PRIORITIES: Mapping[str, int] = {
    "immediate": 10,
    "cli": 9,
    "content": 8,
    "active": 7,
    "normal": 5,
    "background": 3,
    "library": 1,
    "deferred": 0,
}
"""Names for priorities, by purpose."""

DEFAULT_PRIORITIES: Mapping[ItemType, int] = {
    ItemType.CONTENT: PRIORITIES["content"],
    ItemType.FOLDER: PRIORITIES["background"],
    ItemType.PROJECT: PRIORITIES["background"],
    ItemType.LIBRARY: PRIORITIES["library"],
}
"""The default priorities of types for which it is not `normal`."""

BRANCH = "main"
MAX_RETRIES = 3
PAYLOAD_LIMIT = 900_000
"""The largest payload, and the largest metadata, in bytes of JSON."""
_NAME_LIMIT = 200
_MOST_RETRIES = 100
_DEEPEST = 32
_FIELDS = (
    *("item_type", "op", "tenant_id", "collection", "branch", "priority", "payload", "metadata"),
    "max_retries",
)


class CollectionName(NamedTuple):
    """The tenant, name and branch that identify a collection."""

    tenant_id: str
    collection: str
    branch: str


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A checked item. `priority` is from 0 to 10; higher runs first."""

    item_type: ItemType
    op: Operation
    tenant_id: str
    collection: str
    payload: Mapping[str, Any]
    branch: str = BRANCH
    priority: int = PRIORITIES["normal"]
    metadata: Mapping[str, Any] = {}
    max_retries: int = MAX_RETRIES

    @property
    def typed(self) -> Payload:
        """The payload as an instance of its class."""
        return msgspec.convert(self.payload, PAYLOADS[self.item_type])

    @property
    def collection_name(self) -> CollectionName:
        """The collection of the item."""
        return CollectionName(self.tenant_id, self.collection, self.branch)

    @property
    def idempotency_key(self) -> str:
        """The key of all items that do the same: type, operation, and a digest."""
        what = {
            **self.collection_name._asdict(),
            "item_type": self.item_type.value,
            "op": self.op.value,
            "payload": self.typed.identity(),
        }
        digest = hashlib.sha256(canonical(what).encode()).hexdigest()
        return f"{self.item_type}:{self.op}:{digest[:32]}"


def canonical(value: Any) -> str:
    """Return canonical JSON: keys sorted on every level, no spaces, non-ASCII not escaped."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def checked(given: Mapping[str, Any]) -> Item:
    """Return the item that these fields describe; raise `InvalidItem` with all problems."""
    problems = dict(_problems(given))
    if problems:
        raise InvalidItem(problems)
    kind = ItemType(given["item_type"])
    payload = msgspec.convert(given["payload"], PAYLOADS[kind])
    priority = given.get("priority")
    if priority is None:
        priority = DEFAULT_PRIORITIES.get(kind, PRIORITIES["normal"])
    return Item(
        item_type=kind,
        op=Operation(given["op"]),
        tenant_id=given["tenant_id"],
        collection=given["collection"],
        branch=given.get("branch") or BRANCH,
        priority=PRIORITIES[priority] if isinstance(priority, str) else priority,
        payload=msgspec.to_builtins(payload),
        metadata=given.get("metadata") or {},
        max_retries=given.get("max_retries", MAX_RETRIES),
    )


def _problems(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for field in given:
        if field not in _FIELDS:
            yield field, "is not a known field"
    kind, op = _one_of(ItemType, given.get("item_type")), _one_of(Operation, given.get("op"))
    if kind is None:
        yield "item_type", f"must be one of {', '.join(ItemType)}"
    if op is None:
        yield "op", f"must be one of {', '.join(Operation)}"
    elif kind is not None and op not in MATRIX[kind]:
        allowed = ", ".join(sorted(MATRIX[kind]))
        yield "op", f"{op.value} is not allowed for items of type {kind.value}, only {allowed}"
    for field in ("tenant_id", "collection", "branch"):
        if (given.get(field) is not None or field != "branch") and not is_name(given.get(field)):
            yield field, f"must be 1 to {_NAME_LIMIT} printable characters"
    yield from _number_problems(given)
    yield from _payload_problems(given, kind, op)


def _number_problems(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    priority = given.get("priority")
    if isinstance(priority, str):
        if priority not in PRIORITIES:
            yield "priority", f"must be 0 to 10, or one of {', '.join(PRIORITIES)}"
    elif priority is not None and not _is_whole(priority, 10):
        yield "priority", f"must be 0 to 10, or one of {', '.join(PRIORITIES)}"
    if not _is_whole(given.get("max_retries", MAX_RETRIES), _MOST_RETRIES):
        yield "max_retries", f"must be an integer from 0 to {_MOST_RETRIES}"


def _payload_problems(
    given: Mapping[str, Any], kind: ItemType | None, op: Operation | None
) -> Iterator[tuple[str, str]]:
    payload, metadata = given.get("payload"), given.get("metadata")
    if not isinstance(payload, Mapping):
        yield "payload", "must be an object"
        return
    if metadata is not None and not isinstance(metadata, Mapping):
        yield "metadata", "must be an object"
        return
    if (problem := _not_json(payload)) is not None:
        yield "payload", problem
    elif kind is not None:
        for field, problem in payload_problems(kind, op, payload):
            yield f"payload.{field}", problem
    if metadata and (problem := _not_json(metadata)) is not None:
        yield "metadata", problem


def payload_problems(
    kind: ItemType, op: Operation | None, payload: Mapping[str, Any], *, strict: bool = True
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a payload, by field; unknown fields only if `strict`."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(PAYLOADS[kind])}
    values: dict[str, Any] = {}
    wrong = False
    for name, field in fields.items():
        if name in payload:
            try:
                values[field.name] = msgspec.convert(payload[name], field.type)
            except msgspec.ValidationError as error:
                wrong = True
                yield name, mismatch(error, field.type).text
        elif field.required:
            wrong = True
            yield name, "is required"
    for name in payload if strict else ():
        if name not in fields:
            yield name, f"is not a known field; choose from {', '.join(fields)}"
    if not wrong:
        yield from PAYLOADS[kind](**values).problems(None if op is None else op.value)


def is_name(value: object) -> bool:
    """Return whether a value can be the name of a tenant, a collection or a branch."""
    return isinstance(value, str) and 0 < len(value) <= _NAME_LIMIT and value.isprintable()


def _one_of(kind: type[Named], value: object) -> Named | None:
    return next((one for one in kind if one == value), None)


def _is_whole(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _not_json(value: Mapping[str, Any]) -> str | None:
    """Return why a value cannot be stored as JSON in every database; None if it can."""
    try:
        text = canonical(value)
        if json.loads(text) != value or not _is_shallow(value):
            return f"must be JSON of at most {_DEEPEST} levels"
        if "\\u0000" in text:
            return "must not contain NUL characters"
        if len(text.encode()) > PAYLOAD_LIMIT:
            return f"must be at most {PAYLOAD_LIMIT:,} bytes"
    except (TypeError, ValueError, RecursionError):
        return "must be JSON with valid Unicode text"
    if any(isinstance(one, float) and one != one for one in value.values()):  # noqa: PLR0124 - NaN differs from itself
        return "must be JSON"
    return None


def _is_shallow(value: Any, left: int = _DEEPEST) -> bool:
    if isinstance(value, Mapping):
        return left > 0 and all(_is_shallow(one, left - 1) for one in value.values())
    if isinstance(value, list):
        return left > 0 and all(_is_shallow(one, left - 1) for one in value)
    return True
