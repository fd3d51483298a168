"""Makes items of requests: checks every field, and completes what can be looked up."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from penstock.apps.ingest import shapes
from penstock.apps.ingest.items import InvalidItem, Item, Operation, checked
from penstock.apps.ingest.payloads import File, Folder, Library, Project
from penstock.apps.ingest.roots import Roots
from penstock.apps.ingest.writing import Rejected, digest_of
from penstock.http.problems import Problem


def items_of(given: Sequence[Mapping[str, Any]], roots: Roots, largest: int) -> list[Item]:
    """Items of requests; raises a `Problem` that names everything that is wrong."""
    found: list[Item] = []
    problems: dict[str, str] = {}
    for place, one in enumerate(given):
        where = f"items[{place}]." if len(given) > 1 else ""
        try:
            found.append(completed(checked(one), roots, largest))
        except InvalidItem as error:
            problems |= {f"{where}{field}": text for field, text in error.problems.items()}
    if problems:
        raise refusal(InvalidItem(problems))
    return found


def refusal(error: InvalidItem) -> Problem:
    """The answer to items that cannot be stored: every field that is wrong, by its name."""
    problem = Problem(422, str(error), field=next(iter(error.problems)))
    problem.body["problems"] = error.problems  # type: ignore[assignment] # of strings, itself
    return problem


def raw_items(body: shapes.EnqueueItems) -> list[Mapping[str, Any]]:
    """What was sent, one or many; raises `Problem`."""
    single = {
        name: value
        for name in body.__struct_fields__
        if name != "items" and (value := getattr(body, name)) is not UNSET
    }
    if body.items is UNSET:
        return [single]
    if single:
        raise Problem(422, "items: either items, or one item's own fields", field="items")
    return list(body.items)


def common_case(body: shapes.IngestRequest) -> dict[str, Any]:
    """The item that is meant; raises `Problem`."""
    named = [
        name
        for name in ("path", "project", "content", "library")
        if getattr(body, name) is not None
    ]
    if len(named) != 1:
        raise Problem(422, "name one of path, project, content and library")
    kind, payload = _payload(body, named[0])
    return {
        "item_type": kind,
        "op": "ingest",
        "tenant_id": body.tenant_id,
        "collection": body.collection,
        "branch": body.branch,
        "priority": body.priority,
        "payload": {name: value for name, value in payload.items() if value not in (None, [])},
    }


def _payload(body: shapes.IngestRequest, named: str) -> tuple[str, dict[str, Any]]:
    patterns = {"patterns": body.patterns, "ignore_patterns": body.ignore_patterns}
    if named == "content":
        return "content", {"content": body.content, "document_id": body.document_id}
    if named == "library":
        return "library", {
            "library_name": body.library,
            "library_version": body.version,
            "source_url": body.source,
        }
    if named == "project":
        return "project", {"project_root": body.project, **patterns}
    if os.path.isdir(str(body.path)):  # noqa: PTH112 - raises nothing, whatever the path
        return "folder", {"folder_path": body.path, **patterns}
    return "file", {"file_path": body.path}


def completed(item: Item, roots: Roots, largest: int) -> Item:
    """An item whose file may be read, with the digest of what is in it now.

    So that a changed file is another item than the one that may run at this moment.
    """
    typed = item.typed
    if item.op is Operation.DELETE:
        return item
    if isinstance(typed, File):
        _admit(roots, "file_path", typed.place)
        if typed.file_hash is None:
            return _with_digest(item, typed.place, largest)
    elif isinstance(typed, Folder):
        _admit(roots, "folder_path", typed.place)
    elif isinstance(typed, Project):
        _admit(roots, "project_root", typed.place)
    elif isinstance(typed, Library) and "://" not in str(typed.source_url):
        _admit(roots, "source_url", str(typed.source_url))
    return item


def _with_digest(item: Item, path: str, largest: int) -> Item:
    from penstock.vectors.reading import Unfit, content_of

    try:
        content = content_of(path, largest)
    except Unfit:
        return item  # it fails when it runs, unless the file is there by then
    payload = {
        **item.payload,
        "file_hash": f"sha256:{digest_of(content)}",
        "size_bytes": len(content),
    }
    return msgspec.structs.replace(item, payload=payload)


def _admit(roots: Roots, field: str, path: str) -> None:
    try:
        roots.admit(path)
    except Rejected as error:
        raise InvalidItem({f"payload.{field}": str(error)}) from error
