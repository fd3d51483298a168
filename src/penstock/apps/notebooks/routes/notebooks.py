"""Routes that register notebooks."""

import asyncio

import msgspec
from msgspec import UNSET

from penstock import Penstock
from penstock.apps.kit import route
from penstock.apps.notebooks import requests, shapes, tables
from penstock.apps.notebooks.operations.publisher import Publisher
from penstock.apps.notebooks.registry import Registry
from penstock.apps.notebooks.routes.events import answering
from penstock.apps.notebooks.settings import Settings
from penstock.apps.notebooks.tables import Notebook
from penstock.tables import Statements
from penstock.tokens import Access

_SHOWN = 20


class RegistryRoutes:
    """The routes for notebooks."""

    def __init__(
        self, penstock: Penstock, registry: Registry, publisher: Publisher, settings: Settings
    ) -> None:
        self._penstock = penstock
        self._registry = registry
        self._publisher = publisher
        self._settings = settings

    async def _shown(self, notebook: Notebook) -> shapes.NotebookShape:
        return (await self._all_shown([notebook]))[0]

    async def _all_shown(self, found: list[Notebook]) -> list[shapes.NotebookShape]:
        def read_held(tx: Statements) -> list[tuple[int, list[tuple[str, str]]]]:
            counts = tables.count_uncommitted(tx, held=True)
            return [
                (n, tables.held_paths(tx, one.id, _SHOWN) if n else [])
                for one in found
                for n in (counts.get(one.id, 0),)
            ]

        held = await self._penstock.tables.read(read_held)
        problems = await asyncio.to_thread(lambda: [one.repository_problem for one in found])
        return [
            shapes.notebook_shape(
                one,
                self._settings,
                watch_problem=self._registry.watch_problem(one.id),
                repository_problem=problem,
                held_count=count,
                held=first,
            )
            for one, problem, (count, first) in zip(found, problems, held, strict=True)
        ]

    @route(
        "POST", "/api/v1/notebooks", Access.ADMIN, status=201, examples={"body": {"name": "garden"}}
    )
    @answering
    async def add(self, body: requests.NewNotebook) -> shapes.NotebookShape:
        """Register a notebook.

        Registers a folder as a notebook: a new folder, or an existing one with its files, which
        are read in the background.
        """
        notebook = await self._registry.add(
            body.name, body.path, git=body.git, joins=body.repository == "join"
        )
        await self._publisher.publish_scan(notebook.id)
        return await self._shown(notebook)

    @route("GET", "/api/v1/notebooks", Access.READ)
    @answering
    async def all(self) -> shapes.NotebookList:
        """List notebooks.

        Returns every notebook, by name.
        """
        return shapes.NotebookList(await self._all_shown(await self._registry.all()))

    @route("GET", "/api/v1/notebooks/{notebook}", Access.READ)
    @answering
    async def look(self, notebook: str) -> shapes.NotebookShape:
        """Show a notebook.

        The notebook is given by its id or its name.
        """
        return await self._shown(await self._registry.find(notebook))

    @route(
        "PATCH",
        "/api/v1/notebooks/{notebook}",
        Access.ADMIN,
        examples={"body": {"settings": {"commit_interval": 60}}},
    )
    @answering
    async def change(self, notebook: str, body: requests.NotebookChange) -> shapes.NotebookShape:
        """Change a notebook.

        Renames a notebook, or replaces its own settings. The change applies at once, in every
        process.
        """
        found = await self._registry.find(notebook)
        name = found.name if body.name is UNSET else body.name
        settings = found.settings
        if body.settings is not UNSET:
            settings = msgspec.to_builtins(body.settings)
        changed = await self._registry.change(found, name, settings)
        await self._publisher.publish_scan(found.id)
        intervals = {one.settings.get("commit_interval") for one in (found, changed)}
        if changed.git and len(intervals) > 1:  # changes that already wait use the old interval
            await self._publisher.publish_commit(changed.id)
        return await self._shown(changed)

    @route("DELETE", "/api/v1/notebooks/{notebook}", Access.ADMIN, status=204)
    @answering
    async def remove(self, notebook: str) -> None:
        """Remove a notebook from the registry.

        Forgets a notebook and what is known of its files. The files and their history stay.
        """
        found = await self._registry.find(notebook)
        await self._registry.remove(found)
        await self._publisher.publish_scan(found.id)
