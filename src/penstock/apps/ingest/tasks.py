"""The task `ingest.item`: a handler per type of item. Each handler is idempotent and says why."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from penstock import Cancel, Context, InvalidJob, JobQuery, Penstock, Snooze, context
from penstock.apps.ingest.collections import (
    Collections,
    Source,
    Writer,
    Written,
    count_results,
)
from penstock.apps.ingest.folders import Folders, Selection
from penstock.apps.ingest.items import (
    BRANCH,
    MATRIX,
    CollectionName,
    Content,
    DeleteDocument,
    DeleteTenant,
    File,
    Folder,
    Item,
    ItemType,
    Library,
    Operation,
    Project,
    Rejected,
    Rename,
    normal,
    payload_problems,
)
from penstock.apps.ingest.libraries import Libraries
from penstock.apps.ingest.order import Reach, key_of, reach_of
from penstock.apps.ingest.service import Service
from penstock.apps.ingest.settings import Roots, Settings
from penstock.apps.ingest.unified_queue import QUEUE, TASK
from penstock.apps.kit import Batcher, redacted, sentence
from penstock.vectors import LANGUAGES, EmbeddingRefused, Where

T = TypeVar("T")
Result = dict[str, Any]

_SOON = timedelta(milliseconds=200)
_MISSING_TOOLS = timedelta(minutes=15)
_BATCH = 200
_THREADS = 4


class ItemFailed(Exception):
    """An attempt at an item failed, and another may succeed; the message is one sentence."""


class Handlers:
    """The handlers of items in one process."""

    def __init__(
        self, service: Service, settings: Settings, collections: Collections, roots: Roots
    ) -> None:
        self._service = service
        self._penstock: Penstock = service.penstock
        self._collections = collections
        self._writer = Writer(settings.max_file_size, roots.check)
        self._libraries = Libraries(settings, roots)
        self._folders = Folders(service, collections, roots, settings.max_file_size)
        self._threads = ThreadPoolExecutor(_THREADS, "ingest")
        self._writes: Batcher[CollectionName, Source, Written] = Batcher(self._write, _BATCH)
        self._conflicts: Batcher[None, tuple[int, Reach], list[int]] = Batcher(
            self._find_conflicts, settings.concurrency
        )
        self._by_type: Mapping[ItemType, Callable[[Item, Any], Awaitable[Result]]] = {
            ItemType.CONTENT: self.content,
            ItemType.FILE: self.file,
            ItemType.FOLDER: self.folder,
            ItemType.PROJECT: self.project,
            ItemType.LIBRARY: self.library,
            ItemType.DELETE_TENANT: self.delete_tenant,
            ItemType.DELETE_DOCUMENT: self.delete_document,
            ItemType.RENAME: self.rename,
        }

    def register(self) -> None:
        """Register the task."""
        self._penstock.task(TASK, self.run, queue=QUEUE, permanent=(Rejected, EmbeddingRefused))

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def run(
        self,
        queue_id: str,  # noqa: ARG002 - an argument of the job
        item_type: str,
        op: str,
        *,
        tenant_id: str,
        collection: str,
        branch: str | None,
        payload: dict[str, Any] | None,
        metadata: dict[str, Any] | None,
    ) -> Result:
        """Run an item once all older items that affect the same places have ended.

        Raises `Rejected` or `ItemFailed` with one sentence, which becomes the `error_message` of
        the item; the error of the job also has the cause.
        """
        try:
            return await self._run(
                item_type,
                op,
                CollectionName(tenant_id, collection, branch or BRANCH),
                payload,
                metadata,
            )
        except (Snooze, Cancel):
            raise
        except (Rejected, EmbeddingRefused, InvalidJob) as error:
            raise Rejected(sentence(str(error))) from error
        except Exception as error:
            raise ItemFailed(sentence(f"{type(error).__name__}: {error}")) from error

    async def _run(
        self,
        item_type: str,
        op: str,
        target: CollectionName,
        payload: dict[str, Any] | None,
        metadata: dict[str, Any] | None,
    ) -> Result:
        item = _item(item_type, op, target, payload, metadata)
        _check_tools(item)
        if item.item_type not in (ItemType.DELETE_TENANT, ItemType.DELETE_DOCUMENT):
            await self._wait_for_turn(item)
        return await self._by_type[item.item_type](item, item.typed)

    # Documents

    async def content(self, item: Item, payload: Content) -> Result:
        """Ingest or delete a text.

        Idempotent: all chunks of a document are replaced together, and none if its digest is
        unchanged.
        """
        if item.op is Operation.DELETE:
            return await self._delete(item, paths=(payload.place,))
        about = {
            "item_type": "content",
            "source_type": payload.source_type,
            "main_tag": payload.main_tag,
            "full_tag": payload.full_tag,
        }
        source = Source(payload.place, about, payload.content or "")
        return _result(await self._writes.ask(item.collection_name, source))

    async def file(self, item: Item, payload: File) -> Result:
        """Ingest the current content of a file, or delete it.

        Idempotent, as for a text. A file that changes meanwhile is read again.
        """
        if item.op is Operation.DELETE:
            return await self._delete(item, paths=(payload.place,))
        about = {"item_type": "file", "file_type": payload.file_type}
        return _result(await self._writes.ask(item.collection_name, Source(payload.place, about)))

    async def folder(self, item: Item, payload: Folder) -> Result:
        """Add an item for each file of a folder and each missing one, or delete all of them.

        Idempotent: unfinished children are duplicates, and finished ones find nothing to do.
        """
        if item.op is Operation.DELETE:
            return await self._delete(item, paths=(payload.place,), under=payload.place)
        depth = payload.recursive_depth if payload.recursive else 0
        selection = Selection(payload.place, depth, payload.patterns, payload.ignore_patterns)
        return await self._folders.ingest(item, selection)

    async def project(self, item: Item, payload: Project) -> Result:
        """Ingest a folder, and report the type of the project and where it was cloned from."""
        if item.op is Operation.DELETE:
            return await self._delete(item, paths=(payload.place,), under=payload.place)
        return await self._folders.ingest_project(item, payload)

    async def library(self, item: Item, payload: Library) -> Result:
        """Replace the documents of a library, or delete them.

        Idempotent, as for a text. Documents that no longer exist are removed at the end.
        """
        if item.op is Operation.DELETE:
            return await self._delete(item, paths=(payload.place,), under=payload.place)
        return await self._in_thread(self._ingest_library, item, payload, context())

    def _ingest_library(self, item: Item, payload: Library, run: Context) -> Result:
        counts = {"written": 0, "unchanged": 0, "failed": 0}
        seen: set[str] = set()
        with self._collections.using(item.collection_name) as collection:
            for sources in self._libraries.documents(payload.source_url or "", payload.place):
                run.raise_if_cancelled()
                for name, n in count_results(self._writer.write(collection, sources)).items():
                    counts[name] += n
                seen.update(one.path for one in sources)
                run.progress(len(seen), note=sources[-1].path)
            if not seen:
                raise Rejected(f"{redacted(str(payload.source_url))} contains no documentation")
            gone = set(collection.index.paths(Where(under=payload.place))) - seen
            counts["removed"] = collection.forget(sorted(gone))
        return {"documents": len(seen), **counts}

    # Deletions and renames

    async def delete_tenant(self, item: Item, payload: DeleteTenant) -> Result:
        """Delete all collections of a tenant, and cancel its waiting and running items.

        Idempotent: older items and their documents are gone, and newer items wait for this one.
        """
        whose = payload.tenant_id_to_delete
        purged = await self._purge(JobQuery(queue=QUEUE, tenant=whose), "its tenant was deleted")
        await self._wait_for_turn(item)
        removed = await self._in_thread(self._collections.remove_tenant, whose)
        return {"collections_removed": removed, "items_cancelled": purged}

    async def delete_document(self, item: Item, payload: DeleteDocument) -> Result:
        """Delete a document and chunks by their IDs, and cancel waiting items of the document.

        Idempotent: a deleted document stays deleted.
        """
        key = key_of(*item.collection_name, payload.place)
        purged = await self._purge(JobQuery(queue=QUEUE, key=key), "its document was deleted")
        await self._wait_for_turn(item)
        result = await self._delete(
            item, paths=(payload.place, payload.document_id), ids=payload.point_ids
        )
        return {**result, "items_cancelled": purged}

    async def rename(self, item: Item, payload: Rename) -> Result:
        """Change the paths of chunks; they keep their vectors.

        Idempotent: the second time nothing has the old path, and no other item may use either path
        in between.
        """
        return await self._in_thread(
            self._rename,
            item.collection_name,
            normal(payload.old_path),
            normal(payload.new_path),
            payload.is_folder,
        )

    def _rename(self, target: CollectionName, old: str, new: str, is_folder: bool) -> Result:  # noqa: FBT001 - passed by position
        if not self._collections.exists(target):
            return {"chunks_moved": 0}
        with self._collections.using(target) as collection:
            return {"chunks_moved": collection.index.move(old, new, below=is_folder)}

    async def _delete(
        self,
        item: Item,
        *,
        paths: Sequence[str] = (),
        under: str = "",
        ids: Sequence[str] = (),
    ) -> Result:
        return await self._in_thread(
            self._remove, item.collection_name, tuple(paths), under, tuple(ids)
        )

    def _remove(
        self, target: CollectionName, paths: tuple[str, ...], under: str, ids: tuple[str, ...]
    ) -> Result:
        if not self._collections.exists(target):
            return {"chunks_removed": 0}
        with self._collections.using(target) as collection:
            removed = collection.forget(paths, Where(under=under))
            return {"chunks_removed": removed + collection.index.delete(ids)}

    # Shared by the handlers

    async def _purge(self, query: JobQuery, reason: str) -> int:
        """Cancel items older than the current one; return how many, over all its attempts."""
        run = context()
        query = replace(query, before=run.job.enqueued_at)
        purged = await self._penstock.bulk(query).cancel(reason=reason)
        cancelled = int(run.state or 0) + purged.changed
        if purged.changed:
            await run.checkpoint(cancelled)
        return cancelled

    async def _wait_for_turn(self, item: Item) -> None:
        """Snooze while an older item affects the same places."""
        reach = reach_of(item.item_type, item.op, item.collection_name, item.payload)
        job = context().job
        others = [] if reach is None else await self._conflicts.ask(None, (job.id, reach))
        if others:
            raise Snooze(
                _SOON, f"waiting for job {others[0]}, which is older and affects the same place"
            )

    async def _find_conflicts(
        self, _: None, requests: Sequence[tuple[int, Reach]]
    ) -> Sequence[list[int] | Exception]:
        return await self._service.before(requests)

    async def _write(
        self, target: CollectionName, sources: Sequence[Source]
    ) -> Sequence[Written | Exception]:
        return await self._in_thread(self._write_all, target, sources)

    def _write_all(
        self, target: CollectionName, sources: Sequence[Source]
    ) -> Sequence[Written | Exception]:
        with self._collections.using(target) as collection:
            return self._writer.write(collection, sources)

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(work, *arguments))


def _item(
    item_type: str,
    op: str,
    target: CollectionName,
    payload: dict[str, Any] | None,
    metadata: dict[str, Any] | None,
) -> Item:
    """Return an item as any program may have stored it; raise `Rejected` if it is invalid."""
    try:
        kind, operation = ItemType(item_type), Operation(op)
    except ValueError as error:
        raise Rejected(str(error)) from error
    if operation not in MATRIX[kind]:
        raise Rejected(f"{operation.value} is not allowed for items of type {kind.value}")
    # An empty name would be the folder above: that of all collections, or of all tenants.
    for field, name in target._asdict().items():
        if not name:
            raise Rejected(f"{field} must not be empty")
    if payload is None:
        raise Rejected("payload_json must be a JSON object")
    problems = [
        f"payload.{field}: {text}"
        for field, text in payload_problems(kind, operation, payload, strict=False)
    ]
    if problems:
        raise Rejected("; ".join(problems))
    return Item(
        item_type=kind,
        op=operation,
        **target._asdict(),
        payload=payload,
        metadata=metadata or {},
    )


def _check_tools(item: Item) -> None:
    """Snooze an item while tools that it needs are missing."""
    tools = item.metadata.get("missing_tools")
    if isinstance(tools, list):
        missing = [name for tool in tools if (name := _missing(tool)) is not None]
        if missing:
            raise Snooze(_MISSING_TOOLS, f"held: {', '.join(missing)} is not installed here")


def _missing(tool: object) -> str | None:
    """Return the name of a tool that is missing; None if it is installed.

    A tool is the name of a program, or an object such as
    `{"TreeSitterParser": {"language": "zig"}}`.
    """
    if isinstance(tool, str):
        return tool if shutil.which(tool) is None else None
    if not isinstance(tool, Mapping) or len(tool) != 1:
        return None  # it cannot be installed, so do not wait for it
    ((name, about),) = tool.items()
    language = about.get("language") if isinstance(about, Mapping) else None
    if name == "TreeSitterParser" and language in {one.name for one in LANGUAGES}:
        return None
    return str(name) if language is None else f"{name} for {language}"


def _result(written: Written) -> Result:
    return {"path": written.path, "changed": written.changed}
