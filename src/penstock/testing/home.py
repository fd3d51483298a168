"""Points apps at fresh stores for one test."""

import contextlib
from collections.abc import Iterator
from typing import cast

from penstock.core.errors import ConfigurationError
from penstock.core.store import Store
from penstock.engine import Penstock
from penstock.stores import open_store
from penstock.testing.calls import call
from penstock.testing.clock import Clock
from penstock.testing.proxy import Proxy

MEMORY = "memory://"


@contextlib.contextmanager
def fresh(*apps: Penstock, url: str = MEMORY, clock: Clock | None = None) -> Iterator[Penstock]:
    """Point apps of a program at fresh stores inside the block, and back to their own behind it.

    Apps that share a store, because they have the same URL, share one here too. All are on one
    clock, which stands still unless moved: `app.clock` if none is given. With another `url` than
    memory, its `{n}` becomes the number of the store, if there are several.

    For `with` in any test, synchronous or not. What is still running when the block ends must
    not go on: stop workers first.
    """
    if not apps:
        raise ConfigurationError("fresh takes the apps to point at fresh stores: fresh(app)")
    clock = clock or Clock()
    groups = sharing(apps)
    if len(groups) > 1 and url != MEMORY and "{n}" not in url:
        raise ConfigurationError(
            f"these apps have {len(groups)} stores: write {{n}} into {url!r}, for their numbers"
        )
    with contextlib.ExitStack() as stack:
        for n, group in enumerate(groups, 1):
            home = url.replace("{n}", str(n))
            opened = open_store(home, clock=clock)
            stack.callback(lambda store: call(store.close()), opened)
            for app in group:
                stack.enter_context(app.elsewhere(home, cast("Store", Proxy(opened)), clock))
        yield apps[0]


def sharing(apps: tuple[Penstock, ...]) -> list[list[Penstock]]:
    """The apps by the store they have: by URL, but what is in memory is each one's own."""
    groups: dict[object, list[Penstock]] = {}
    for app in dict.fromkeys(apps):
        groups.setdefault(app if app.url == MEMORY else app.url, []).append(app)
    return list(groups.values())
