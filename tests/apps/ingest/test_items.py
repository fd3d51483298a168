import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.apps.ingest.items import (
    MATRIX,
    PRIORITIES,
    InvalidItem,
    ItemType,
    Operation,
    canonical,
    checked,
)

PAYLOADS: dict[str, dict[str, Any]] = {
    "content": {"content": "a text", "source_type": "mcp", "main_tag": "a", "full_tag": "a/b"},
    "file": {"file_path": "/a/b.py", "file_type": "code", "size_bytes": 3},
    "folder": {"folder_path": "/a", "recursive_depth": 3, "patterns": ["*.py"]},
    "project": {"project_root": "/a", "project_type": "rust"},
    "library": {"library_name": "qdrant-client", "library_version": "1.15", "source_url": "/docs"},
    "delete_tenant": {"tenant_id_to_delete": "shop", "reason": "user_request"},
    "delete_document": {"document_id": "/a/b.py", "point_ids": ["x", "y"]},
    "rename": {"old_path": "/a", "new_path": "/b", "is_folder": True},
}
ALLOWED = {
    "content": "ingest update delete",
    "file": "ingest update delete",
    "folder": "ingest delete scan",
    "project": "ingest delete scan",
    "library": "ingest update delete",
    "delete_tenant": "delete",
    "delete_document": "delete",
    "rename": "update",
}


def item(item_type: str = "file", op: str = "ingest", **fields: Any) -> dict[str, Any]:
    about = {"item_type": item_type, "op": op, "tenant_id": "shop", "collection": "docs"}
    return {**about, "payload": PAYLOADS.get(item_type, {}), **fields}


def problems(given: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(InvalidItem) as refused:
        checked(given)
    return refused.value.problems


@pytest.mark.parametrize("item_type", [*ItemType, "nonsense"])
@pytest.mark.parametrize("op", [*Operation, "nonsense"])
def test_the_matrix_says_what_can_be_done_with_what(item_type: str, op: str) -> None:
    if op in ALLOWED.get(item_type, "").split():
        made = checked(item(item_type, op))
        assert (made.item_type, made.op) == (item_type, op)
        assert made.op in MATRIX[made.item_type]
    else:
        wrong = problems(item(item_type, op))
        assert wrong.keys() & {"item_type", "op"}


def test_every_wrong_field_is_named() -> None:
    payload = {"file_path": "relative", "size_bytes": -1, "file_hash": "abc", "colour": "red"}
    wrong = problems(
        item(tenant_id="", collection=3, priority=11, payload=payload, owner="me", max_retries=-1)
    )
    assert set(wrong) == {
        *("owner", "tenant_id", "collection", "priority", "max_retries"),
        *("payload.size_bytes", "payload.file_hash", "payload.colour"),
    }
    payload = {"file_path": "relative"}
    assert problems(item(payload=payload)) == {"payload.file_path": "must be an absolute path"}
    assert problems(item(payload={})) == {"payload.file_path": "is required"}


@pytest.mark.parametrize(
    ("item_type", "op", "payload", "field"),
    [
        ("content", "ingest", {}, "content"),
        ("content", "ingest", {"content": "  \n"}, "content"),
        ("content", "delete", {}, "content"),
        ("library", "ingest", {"library_name": "x"}, "source_url"),
        ("library", "ingest", {"library_name": "../x", "source_url": "/a"}, "library_name"),
        ("rename", "update", {"old_path": "/a", "new_path": "/a"}, "new_path"),
        ("rename", "update", {"old_path": "/a", "new_path": "/a/b"}, "new_path"),
        ("rename", "update", {"old_path": "/a/b", "new_path": "/a"}, "new_path"),
        ("folder", "scan", {"folder_path": "/a", "recursive": "yes"}, "recursive"),
        ("folder", "scan", {"folder_path": "/a", "patterns": "*.py"}, "patterns"),
        ("folder", "scan", {"folder_path": "/a", "patterns": ["!"]}, "patterns"),
        ("delete_document", "delete", {"document_id": "x", "point_ids": [1]}, "point_ids"),
        ("delete_tenant", "delete", {"tenant_id_to_delete": ""}, "tenant_id_to_delete"),
    ],
)
def test_payloads_are_held_to_their_type(
    item_type: str, op: str, payload: dict[str, Any], field: str
) -> None:
    assert set(problems(item(item_type, op, payload=payload))) == {f"payload.{field}"}


@pytest.mark.parametrize(
    "payload", [None, [], "x", 3, {"file_path": "/a\0b"}, {"file_path": "/\ud800"}]
)
def test_what_no_database_can_keep_is_refused(payload: Any) -> None:
    assert any(field.startswith("payload") for field in problems(item(payload=payload)))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3)
    ),
    max_leaves=8,
)
_NAMES = sorted({name for payload in PAYLOADS.values() for name in payload})


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([*ItemType]),
    st.sampled_from([*Operation]),
    st.dictionaries(st.sampled_from(_NAMES) | st.text(max_size=5), _JSON, max_size=5),
    _JSON,
)
def test_whatever_comes_is_an_item_or_has_its_problems_named(
    item_type: ItemType, op: Operation, payload: dict[str, Any], odd: Any
) -> None:
    for fields in ({"payload": payload}, {"payload": odd}, {"metadata": odd}, {"tenant_id": odd}):
        try:
            made = checked(item(item_type, op, **fields))
        except InvalidItem as refused:
            named = refused.problems
        else:
            named = {"": ""}
            json.dumps(made.payload, ensure_ascii=False).encode()
            assert made.idempotency_key == checked(item(item_type, op, **fields)).idempotency_key
        assert named


def test_names_of_priorities_are_those_of_the_guideline() -> None:
    assert {name: checked(item(priority=name)).priority for name in PRIORITIES} == PRIORITIES
    assert sorted(PRIORITIES.values()) == [0, 1, 3, 5, 7, 8, 9, 10]
    defaults = {kind: checked(item(kind, ALLOWED[kind].split()[0])).priority for kind in ItemType}
    assert defaults[ItemType.CONTENT] == 8
    assert defaults[ItemType.LIBRARY] == 1
    assert defaults[ItemType.FILE] == 5


def test_keys_are_of_canonical_json() -> None:
    made = checked(item("folder", payload={"patterns": ["ä", "b"], "folder_path": "/ü"}))
    text = (
        '{"branch":"main","collection":"docs","item_type":"folder","op":"ingest",'
        '"payload":{"folder_path":"/ü","patterns":["ä","b"]},"tenant_id":"shop"}'
    )
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    assert made.idempotency_key == f"folder:ingest:{digest}"
    assert canonical({"b": {"z": 1, "a": 2}, "a": "é"}) == '{"a":"é","b":{"a":2,"z":1}}'


def test_keys_tell_apart_what_is_not_the_same() -> None:
    hashed = {"file_path": "/a", "file_hash": "0" * 64}
    variants = [
        item(),
        item(op="update"),
        item(tenant_id="other"),
        item(collection="other"),
        item(branch="other"),
        item(payload={"file_path": "/a"}),
        item(payload=hashed),
        item(payload={**hashed, "file_hash": "1" * 64}),
        item("content"),
        item("content", payload={"content": "another"}),
    ]
    assert len({checked(one).idempotency_key for one in variants}) == len(variants)
    same = [
        item(payload=hashed),
        item(payload={"file_path": "/x/../a", "file_hash": f"sha256:{'0' * 64}"}, priority=9),
        item(payload={**hashed, "size_bytes": 3, "file_type": "code"}, metadata={"a": 1}),
    ]
    assert len({checked(one).idempotency_key for one in same}) == 1
