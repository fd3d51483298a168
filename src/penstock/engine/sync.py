"""Calls from synchronous code: `run_sync`, and `sync` in front of a call, as in `app.sync.find()`.

`Sync` makes all of these calls; type checkers and editors read in the stub of `sync_calls` which
there are.
"""

import inspect
from collections.abc import Callable, Coroutine, Iterator
from functools import lru_cache, wraps
from types import MethodType
from typing import Any, TypeVar

from penstock.core.errors import ConfigurationError
from penstock.runtime import running_loop

T = TypeVar("T")


def run_sync(awaitable: Coroutine[Any, Any, T]) -> T:
    """Run a call of this package from synchronous code: `run_sync(task.enqueue(1))`.

    The same as `task.sync.enqueue(1)`, for a coroutine that is there already. Starts nothing:
    without a running event loop, stores answer in the calling thread.
    """
    if running_loop() is None:
        try:
            awaitable.send(None)
        except StopIteration as answer:
            return answer.value  # type: ignore[no-any-return] # a coroutine's own result
        awaitable.close()
        raise ConfigurationError(
            "this coroutine waits for an event loop, which run_sync does not start; run_sync is "
            "for calls of Penstock, other coroutines need asyncio.run"
        )
    awaitable.close()
    raise ConfigurationError(
        "run_sync is for calls outside an event loop; inside one, await the call"
    )


class Sync:
    """The coroutines of an object as plain functions, which return when the call is done."""

    __slots__ = ("_owner",)

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def __repr__(self) -> str:
        return f"<synchronous calls of {self._owner!r}>"

    def __dir__(self) -> list[str]:
        kind: Any = type(self._owner)
        return [name for name in dir(kind) if not name.startswith("_") and _synchronous(kind, name)]

    def __getattr__(self, name: str) -> Any:
        kind: Any = type(self._owner)
        function = _synchronous(kind, name)
        if function is not None:
            return MethodType(function, self._owner)
        getattr(self._owner, name)  # raises the usual error if there is nothing of this name
        raise AttributeError(
            f"{kind.__name__}.{name} is not a coroutine: use it as it is, without sync; what it "
            "returns may have a sync of its own"
        )

    def __enter__(self) -> Any:
        _check_no_loop("with …sync")
        return run_sync(self._owner.__aenter__())

    def __exit__(self, *error: object) -> None:
        run_sync(self._owner.__aexit__(*error))


@lru_cache(maxsize=1024)
def _synchronous(owner: type, name: str) -> Callable[..., Any] | None:
    """Return the synchronous form of a method of a class; None if it is not a coroutine."""
    method: Any = inspect.getattr_static(owner, name, None)
    if inspect.iscoroutinefunction(method):
        finish: Callable[[Any], Any] = run_sync
    elif inspect.isasyncgenfunction(method):
        finish = _items
    else:
        return None

    @wraps(method)
    def synchronous(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
        _check_no_loop(name)
        return finish(getattr(owner, name)(*args, **kwargs))

    return synchronous


def _items(found: Any) -> Iterator[Any]:
    try:
        while True:
            yield run_sync(found.__anext__())
    except StopAsyncIteration:
        return
    finally:
        run_sync(found.aclose())


def _check_no_loop(name: str) -> None:
    """Refuse to block an event loop, before the coroutine is made."""
    if running_loop() is not None:
        raise ConfigurationError(
            f"an event loop runs in this thread, and sync.{name}(…) would block it: write "
            f"`await ….{name}(…)`, without sync; in a function that is not a coroutine, make the "
            "call in another thread, for example with asyncio.to_thread"
        )
