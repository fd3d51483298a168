"""A program whose app the tests of `WorkerProcess` start in another process."""

import asyncio
from pathlib import Path

from penstock import Penstock

app = Penstock("sqlite:///never-opened.db")


@app.task
async def write(file: str, text: str) -> None:
    with Path(file).open("a") as out:  # noqa: ASYNC230 - a line
        out.write(text + "\n")


@app.task
async def hang() -> None:
    await asyncio.Event().wait()


@app.task
def fail() -> None:
    raise RuntimeError("broken on purpose")
