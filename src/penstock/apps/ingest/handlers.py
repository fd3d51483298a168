"""The task that works on items. Whatever an item asks for may be done twice: see each handler."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from penstock import Cancel, Context, InvalidJob, JobQuery, Penstock, Snooze, context
from penstock.apps.batching import Batcher
from penstock.apps.ingest.children import Children
from penstock.apps.ingest.items import MATRIX, Item, ItemType, Operation, payload_problems
from penstock.apps.ingest.libraries import Libraries
from penstock.apps.ingest.order import Reach, key_of, reach_of
from penstock.apps.ingest.payloads import (
    Content,
    DeleteDocument,
    DeleteTenant,
    File,
    Folder,
    Library,
    Project,
    Rename,
    normal,
)
from penstock.apps.ingest.roots import Roots
from penstock.apps.ingest.service import QUEUE, TASK, Service
from penstock.apps.ingest.settings import Settings
from penstock.apps.ingest.shelves import Place, Shelves
from penstock.apps.ingest.writing import Rejected, Source, Writer, Written, total
from penstock.apps.sentences import sentence
from penstock.core.redaction import redacted
from penstock.vectors import EmbeddingRefused, Where
from penstock.vectors.languages import LANGUAGES

T = TypeVar("T")
Result = dict[str, Any]

_SOON = timedelta(milliseconds=200)
_MISSING_TOOLS = timedelta(minutes=15)
_AT_ONCE = 200
_THREADS = 4


class ItemFailed(Exception):
    """An item could not be worked on, and may be tried again; the message is one sentence."""


class Handlers:
    """Does what items ask for, in one process."""

    def __init__(
        self, service: Service, settings: Settings, shelves: Shelves, roots: Roots
    ) -> None:
        self._service = service
        self._penstock: Penstock = service.penstock
        self._shelves = shelves
        self._writer = Writer(settings.max_file_size, roots.admit)
        self._libraries = Libraries(settings, roots)
        self._children = Children(service, shelves, roots, settings.max_file_size)
        self._threads = ThreadPoolExecutor(_THREADS, "ingest")
        self._writing: Batcher[Place, Source, Written] = Batcher(self._write, _AT_ONCE)
        self._looking: Batcher[None, tuple[int, Reach], list[int]] = Batcher(
            self._look, settings.concurrency
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
        """Make the task known to the Penstock."""
        self._penstock.task(TASK, self.run, queue=QUEUE, permanent=(Rejected, EmbeddingRefused))

    def close(self) -> None:
        """Let go of the threads."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def run(
        self,
        queue_id: str,  # noqa: ARG002 - it says which row this is
        item_type: str,
        op: str,
        *,
        tenant_id: str,
        collection: str,
        branch: str | None,
        payload: dict[str, Any] | None,
        metadata: dict[str, Any] | None,
    ) -> Result:
        """Do what an item asks for, when those before it that touch the same are done.

        Raises `Rejected` or `ItemFailed` with one sentence for people, because that is what the
        item's `error_message` shows; what it is raised from stays in the error of the job.
        """
        try:
            return await self._run(
                item_type, op, Place(tenant_id, collection, branch or "main"), payload, metadata
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
        place: Place,
        payload: dict[str, Any] | None,
        metadata: dict[str, Any] | None,
    ) -> Result:
        item = _item(item_type, op, place, payload, metadata)
        _check_tools(item)
        if item.item_type not in (ItemType.DELETE_TENANT, ItemType.DELETE_DOCUMENT):
            await self._wait_for_turn(item)
        return await self._by_type[item.item_type](item, item.typed)

    # What has chunks

    async def content(self, item: Item, payload: Content) -> Result:
        """A text into its collection, or out of it.

        Twice is safe: the chunks of a document are replaced as a whole, and not at all where its
        digest is the one that is there.
        """
        if item.op is Operation.DELETE:
            return await self._forget(item, paths=(payload.place,))
        about = {
            "item_type": "content",
            "source_type": payload.source_type,
            "main_tag": payload.main_tag,
            "full_tag": payload.full_tag,
        }
        source = Source(payload.place, about, payload.content or "")
        return _told(await self._writing.ask(_place(item), source))

    async def file(self, item: Item, payload: File) -> Result:
        """A file into its collection, as it is now, or out of it.

        Twice is safe: as for a text. What counts is the content when it runs; a file that changes
        meanwhile is read again.
        """
        if item.op is Operation.DELETE:
            return await self._forget(item, paths=(payload.place,))
        about = {"item_type": "file", "file_type": payload.file_type}
        return _told(await self._writing.ask(_place(item), Source(payload.place, about)))

    async def folder(self, item: Item, payload: Folder) -> Result:
        """An item for each file of a folder, and for each that is gone; or all out of it.

        Twice is safe: the same children are found again while they are unfinished, and those that
        are done find nothing to do.
        """
        if item.op is Operation.DELETE:
            return await self._forget(item, paths=(payload.place,), under=payload.place)
        depth = payload.recursive_depth if payload.recursive else 0
        return await self._children.of_folder(
            item, payload.place, depth, payload.patterns, payload.ignore_patterns
        )

    async def project(self, item: Item, payload: Project) -> Result:
        """As a folder; tells what kind of project it is, and where it was cloned from."""
        if item.op is Operation.DELETE:
            return await self._forget(item, paths=(payload.place,), under=payload.place)
        return await self._children.of_project(item, payload)

    async def library(self, item: Item, payload: Library) -> Result:
        """The documents of a library into its collection, in place of those that it had.

        Twice is safe: as for a text. What is there no more is removed at the end.
        """
        if item.op is Operation.DELETE:
            return await self._forget(item, paths=(payload.place,), under=payload.place)
        return await self._aside(self._ingest_library, item, payload, context())

    def _ingest_library(self, item: Item, payload: Library, run: Context) -> Result:
        counts = {"written": 0, "unchanged": 0, "failed": 0}
        seen: set[str] = set()
        with self._shelves.using(_place(item)) as collection:
            for sources in self._libraries.documents(payload.source_url or "", payload.place):
                run.raise_if_cancelled()
                for name, n in total(self._writer.write(collection, sources)).items():
                    counts[name] += n
                seen.update(one.path for one in sources)
                run.progress(len(seen), note=sources[-1].path)
            if not seen:
                raise Rejected(
                    f"{redacted(str(payload.source_url))}: there is no documentation in it"
                )
            gone = set(collection.index.paths(Where(under=payload.place))) - seen
            counts["removed"] = collection.forget(sorted(gone))
        return {"documents": len(seen), **counts}

    # What takes away, and what moves

    async def delete_tenant(self, item: Item, payload: DeleteTenant) -> Result:
        """Everything of a tenant: waiting items are cancelled, running ones asked to stop.

        Twice is safe: what came before it is gone then, and what came after it waits for it.
        """
        whose = payload.tenant_id_to_delete
        purged = await self._purge(JobQuery(queue=QUEUE, tenant=whose), "its tenant was deleted")
        await self._wait_for_turn(item)
        removed = await self._aside(self._shelves.remove_tenant, whose)
        return {"collections_removed": removed, "items_cancelled": purged}

    async def delete_document(self, item: Item, payload: DeleteDocument) -> Result:
        """A document, and parts of others by their ids; what waits for it is cancelled.

        Twice is safe: what is gone stays gone.
        """
        key = key_of(*_place(item), payload.place)
        purged = await self._purge(JobQuery(queue=QUEUE, key=key), "its document was deleted")
        await self._wait_for_turn(item)
        came_to = await self._forget(
            item, paths=(payload.place, payload.document_id), ids=payload.point_ids
        )
        return {**came_to, "items_cancelled": purged}

    async def rename(self, item: Item, payload: Rename) -> Result:
        """Chunks get another path, and keep their vectors.

        Twice is safe: the second time there is nothing under the old path, and nobody else may
        touch either path in between.
        """
        return await self._aside(
            self._rename,
            _place(item),
            normal(payload.old_path),
            normal(payload.new_path),
            payload.is_folder,
        )

    def _rename(self, place: Place, old: str, new: str, is_folder: bool) -> Result:  # noqa: FBT001 - by place, as the payload says it
        if not self._shelves.has(place):
            return {"chunks_moved": 0}
        with self._shelves.using(place) as collection:
            return {"chunks_moved": collection.index.move(old, new, below=is_folder)}

    async def _forget(
        self,
        item: Item,
        *,
        paths: Sequence[str] = (),
        under: str = "",
        ids: Sequence[str] = (),
    ) -> Result:
        return await self._aside(self._remove, _place(item), tuple(paths), under, tuple(ids))

    def _remove(
        self, place: Place, paths: tuple[str, ...], under: str, ids: tuple[str, ...]
    ) -> Result:
        if not self._shelves.has(place):
            return {"chunks_removed": 0}
        with self._shelves.using(place) as collection:
            removed = collection.forget(paths, Where(under=under))
            return {"chunks_removed": removed + collection.index.delete(ids)}

    # In common

    async def _purge(self, query: JobQuery, reason: str) -> int:
        """Cancel what came before this run's item; how many, in all its runs."""
        run = context()
        query = replace(query, before=run.job.enqueued_at)
        purged = await self._penstock.cancel_all(query, reason=reason)
        cancelled = int(run.state or 0) + purged.changed
        if purged.changed:
            await run.checkpoint(cancelled)
        return cancelled

    async def _wait_for_turn(self, item: Item) -> None:
        """Come back a little later while an item before this one touches the same."""
        reach = _reach(item)
        job = context().job
        others = [] if reach is None else await self._looking.ask(None, (job.id, reach))
        if others:
            raise Snooze(_SOON, f"job {others[0]} touches the same, and came first")

    async def _look(
        self, _: None, asked: Sequence[tuple[int, Reach]]
    ) -> Sequence[list[int] | Exception]:
        return await self._service.before(asked)

    async def _write(
        self, place: Place, sources: Sequence[Source]
    ) -> Sequence[Written | Exception]:
        return await self._aside(self._write_all, place, sources)

    def _write_all(self, place: Place, sources: Sequence[Source]) -> Sequence[Written | Exception]:
        with self._shelves.using(place) as collection:
            return self._writer.write(collection, sources)

    async def _aside(self, work: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(work, *arguments))


