"""Stores for tests: fresh ones, and proxies that change some of a store's methods."""

import contextlib
from collections.abc import Iterator
from typing import Any, Self, cast

from penstock.core.errors import ConfigurationError
from penstock.core.store import Store
from penstock.engine.penstock import Penstock
from penstock.runtime import Runtime
from penstock.stores import open_store
from penstock.testing.calls import call
from penstock.testing.clock import Clock

MEMORY = "memory://"


@contextlib.contextmanager
def fresh(*apps: Penstock, url: str = MEMORY, clock: Clock | None = None) -> Iterator[Penstock]:
    """Point apps at fresh stores inside the block, and back at their own stores after it.

    Apps with the same URL share a store here too. All apps use one clock, which stands still until
    it is moved; it is available as `app.clock`. If there are several stores and `url` is not in
    memory, it must contain `{n}`, which is replaced by the number of the store.

    Works in synchronous and asynchronous tests. Stop workers before the block ends.
    """
    if not apps:
        raise ConfigurationError("fresh takes the apps to point at fresh stores: fresh(app)")
    clock = clock or Clock()
    groups = grouped_by_store(apps)
    if len(groups) > 1 and url != MEMORY and "{n}" not in url:
        raise ConfigurationError(
            f"these apps have {len(groups)} stores: add {{n}} to {url!r}, to number them"
        )
    with contextlib.ExitStack() as stack:
        for n, group in enumerate(groups, 1):
            own_url = url.replace("{n}", str(n))
            store = open_store(own_url, runtime=Runtime(clock))
            stack.callback(lambda opened: call(opened.close()), store)
            for app in group:
                stack.enter_context(
                    app.connection.elsewhere(
                        own_url, cast("Store", Proxy(store)), app.runtime.with_clock(clock)
                    )
                )
                stack.enter_context(app.limits.afresh())
        yield apps[0]


def grouped_by_store(apps: tuple[Penstock, ...]) -> list[list[Penstock]]:
    """Group apps by URL; each app in memory has a store of its own."""
    groups: dict[object, list[Penstock]] = {}
    for app in dict.fromkeys(apps):
        groups.setdefault(app if app.url == MEMORY else app.url, []).append(app)
    return list(groups.values())


class Proxy:
    """Forwards every method to a store, including methods that do not exist yet."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def close(self) -> None:
        """Do nothing: the opener of the store closes it."""

    @contextlib.contextmanager
    def before(self, app: Penstock) -> Iterator[Self]:
        """Replace the store of an app by this proxy inside the block."""
        with app.connection.elsewhere(
            app.url, cast("Store", self), app.runtime.with_clock(app.clock)
        ):
            yield self
