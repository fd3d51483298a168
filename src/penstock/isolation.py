"""Isolation: what a task asks for that runs in a child process."""

from typing import Any, Literal, TypedDict

import msgspec

from penstock.core.errors import ConfigurationError

RECYCLE = 100
LEAST_MEMORY = 32_000_000


class IsolationOptions(TypedDict, total=False):
    """Where the handler of a task runs."""

    isolation: Literal["process"] | None
    memory: int
    recycle: int


class Isolation(msgspec.Struct, frozen=True, gc=False):
    """A child process of one's own; tasks that ask for the same share their children.

    `memory` is how many bytes of data the process may hold, its own interpreter included;
    `recycle` is how many jobs it runs before it is replaced.
    """

    memory: int | None = None
    recycle: int = RECYCLE


class Origin(msgspec.Struct, frozen=True):
    """How a child process makes an app again that stands in no module.

    `function` is `module:name`. It is called with `argument`, any text, and returns a `Penstock`
    with the same isolated tasks.
    """

    function: str
    argument: str


def take_isolation(task: str, options: dict[str, Any]) -> Isolation | None:
    """Take the isolation of a task out of its options; raises `ConfigurationError`."""
    kind = options.pop("isolation", None)
    asked = {name: options.pop(name) for name in ("memory", "recycle") if name in options}
    if kind not in (None, "process"):
        raise ConfigurationError(f'task {task}: isolation is "process" or None, not {kind!r:.80}')
    if kind is None:
        if asked:
            words = " and ".join(asked)
            raise ConfigurationError(f'task {task}: {words} need isolation="process"')
        return None
    memory, recycle = asked.get("memory"), asked.get("recycle", RECYCLE)
    if memory is not None and (type(memory) is not int or memory < LEAST_MEMORY):
        raise ConfigurationError(
            f"task {task}: memory is a number of bytes, {LEAST_MEMORY} or more, "
            f"not {memory!r:.80}; a bare interpreter needs about that much"
        )
    if type(recycle) is not int or recycle < 1:
        raise ConfigurationError(
            f"task {task}: recycle is a number of jobs, 1 or more, not {recycle!r:.80}"
        )
    return Isolation(memory, recycle)