def _item(
    item_type: str,
    op: str,
    place: Place,
    payload: dict[str, Any] | None,
    metadata: dict[str, Any] | None,
) -> Item:
    """An item as it was stored, by whoever did; raises `Rejected` for what does not fit."""
    try:
        kind, operation = ItemType(item_type), Operation(op)
    except ValueError as error:
        raise Rejected(str(error)) from error
    if operation not in MATRIX[kind]:
        raise Rejected(f"there is no {operation.value} for items of type {kind.value}")
    # An empty name would be that of the folder above: of all collections, or of all tenants.
    for field, name in place._asdict().items():
        if not name:
            raise Rejected(f"{field} is empty")
    if payload is None:
        raise Rejected("payload_json is not a JSON object")
    problems = [
        f"payload.{field}: {text}"
        for field, text in payload_problems(kind, operation, payload, strict=False)
    ]
    if problems:
        raise Rejected("; ".join(problems))
    return Item(
        item_type=kind,
        op=operation,
        **place._asdict(),
        payload=payload,
        metadata=metadata or {},
    )


def _check_tools(item: Item) -> None:
    """Put off an item that was held for missing tools, until they are there."""
    tools = item.metadata.get("missing_tools")
    if isinstance(tools, list):
        missing = [shown for tool in tools if (shown := _missing(tool)) is not None]
        if missing:
            raise Snooze(_MISSING_TOOLS, f"held: {', '.join(missing)} is not installed here")


def _missing(tool: object) -> str | None:
    """What to call a tool that is not here; None if it is.

    It is the name of a program, or an object such as `{"TreeSitterParser": {"language": "zig"}}`.
    """
    if isinstance(tool, str):
        return tool if shutil.which(tool) is None else None
    if not isinstance(tool, Mapping) or len(tool) != 1:
        return None  # nobody could ever install it
    ((name, about),) = tool.items()
    language = about.get("language") if isinstance(about, Mapping) else None
    if name == "TreeSitterParser" and language in {one.name for one in LANGUAGES}:
        return None
    return str(name) if language is None else f"{name} for {language}"


def _place(item: Item) -> Place:
    return Place(item.tenant_id, item.collection, item.branch)


def _reach(item: Item) -> Reach | None:
    return reach_of(item.item_type, item.op, _place(item), item.payload)


def _told(written: Written) -> Result:
    return {"path": written.path, "changed": written.changed}
