"""What stands before a store and changes a verb or two of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self, cast

from penstock.core.store import Store
from penstock.engine import Penstock


class Proxy:
    """Hands every verb on to a store, those included that are yet to be invented."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def close(self) -> None:
        """Nothing: who opened the store closes it."""

    @contextmanager
    def before(self, app: Penstock) -> Iterator[Self]:
        """Stand before the store of an app inside the block."""
        with app.elsewhere(app.url, cast("Store", self), app.clock):
            yield self
