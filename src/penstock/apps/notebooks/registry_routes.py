"""The part of the notebook API that registers notebooks."""

import asyncio

from penstock import Access
from penstock.apps.notebooks import reading, requests, shapes
from penstock.apps.notebooks.answers import answering
from penstock.apps.notebooks.library import Library
from penstock.apps.notebooks.routes import check_available
from penstock.apps.notebooks.service import Notebooks
from penstock.apps.notebooks.settings import Settings
from penstock.apps.notebooks.tables import Notebook
from penstock.http.routes import Answer, route


class RegistryRoutes:
    """What the server serves of notebooks."""

    def __init__(self, notebooks: Notebooks, library: Library, settings: Settings) -> None:
        self._notebooks = notebooks
        self._library = library
        self._settings = settings

    async def _find(self, name: str) -> Notebook:
        check_available(self._library)
        return await self._library.find(name)

    async def _shown(self, notebook: Notebook) -> shapes.NotebookShape:
        return (await self._all_shown([notebook]))[0]

    async def _all_shown(self, found: list[Notebook]) -> list[shapes.NotebookShape]:
        held = await self._notebooks.held([one.id for one in found])
        problems = await asyncio.to_thread(lambda: [reading.git_problem(one) for one in found])
        return [
            shapes.notebook_shape(
                one,
                self._settings,
                watch_problem=self._library.watch_problem(one.id),
                no_repository=problem,
                held_count=held[one.id].number,
                held=held[one.id].first,
            )
            for one, problem in zip(found, problems, strict=True)
        ]

    @route(
        "POST",
        "/api/v1/notebooks",
        Access.ADMIN,
        "Register a notebook",
        answers={201: shapes.NotebookShape},
        examples={"body": {"name": "garden"}},
    )
    @answering
    async def add(self, body: requests.NewNotebook) -> Answer:
        """Register a folder as a notebook: a new one, or one that is there with its files.

        The files that are in it are looked at in the background.
        """
        check_available(self._library)
        return Answer(201, await self._shown(await self._notebooks.add(body)))

    @route(
        "GET",
        "/api/v1/notebooks",
        Access.READ,
        "List notebooks",
        answers={200: shapes.NotebookList},
    )
    @answering
    async def all(self) -> shapes.NotebookList:
        """Every notebook, by name."""
        check_available(self._library)
        return shapes.NotebookList(await self._all_shown(await self._library.all()))

    @route(
        "GET",
        "/api/v1/notebooks/{notebook}",
        Access.READ,
        "Look at a notebook",
        answers={200: shapes.NotebookShape},
    )
    @answering
    async def look(self, notebook: str) -> shapes.NotebookShape:
        """A notebook, by its id or its name."""
        return await self._shown(await self._find(notebook))

    @route(
        "PATCH",
        "/api/v1/notebooks/{notebook}",
        Access.ADMIN,
        "Change a notebook",
        answers={200: shapes.NotebookShape},
        examples={"body": {"settings": {"commit_interval": 60}}},
    )
    @answering
    async def change(self, notebook: str, body: requests.NotebookChange) -> shapes.NotebookShape:
        """Give a notebook another name, or settings of its own in the place of those it has."""
        found = await self._find(notebook)
        return await self._shown(await self._notebooks.change(found, body))

    @route(
        "DELETE",
        "/api/v1/notebooks/{notebook}",
        Access.ADMIN,
        "Remove a notebook from the registry",
        answers={204: None},
    )
    @answering
    async def remove(self, notebook: str) -> Answer:
        """Forget a notebook with what is known of its files. The files and their history stay."""
        await self._notebooks.remove(await self._find(notebook))
        return Answer(204)
