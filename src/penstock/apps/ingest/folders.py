"""Folders and projects: their files, and the items that ingest or remove each of them."""

import asyncio
import configparser
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from penstock import context
from penstock.apps.ingest.collections import Collections, digest_of
from penstock.apps.ingest.items import PRIORITIES, Item, ItemType, Operation, Project, Rejected
from penstock.apps.ingest.service import Service
from penstock.apps.ingest.settings import Roots
from penstock.apps.kit import redacted
from penstock.vectors import (
    LANGUAGES_BY_SUFFIX,
    UnreadableFile,
    Walk,
    Where,
    decode_text,
    parse_patterns,
    read_file,
)

_BATCH = 500
_EXAMPLES = 20
_CONFIG_LIMIT = 1_000_000
_USERINFO = re.compile(r"(?<=://)[^/@]*@")
_PROJECT_FILES = {
    "Cargo.toml": "rust",
    "pyproject.toml": "python",
    "setup.py": "python",
    "requirements.txt": "python",
    "package.json": "javascript",
    "go.mod": "go",
    "pom.xml": "java",
    "build.gradle": "java",
    "build.gradle.kts": "java",
    "Gemfile": "ruby",
    "CMakeLists.txt": "c++",
}
_DOCUMENTS = frozenset({".adoc", ".htm", ".html", ".md", ".markdown", ".rst", ".tex", ".txt"})
_CONFIGS = frozenset({".cfg", ".conf", ".ini", ".json", ".toml", ".xml", ".yaml", ".yml"})


class Selection(NamedTuple):
    """Which files of a folder to ingest; `depth` limits the levels of folders below it."""

    folder: str
    depth: int | None = None
    patterns: Sequence[str] = ()
    ignored: Sequence[str] = ()


class FolderFile(NamedTuple):
    """A file of a folder: its size and digest, or why it is skipped."""

    path: str
    size: int = 0
    digest: str = ""
    why_not: str | None = None


class Folders:
    """Adds the items of the files in folders and projects."""

    def __init__(
        self, service: Service, collections: Collections, roots: Roots, largest: int
    ) -> None:
        self._service = service
        self._collections = collections
        self._roots = roots
        self._largest = largest

    async def ingest_project(self, item: Item, payload: Project) -> dict[str, Any]:
        """Ingest a project as a folder, and report its type and where it was cloned from."""
        await asyncio.to_thread(self._check, payload.place)
        kind = payload.project_type or await asyncio.to_thread(project_type, payload.place)
        remote = payload.git_remote or await asyncio.to_thread(git_remote, payload.place)
        selection = Selection(payload.place, None, payload.patterns, payload.ignore_patterns)
        found = await self.ingest(item, selection)
        return {"project_type": kind, "git_remote": remote, **found}

    async def ingest(self, item: Item, selection: Selection) -> dict[str, Any]:
        """Add an item for each selected file, and one for each ingested file that is gone."""
        await asyncio.to_thread(self._check, selection.folder)
        run = context()
        job = run.job
        skipped: Counter[str] = Counter()
        examples: list[tuple[str, str | None]] = []
        added = count = 0
        files = files_of(selection, self._largest, self._roots.data)
        while (batch := await asyncio.to_thread(next, files, None)) is not None:
            run.raise_if_cancelled()
            unfit = [one for one in batch if one.why_not is not None]
            skipped.update(str(one.why_not) for one in unfit)
            examples += [(one.path, one.why_not) for one in unfit[: _EXAMPLES - len(examples)]]
            children = [_ingestion(item, one) for one in batch if one.why_not is None]
            answers = await self._service.add(children, parent=job.id)
            added += sum(not one.duplicate for one in answers)
            count += len(children)
            run.progress(count, note=batch[-1].path)
        removed = await self._remove_missing(item, selection.folder, job.id)
        return {
            "files": count,
            "items_added": added,
            "files_removed": removed,
            "passed_by": dict(skipped),
            "examples": examples,
        }

    def _check(self, folder: str) -> None:
        self._roots.check(folder)
        if not Path(folder).is_dir():
            raise Rejected(f"there is no folder {folder}")

    async def _remove_missing(self, item: Item, folder: str, parent: int) -> int:
        """Add items that remove the files that no longer exist; return how many."""
        missing = await asyncio.to_thread(self._missing, item, folder)
        for start in range(0, len(missing), _BATCH):
            batch = [_removal(item, path) for path in missing[start : start + _BATCH]]
            await self._service.add(batch, parent=parent)
        return len(missing)

    def _missing(self, item: Item, folder: str) -> list[str]:
        if not self._collections.exists(item.collection_name):
            return []
        with self._collections.using(item.collection_name) as collection:
            paths = collection.index.paths(Where(under=folder))
        return [path for path in paths if not Path(path).exists()]


