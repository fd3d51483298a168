"""The order of items: those that affect the same place run one at a time, oldest first.

Items of one place share a key, so that the queue runs them in order. Some reach further: a rename
affects two places, deleting a folder everything below it, deleting a tenant all its collections.
Such an item waits for all older unfinished items that affect the same places, and newer ones wait
for it. Items that delete a tenant or a document cancel older waiting items instead.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import msgspec

from penstock.apps.ingest.items import (
    BRANCH,
    PAYLOADS,
    CollectionName,
    Folder,
    Project,
    Rename,
    is_under,
    normal,
)
from penstock.apps.kit import read_json
from penstock.errors import Unreadable
from penstock.tables import Statements

_UNFINISHED = "q.status IN ('pending', 'in_progress')"
_COLUMNS = (
    "j.job_id, q.item_type, q.op, q.tenant_id, q.collection, q.branch, q.payload_json "
    "FROM unified_queue q JOIN unified_queue_job j ON j.queue_id = q.queue_id"
)
_FAR_TYPES = "'rename', 'delete_tenant', 'delete_document'"
_FAR_REACHING = (
    f"SELECT {_COLUMNS} WHERE {_UNFINISHED} AND j.job_id < ? AND (q.item_type IN ({_FAR_TYPES}) "
    "OR (q.item_type IN ('folder', 'project') AND q.op = 'delete')) ORDER BY j.job_id"
)
_OF_TENANT = f"SELECT {_COLUMNS} WHERE {_UNFINISHED} AND j.job_id < ? AND q.tenant_id = ?"
_FILE = "CASE WHEN json_valid(q.payload_json) THEN json_extract(q.payload_json, '$.file_path') END"
_MOST = 1_000
"""Conflicts that are searched for; an item with this many searches again when they have ended."""
_KEY_LIMIT = 1_000
_PREFIX = "ingest:"
_SEPARATORS = str.maketrans({"%": "%25", "/": "%2F", ":": "%3A"})
NEWEST = 2**62
"""Larger than the ID of any job."""


class Reach(NamedTuple):
    """What an item affects: places, each with a flag whether everything below it is included.

    An empty collection or branch means all of them; the empty place with the flag is everything.
    """

    tenant_id: str
    collection: str
    branch: str
    places: tuple[tuple[str, bool], ...]
    is_far: bool
    """Whether it affects more than its own place, so that a key is not sufficient."""

    def meets(self, other: "Reach") -> bool:
        """Return whether both affect a common place."""
        return (
            self.tenant_id == other.tenant_id
            and _same(self.collection, other.collection)
            and _same(self.branch, other.branch)
            and any(_meet(one, another) for one in self.places for another in other.places)
        )


def reach_of(
    item_type: str, op: str, target: CollectionName, payload: Mapping[str, Any]
) -> Reach | None:
    """Return what an item affects; None if its payload is invalid."""
    tenant_id, collection, branch = target
    try:
        typed = msgspec.convert(payload, PAYLOADS[item_type])
    except (KeyError, msgspec.ValidationError):
        return None
    if item_type == "delete_tenant":
        return Reach(str(payload["tenant_id_to_delete"]), "", "", (("", True),), is_far=True)
    if isinstance(typed, Rename):
        places = (
            (normal(typed.old_path), typed.is_folder),
            (normal(typed.new_path), typed.is_folder),
        )
        return Reach(tenant_id, collection, branch, places, is_far=True)
    wide = isinstance(typed, Folder | Project)
    far = item_type == "delete_document" or (wide and op == "delete")
    return Reach(tenant_id, collection, branch, ((typed.place, wide),), is_far=far)


def key_of(tenant_id: str, collection: str, branch: str, place: str) -> str:
    """Return the key of items that affect one place: they run one at a time, in order.

    It is `ingest:TENANT/COLLECTION/BRANCH:PLACE`, with the separators in names escaped. Different
    places have different keys, unless these exceed the length of a key.
    """
    names = (tenant_id, collection, branch)
    where = "/".join(name.translate(_SEPARATORS) for name in names)
    return _PREFIX + f"{where}:{place}"[-(_KEY_LIMIT - len(_PREFIX)) :]


def before(tx: Statements, reaches: Sequence[tuple[int, Reach]]) -> list[list[int]]:
    """Return for each of these jobs the IDs of unfinished jobs that must end before it."""
    if not reaches:
        return []
    newest = max(job_id for job_id, _ in reaches)
    far = list(_read(tx.execute(_FAR_REACHING, (newest,))))
    return [
        sorted(set(_of_tenant(tx, job_id, reach)))
        if reach.is_far
        else [one for one, other in far if one < job_id and other.meets(reach)]
        for job_id, reach in reaches
    ]


def _of_tenant(tx: Statements, job_id: int, reach: Reach) -> Iterator[int]:
    """Yield the newest unfinished items before a far-reaching one."""
    text, values = _touching(tx, reach)
    mine = tx.execute(
        f"{_OF_TENANT}{text} ORDER BY j.job_id DESC", (job_id, reach.tenant_id, *values)
    )
    far = tx.execute(
        _FAR_REACHING, (job_id,)
    )  # an item that deletes a tenant may belong to another one
    found = (one for one, other in chain(_read(far), _read(mine)) if other.meets(reach))
    return islice(found, _MOST)


def _touching(tx: Statements, reach: Reach) -> tuple[str, list[str]]:
    """Return a condition that excludes most unrelated files before their payloads are parsed."""
    if tx.dialect != "sqlite" or any(not place for place, _ in reach.places):
        return "", []
    parts, values = [], []
    for place, wide in reach.places:
        parts.append(f"{_FILE} = ?")
        values.append(place)
        if wide:
            folder = place.rstrip("/")
            parts.append(f"({_FILE} > ? AND {_FILE} < ?)")
            values += [f"{folder}/", f"{folder}0"]  # "0" follows "/"
    return f" AND (q.item_type <> 'file' OR {' OR '.join(parts)})", values


def _read(rows: Iterable[Sequence[Any]]) -> Iterator[tuple[int, Reach]]:
    for job_id, item_type, op, tenant_id, collection, branch, payload in rows:
        try:
            given = read_json(payload, "")
        except Unreadable:
            continue  # it will be rejected and affects nothing
        if isinstance(given, dict):
            reach = reach_of(
                item_type, op, CollectionName(tenant_id, collection, branch or BRANCH), given
            )
            if reach is not None:
                yield job_id, reach


def _same(one: str, another: str) -> bool:
    return not one or not another or one == another


def _meet(one: tuple[str, bool], another: tuple[str, bool]) -> bool:
    (place, wide), (other, other_wide) = one, another
    if place == other or (wide and not place) or (other_wide and not other):
        return True
    return (wide and is_under(other, place)) or (other_wide and is_under(place, other))
