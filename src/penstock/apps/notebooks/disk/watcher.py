"""Watches a notebook for changes that others make.

A notification of the system is only a hint to look: it misses files when whole trees are copied,
drops events when there are too many, and reports the server's own writes too. So every hint leads
to a scan of its paths. The whole notebook is scanned at the start, after a burst that is too large
to be trusted, and periodically.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from penstock.apps.notebooks.disk.scan import (
    SETTLE,
    Difference,
    KnownFiles,
    ScanResult,
    is_ignored,
    scan,
)
from penstock.apps.notebooks.disk.tree import Tree
from penstock.apps.notebooks.errors import Transient
from penstock.apps.notebooks.paths import STATE

PERIOD = 60.0
"""Seconds between two scans of the whole notebook."""

_ROOT_CHECK = 2.0
_BACK_OFF = 2.0
_MOST_SCANS = 25
"""After this many scans, a path that never settles is taken as it is."""
_BURST = 5_000
"""With more hints at once, some may be missing: the system keeps 16,384."""
_SOON = 1.0
"""Seconds until the whole is scanned again after something was found; the delay doubles each
time."""
_MARGIN = 1.0
"""Seconds by which the recorded time of a change may be too early."""
_STEP = 100
_TICK = 1_000

Handle = Callable[[list[Difference]], Awaitable[None]]

_log = logging.getLogger(__name__)


class Watcher:
    """Watches one notebook. Reports each change once, until what is known agrees with it."""

    def __init__(
        self,
        tree: Tree,
        known: KnownFiles,
        handle: Handle,
        *,
        period: float = PERIOD,
        is_own: Callable[[str], bool] = lambda _: False,
        scan_lock: asyncio.Lock | None = None,
    ) -> None:
        """`handle` is called with what was found. If it raises, the same is found again later.

        `is_own` recognises paths at which there is what the server wrote: they need no scan.
        `scan_lock` is held during a scan.
        """
        self._is_own = is_own
        self._scan_lock = scan_lock or asyncio.Lock()
        self._tree = tree
        self._root = os.path.realpath(tree.root)
        self._known = known
        self._handle = handle
        self._period = period
        self._hints: set[str] = set()
        self._hinted = asyncio.Event()
        self._rescans: dict[str, int] = {}
        self._reported: dict[str, Difference] = {}
        self._refused: set[str] = set()
        self.problem: str | None = None
        """Why nothing is watched at the moment."""
        self._scanned = 0.0
        """When the last scan of the whole notebook started."""
        self.scans = 0
        """How often the whole notebook was scanned."""

    async def run(self) -> None:
        """Watch until cancelled; wait for a notebook that is gone."""
        while True:
            try:
                await self._watch()
            except Exception as error:  # noqa: BLE001 - no error may end the watch
                self._set_problem(str(error) or type(error).__name__)
            await asyncio.sleep(_BACK_OFF)

    async def _watch(self) -> None:
        root = _identity(self._tree.root)
        hinting = asyncio.create_task(self._gather())
        try:
            self._reported.clear()
            await self._scan_all()
            pause = _SOON
            due = time.monotonic() + pause
            while True:
                await self._pause(hinting)
                if _identity(self._tree.root) != root:
                    raise Transient(f"the folder of the notebook, {self._root!r}, is gone")
                if "" in self._hints:  # the first event of the system
                    self._set_problem(None)
                if len(self._hints) > _BURST or "" in self._hints:
                    pause, due = _SOON, 0
                if time.monotonic() >= due:
                    if pause >= self._period:
                        self._reported.clear()  # what was reported has had time to become known
                    nothing_new = await self._scan_all()
                    pause = self._period if nothing_new else min(2 * pause, self._period)
                    due = time.monotonic() + pause
                else:
                    await self._scan_hints()
        finally:
            hinting.cancel()
            await asyncio.gather(hinting, return_exceptions=True)

    async def _gather(self) -> None:
        """Collect hints forever; the first event means that no change is missed from now on."""
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
        """Wait for hints, for the next scan of unsettled paths, or to check the root folder."""
        if hinting.done():
            await hinting
            raise Transient("the system has stopped reporting changes")
        try:
            async with asyncio.timeout(SETTLE if self._rescans else _ROOT_CHECK):
                await self._hinted.wait()
        except TimeoutError:
            pass
        self._hinted.clear()

    # Scanning

    async def _scan_all(self) -> bool:
        """Scan the whole notebook; return whether nothing was new."""
        self._hints.clear()
        self._rescans = {}
        begun = time.time()
        nothing_new = await self._scan({"": 0})
        self._scanned = begun - _MARGIN
        self.scans += 1
        return nothing_new

    async def _scan_hints(self) -> None:
        paths = dict.fromkeys(self._hints, 0) | self._rescans
        self._hints.clear()
        if paths:
            await self._scan(paths)

    async def _scan(self, paths: Mapping[str, int]) -> bool:
        """Scan paths, report what was found, and record what to scan again.

        Returns whether nothing was new.
        """
        nothing_new = True
        restless = [path for path, scans in paths.items() if scans >= _MOST_SCANS]
        fresh = [path for path in paths if path not in restless]
        self._rescans = {}
        for some, patient in ((fresh, True), (restless, False)):
            if some:
                async with self._scan_lock:
                    result = await asyncio.to_thread(
                        scan,
                        self._tree,
                        self._known,
                        some,
                        patient=patient,
                        since=self._scanned,
                    )
                nothing_new = await self._report(result, paths) and nothing_new
        return nothing_new

    async def _report(self, result: ScanResult, paths: Mapping[str, int]) -> bool:
        for path in result.unsettled:
            self._rescans[path] = paths.get(path, 0) + 1
        for path, why in result.refused.items():
            if path not in self._refused:
                _log.warning("%r in %s is ignored: it %s", path, self._root, why)
        self._refused |= result.refused.keys()
        news = [one for one in result.found if self._reported.get(one.path) != one]
        if news or result.unsettled:
            # A folder with something new may have received more before it was watched.
            again = {path: scans + 1 for path, scans in paths.items() if path}
            self._rescans |= {path: n for path, n in again.items() if self._is_folder(path)}
        if news:
            await self._handle(news)
            self._reported |= {one.path: one for one in news}
        return not news and not result.unsettled

    def _is_folder(self, path: str) -> bool:
        return (self._tree.root / path).is_dir()

    def _set_problem(self, problem: str | None) -> None:
        if problem and problem != self.problem:
            _log.warning("%s is not being watched: %s", self._root, problem)
        elif problem is None and self.problem:
            _log.info("%s is watched again", self._root)
        self.problem = problem


def _identity(root: Path) -> tuple[int, int]:
    """Identify the root folder; raises `Transient` if it or its state folder is gone."""
    try:
        (root / STATE).stat()
        about = root.stat()
    except OSError as error:
        raise Transient(f"the folder of the notebook, {str(root)!r}, is gone") from error
    return about.st_dev, about.st_ino
