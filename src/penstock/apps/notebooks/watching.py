"""Watches a notebook for what others do to it.

What the system tells about changes is a hint to look, and nothing more: it misses files when whole
trees are copied, forgets when there is too much, and tells of our own writes as of others'. So
every hint leads to a comparison with what is known; so do the start, a burst that is too large to
be trusted, and the clock, now and then.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from penstock.apps.notebooks.errors import Passing
from penstock.apps.notebooks.files import Tree
from penstock.apps.notebooks.paths import STATE
from penstock.apps.notebooks.reconciling import (
    SETTLE,
    Found,
    KnownFiles,
    Reconciled,
    is_ignored,
    reconcile,
)

PERIOD = 60.0
"""Seconds after which the whole notebook is looked at in any case."""

_ROOT_CHECK = 2.0
_BACK_OFF = 2.0
_LOOKS = 25
"""So often is a path looked at that never comes to rest; then it is taken as it is."""
_BURST = 5_000
"""Hints at once beyond which some may be missing: the system keeps 16,384 for us."""
_SOON = 1.0
"""Seconds until the whole is looked at again if there was something new; then twice as long."""
_MARGIN = 1.0
"""Seconds by which the system may note a change too early."""
_STEP = 100
_TICK = 1_000

Handle = Callable[[list[Found]], Awaitable[None]]

_log = logging.getLogger(__name__)


class Watcher:
    """Watches one notebook. Tells each change once, until what is known agrees with it."""

    def __init__(
        self,
        tree: Tree,
        known: KnownFiles,
        handle: Handle,
        *,
        period: float = PERIOD,
        is_own: Callable[[str], bool] = lambda _: False,
        steady: asyncio.Lock | None = None,
    ) -> None:
        """`handle` is called with what was found; what it raises is found again later.

        `is_own` tells paths at which there is just what the server wrote: no hint is needed. It
        looks while it has `steady`.
        """
        self._is_own = is_own
        self._steady = steady or asyncio.Lock()
        self._tree = tree
        self._root = os.path.realpath(tree.root)
        self._known = known
        self._handle = handle
        self._period = period
        self._hints: set[str] = set()
        self._hinted = asyncio.Event()
        self._looks: dict[str, int] = {}
        self._told: dict[str, Found] = {}
        self._refused: set[str] = set()
        self.problem: str | None = None
        """Why nothing is watched for the moment."""
        self._looked = 0.0
        """When it began to look at the whole notebook for the last time."""
        self.looks = 0
        """How often it has looked at the whole notebook."""

    async def run(self) -> None:
        """Watch, until it is cancelled; a notebook that is gone is waited for."""
        while True:
            try:
                await self._watch()
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the watch
                self._say(str(error) or type(error).__name__)
            await asyncio.sleep(_BACK_OFF)

    async def _watch(self) -> None:
        root = _identity(self._tree.root)
        hinting = asyncio.create_task(self._gather())
        try:
            self._told.clear()
            await self._look_at_all()
            pause = _SOON
            due = time.monotonic() + pause
            while True:
                await self._pause(hinting)
                if _identity(self._tree.root) != root:
                    raise Passing(f"the notebook's folder {self._root!r} is gone")
                if "" in self._hints:
                    self._say(None)
                if len(self._hints) > _BURST or "" in self._hints:
                    pause, due = _SOON, 0
                if time.monotonic() >= due:
                    if pause >= self._period:
                        self._told.clear()  # who was told has had the time to know it
                    is_quiet = await self._look_at_all()
                    pause = self._period if is_quiet else min(2 * pause, self._period)
                    due = time.monotonic() + pause
                else:
                    await self._look_at_hints()
        finally:
            hinting.cancel()
            await asyncio.gather(hinting, return_exceptions=True)

    async def _gather(self) -> None:
        """Gather hints, for ever; the first turn says that nothing is missed from now on."""
        from watchfiles import awatch

        is_watching = False
        async for changes in awatch(
            self._root,
            watch_filter=self._concerns,
            step=_STEP,
            debounce=5 * _STEP,
            rust_timeout=_TICK,
            yield_on_timeout=True,
        ):
            hinted = {self._inside(path) for _, path in changes}
            self._hints.update(path for path in hinted if not self._is_own(path))
            if not is_watching:
                self._hints.add("")
                is_watching = True
            if self._hints:
                self._hinted.set()

    def _concerns(self, _change: object, path: str) -> bool:
        return not is_ignored(self._inside(path))

    def _inside(self, path: str) -> str:
        return path[len(self._root) + 1 :]

    async def _pause(self, hinting: "asyncio.Task[None]") -> None:
        """Wait for hints; or for what has to be looked at again, or to see if the root is there."""
        if hinting.done():
            await hinting
            raise Passing("the system does not tell of changes any more")
        try:
            async with asyncio.timeout(SETTLE if self._looks else _ROOT_CHECK):
                await self._hinted.wait()
        except TimeoutError:
            pass
        self._hinted.clear()

    # Looking

    async def _look_at_all(self) -> bool:
        """Look at the whole notebook; whether there was nothing new."""
        self._hints.clear()
        self._looks = {}
        begun = time.time()
        is_quiet = await self._look({"": 0})
        self._looked = begun - _MARGIN
        self.looks += 1
        return is_quiet

    async def _look_at_hints(self) -> None:
        paths = dict.fromkeys(self._hints, 0) | self._looks
        self._hints.clear()
        if paths:
            await self._look(paths)

    async def _look(self, paths: Mapping[str, int]) -> bool:
        """Look at paths, tell what was found, and note what to look at again.

        Whether there was nothing new.
        """
        is_quiet = True
        tired = [path for path, looks in paths.items() if looks >= _LOOKS]
        fresh = [path for path in paths if path not in tired]
        self._looks = {}
        for some, patient in ((fresh, True), (tired, False)):
            if some:
                async with self._steady:
                    result = await asyncio.to_thread(
                        reconcile,
                        self._tree,
                        self._known,
                        some,
                        patient=patient,
                        since=self._looked,
                    )
                is_quiet = await self._tell(result, paths) and is_quiet
        return is_quiet

    async def _tell(self, result: Reconciled, paths: Mapping[str, int]) -> bool:
        for path in result.unsettled:
            self._looks[path] = paths.get(path, 0) + 1
        for path, why in result.refused.items():
            if path not in self._refused:
                _log.warning("%r in %s is left alone: it %s", path, self._root, why)
        self._refused |= result.refused.keys()
        news = [one for one in result.found if self._told.get(one.path) != one]
        if news or result.unsettled:
            # A folder with something new in it may have got more since, before it was watched.
            again = {path: looks + 1 for path, looks in paths.items() if path}
            self._looks |= {path: n for path, n in again.items() if self._is_folder(path)}
        if news:
            await self._handle(news)
            self._told |= {one.path: one for one in news}
        return not news and not result.unsettled

    def _is_folder(self, path: str) -> bool:
        return (self._tree.root / path).is_dir()

    def _say(self, problem: str | None) -> None:
        if problem and problem != self.problem:
            _log.warning("%s is not watched for the moment: %s", self._root, problem)
        elif problem is None and self.problem:
            _log.info("%s is watched again", self._root)
        self.problem = problem


def _identity(root: Path) -> tuple[int, int]:
    """Which folder it is; raises `Passing` if it is not there, or not as we left it."""
    try:
        (root / STATE).stat()
        about = root.stat()
    except OSError as error:
        raise Passing(f"the notebook's folder {str(root)!r} is gone") from error
    return about.st_dev, about.st_ino
