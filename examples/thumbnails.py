"""Thumbnails in processes that can be killed: one hostile picture does not stop the others.

Each picture is opened in a child process with limited memory and time. One of those that the
program draws is a small file that needs far too much memory: its job fails, and the rest is done.

    python thumbnails.py                      # pictures/*.png -> thumbnails/*.png
"""

import asyncio
from datetime import timedelta
from pathlib import Path

from PIL import Image

from penstock import Penstock, RetryPolicy, Worker, context

PICTURES, THUMBNAILS = Path("pictures"), Path("thumbnails")
app = Penstock("sqlite:///thumbnails.db")


@app.task(
    isolation="process",
    memory=300_000_000,
    timeout=timedelta(seconds=60),
    retry=RetryPolicy(attempts=1),
)
def shrink(name: str, width: int = 128) -> str:
    """Write a thumbnail; a second run replaces it with the same one."""
    with Image.open(PICTURES / name) as picture:
        small = picture.convert("RGB")
    small.thumbnail((width, width))
    small.save(THUMBNAILS / name)
    context().logger.info("%s is %d x %d", name, *small.size)
    return f"{small.width} x {small.height}"


def draw() -> list[str]:
    """Make a few pictures, and one that is small as a file and huge in memory."""
    PICTURES.mkdir(exist_ok=True)
    THUMBNAILS.mkdir(exist_ok=True)
    for n, colour in enumerate(("teal", "gold", "crimson", "navy")):
        Image.new("RGB", (400 + 100 * n, 300), colour).save(PICTURES / f"{colour}.png")
    Image.new("1", (9_000, 9_000)).save(PICTURES / "hostile.png")
    return sorted(path.name for path in PICTURES.glob("*.png"))


async def main() -> None:
    """Enqueue a job for each picture, run them all, and show what came of them."""
    names = draw()
    async with app:
        jobs = await app.enqueue_batch([shrink.new(name) for name in names])
        await Worker(app, concurrency=2).run(until_empty=True)
        for job in jobs:
            ended = await app.get(job.id)
            error = (ended.error or "").partition("\n")[0]
            print(ended.args["name"], ended.state, ended.returned or error)


if __name__ == "__main__":
    asyncio.run(main())