def _ingestion(parent: Item, file: FolderFile) -> Item:
    payload = {
        "file_path": file.path,
        "file_type": file_type(file.path),
        "file_hash": f"sha256:{file.digest}",
        "size_bytes": file.size,
    }
    return _child(parent, Operation.INGEST, payload)


def _removal(parent: Item, path: str) -> Item:
    return _child(parent, Operation.DELETE, {"file_path": path})


def _child(parent: Item, op: Operation, payload: dict[str, Any]) -> Item:
    is_scan = parent.op is Operation.SCAN
    return Item(
        item_type=ItemType.FILE,
        op=op,
        tenant_id=parent.tenant_id,
        collection=parent.collection,
        branch=parent.branch,
        priority=PRIORITIES["deferred"] if is_scan else parent.priority,
        payload=payload,
        max_retries=parent.max_retries,
    )


# Files


class _PatternFilter:
    """Selects files by patterns; without any, all files."""

    def __init__(self, selection: Selection) -> None:
        self._wanted = parse_patterns(selection.patterns) if selection.patterns else None
        self._ignored = parse_patterns(selection.ignored)

    def wants(self, path: str) -> bool:
        """Return whether a file is selected."""
        if self._ignored.match_file(path):
            return False
        return self._wanted is None or self._wanted.match_file(path)

    def leaves_out(self, folder: str) -> bool:
        """Return whether nothing below a folder is selected."""
        return self._ignored.match_file(folder + "/")


def files_of(selection: Selection, largest: int, excluded: str) -> Iterator[list[FolderFile]]:
    """Yield batches of the files of a folder, in the order of their paths."""
    if not Path(selection.folder).is_dir():
        raise Rejected(f"there is no folder {selection.folder}")
    walk = Walk(
        selection.folder,
        _PatternFilter(selection),
        depth=selection.depth,
        largest=largest,
        except_folders=(excluded,),
    )
    rest = iter(walk)
    while found := list(islice(rest, _BATCH)):
        yield [
            _inspected(one.path, largest)
            if one.why_not is None
            else FolderFile(one.path, why_not=one.why_not)
            for one in found
        ]


def _inspected(path: str, largest: int) -> FolderFile:
    try:
        content = read_file(path, largest)
        decode_text(content)
    except UnreadableFile as error:
        return FolderFile(path, why_not=str(error))
    return FolderFile(path, len(content), digest_of(content))


def file_type(path: str) -> str:
    """Return the kind of a file by its suffix: `code`, `document`, `config` or `text`."""
    suffix = PurePath(path).suffix.lower()
    if suffix in LANGUAGES_BY_SUFFIX:
        return "code"
    if suffix in _DOCUMENTS:
        return "document"
    return "config" if suffix in _CONFIGS else "text"


# Projects


def project_type(root: str) -> str:
    """Return the language of a project by the files of its tools: `mixed` if there are several."""
    found = {kind for name, kind in _PROJECT_FILES.items() if Path(root, name).is_file()}
    if len(found) > 1:
        return "mixed"
    return found.pop() if found else "unknown"


def git_remote(root: str) -> str | None:
    """Return the URL from which a repository was cloned, without credentials; None if unknown."""
    config = configparser.RawConfigParser(strict=False, allow_no_value=True)
    try:
        content = read_file(str(Path(root, ".git", "config")), _CONFIG_LIMIT)
        text = content.decode("utf-8", "replace")
        config.read_string("\n".join(line.strip() for line in text.splitlines()))
    except (UnreadableFile, configparser.Error):
        return None
    remotes = [one for one in config.sections() if one.startswith("remote ")]
    best = 'remote "origin"' if 'remote "origin"' in remotes else next(iter(remotes), None)
    url = None if best is None else config.get(best, "url", fallback=None)
    return None if not url else _without_credentials(url)


def _without_credentials(url: str) -> str:
    return _USERINFO.sub("", redacted(url), 1) if "://" in url else url
