"""What can be asked of the queue: types, operations, payloads, priorities and keys.

Whatever is wrong with an item is named, field by field; only a whole one becomes an `Item`.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from penstock.apps.ingest.payloads import PAYLOADS, Payload
from penstock.core.mismatch import mismatch

Named = TypeVar("Named", bound=StrEnum)


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
    """What is to be done with it."""

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
"""Which operations there are for each type."""

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
"""Names for priorities: what they are meant for."""

DEFAULT_PRIORITIES: Mapping[ItemType, int] = {
    ItemType.CONTENT: PRIORITIES["content"],
    ItemType.FOLDER: PRIORITIES["background"],
    ItemType.PROJECT: PRIORITIES["background"],
    ItemType.LIBRARY: PRIORITIES["library"],
}
"""Of types that are not `normal` where nothing is said."""

BRANCH = "main"
MAX_RETRIES = 3
PAYLOAD_LIMIT = 900_000
"""Bytes that payload and metadata may have together, as JSON."""
_NAME_LIMIT = 200
_MOST_RETRIES = 100
_DEEPEST = 32
_FIELDS = (
    *("item_type", "op", "tenant_id", "collection", "branch", "priority", "payload", "metadata"),
    "max_retries",
)


class InvalidItem(ValueError):
    """An item that cannot be stored; `problems` has what is wrong with each field."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        self.problems = dict(problems)
        super().__init__("; ".join(f"{field}: {text}" for field, text in problems.items()))


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """An item that was checked. `priority` is from 0 to 10, higher first."""

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
        """The payload as what it is."""
        return msgspec.convert(self.payload, PAYLOADS[self.item_type])

    @property
    def idempotency_key(self) -> str:
        """The same for all items that would do the same."""
        return key_of(self)


def key_of(item: Item) -> str:
    """The idempotency key: a digest of canonical JSON, behind what people look for in it.

    Canonical: sorted by name on every level, no spaces, no escapes for what is not ASCII.
    """
    what = {
        "tenant_id": item.tenant_id,
        "branch": item.branch,
        "collection": item.collection,
        "item_type": item.item_type.value,
        "op": item.op.value,
        "payload": item.typed.identity(),
    }
    digest = hashlib.sha256(canonical(what).encode()).hexdigest()
    return f"{item.item_type}:{item.op}:{digest[:32]}"


def canonical(value: Any) -> str:
    """JSON text that is the same for the same value, in whatever order it was put together."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def checked(given: Mapping[str, Any]) -> Item:
    """An item made of what was given; raises `InvalidItem` with all that is wrong."""
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
            yield field, "there is no such field"
    kind, op = _one_of(ItemType, given.get("item_type")), _one_of(Operation, given.get("op"))
    if kind is None:
        yield "item_type", f"expected one of {', '.join(ItemType)}"
    if op is None:
        yield "op", f"expected one of {', '.join(Operation)}"
    elif kind is not None and op not in MATRIX[kind]:
        allowed = ", ".join(sorted(MATRIX[kind]))
        yield "op", f"there is no {op.value} for items of type {kind.value}, only {allowed}"
    for field in ("tenant_id", "collection", "branch"):
        if (given.get(field) is not None or field != "branch") and not is_name(given.get(field)):
            yield field, f"expected 1 to {_NAME_LIMIT} printable characters"
    yield from _number_problems(given)
    yield from _payload_problems(given, kind, op)


def _number_problems(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    priority = given.get("priority")
    if isinstance(priority, str):
        if priority not in PRIORITIES:
            yield "priority", f"expected 0 to 10, or one of {', '.join(PRIORITIES)}"
    elif priority is not None and not _is_whole(priority, 10):
        yield "priority", f"expected 0 to 10, or one of {', '.join(PRIORITIES)}"
    if not _is_whole(given.get("max_retries", MAX_RETRIES), _MOST_RETRIES):
        yield "max_retries", f"expected a whole number from 0 to {_MOST_RETRIES}"


def _payload_problems(
    given: Mapping[str, Any], kind: ItemType | None, op: Operation | None
) -> Iterator[tuple[str, str]]:
    payload, metadata = given.get("payload"), given.get("metadata")
    if not isinstance(payload, Mapping):
        yield "payload", "expected an object"
        return
    if metadata is not None and not isinstance(metadata, Mapping):
        yield "metadata", "expected an object"
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
    """What is wrong with a payload, field by field; unknown fields only if `strict`."""
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
            yield name, "is missing"
    for name in payload if strict else ():
        if name not in fields:
            yield name, f"there is no such field; known are {', '.join(fields)}"
    if not wrong:
        yield from PAYLOADS[kind](**values).problems(None if op is None else op.value)


def is_name(value: object) -> bool:
    """Whether this can be the name of a tenant, a collection or a branch."""
    return isinstance(value, str) and 0 < len(value) <= _NAME_LIMIT and value.isprintable()


def _one_of(kind: type[Named], value: object) -> Named | None:
    return next((one for one in kind if one == value), None)


def _is_whole(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _not_json(value: Mapping[str, Any]) -> str | None:
    """Why a value cannot be stored as JSON in every database; None if it can."""
    try:
        text = canonical(value)
        if json.loads(text) != value or not _is_shallow(value):
            return "expected plain JSON, not deeper than 32 levels"
        if "\\u0000" in text:
            return "text has no NUL characters"
        if len(text.encode()) > PAYLOAD_LIMIT:
            return f"larger than {PAYLOAD_LIMIT:,} bytes"
    except (TypeError, ValueError, RecursionError):
        return "expected plain JSON in valid text"
    if any(isinstance(one, float) and one != one for one in value.values()):  # noqa: PLR0124 - not a number is unlike itself
        return "expected plain JSON"
    return None


def _is_shallow(value: Any, left: int = _DEEPEST) -> bool:
    if isinstance(value, Mapping):
        return left > 0 and all(_is_shallow(one, left - 1) for one in value.values())
    if isinstance(value, list):
        return left > 0 and all(_is_shallow(one, left - 1) for one in value)
    return True
