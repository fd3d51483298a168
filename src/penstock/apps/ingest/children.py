"""Folders and projects: an item for each file that is there, and for each that is gone."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock import context
from penstock.apps.ingest.folders import (
    Found,
    Wanted,
    files_of,
    git_remote,
    project_type,
    reasons,
    type_of,
)
from penstock.apps.ingest.items import PRIORITIES, Item, ItemType, Operation
from penstock.apps.ingest.payloads import Project
from penstock.apps.ingest.roots import Roots
from penstock.apps.ingest.service import Service
from penstock.apps.ingest.shelves import Place, Shelves
from penstock.apps.ingest.writing import Rejected
from penstock.vectors import Where

_AT_ONCE = 500
_EXAMPLES = 20


class Children:
    """Adds the items that folders and projects consist of."""

    def __init__(self, service: Service, shelves: Shelves, roots: Roots, largest: int) -> None:
        self._service = service
        self._shelves = shelves
        self._roots = roots
        self._largest = largest

    async def of_project(self, item: Item, payload: Project) -> dict[str, Any]:
        """A project with all that is in it, and what it is."""
        await asyncio.to_thread(self._admit, payload.place)
        kind = payload.project_type or await asyncio.to_thread(project_type, payload.place)
        remote = payload.git_remote or await asyncio.to_thread(git_remote, payload.place)
        found = await self.of_folder(
            item, payload.place, None, payload.patterns, payload.ignore_patterns
        )
        return {"project_type": kind, "git_remote": remote, **found}

    async def of_folder(
        self,
        item: Item,
        folder: str,
        depth: int | None,
        patterns: Sequence[str],
        ignored: Sequence[str],
    ) -> dict[str, Any]:
        """The files of a folder that are wanted, as items; what else of it was ingested, away."""
        await asyncio.to_thread(self._admit, folder)
        run = context()
        job = run.job
        passed_by: Counter[str] = Counter()
        examples: list[tuple[str, str | None]] = []
        added = met = 0
        wanted = Wanted(folder, depth, patterns, ignored)
        files = files_of(wanted, self._largest, self._roots.besides)
        while (portion := await asyncio.to_thread(next, files, None)) is not None:
            run.raise_if_cancelled()
            unfit = [one for one in portion if one.why_not is not None]
            passed_by += reasons(unfit)
            examples += [(one.path, one.why_not) for one in unfit[: _EXAMPLES - len(examples)]]
            children = [_child(item, one) for one in portion if one.why_not is None]
            answers = await self._service.add(children, parent=job.id)
            added += sum(not one.duplicate for one in answers)
            met += len(children)
            run.progress(met, note=portion[-1].path)
        removed = await self._remove_missing(item, folder, job.id)
        return {
            "files": met,
            "items_added": added,
            "files_removed": removed,
            "passed_by": dict(passed_by),
            "examples": examples,
        }

    def _admit(self, folder: str) -> None:
        self._roots.admit(folder)
        if not Path(folder).is_dir():
            raise Rejected(f"there is no folder {folder}")

    async def _remove_missing(self, item: Item, folder: str, parent: int) -> int:
        """Items that take away what is no file any more."""
        gone = await asyncio.to_thread(self._missing, item, folder)
        for start in range(0, len(gone), _AT_ONCE):
            part = [_removal(item, path) for path in gone[start : start + _AT_ONCE]]
            await self._service.add(part, parent=parent)
        return len(gone)

    def _missing(self, item: Item, folder: str) -> list[str]:
        place = Place(item.tenant_id, item.collection, item.branch)
        if not self._shelves.has(place):
            return []
        with self._shelves.using(place) as collection:
            paths = collection.index.paths(Where(under=folder))
        return [path for path in paths if not Path(path).exists()]


def _child(item: Item, found: Found) -> Item:
    return Item(
        item_type=ItemType.FILE,
        op=Operation.INGEST,
        tenant_id=item.tenant_id,
        collection=item.collection,
        branch=item.branch,
        priority=_priority(item),
        payload={
            "file_path": found.path,
            "file_type": type_of(found.path),
            "file_hash": f"sha256:{found.digest}",
            "size_bytes": found.size,
        },
        max_retries=item.max_retries,
    )


def _removal(item: Item, path: str) -> Item:
    return Item(
        item_type=ItemType.FILE,
        op=Operation.DELETE,
        tenant_id=item.tenant_id,
        collection=item.collection,
        branch=item.branch,
        priority=_priority(item),
        payload={"file_path": path},
        max_retries=item.max_retries,
    )


def _priority(item: Item) -> int:
    """A scan leaves its files for later."""
    return PRIORITIES["deferred"] if item.op is Operation.SCAN else item.priority
