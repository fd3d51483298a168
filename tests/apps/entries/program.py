"""A program that replaces all entries by those of a file, or rebuilds the index, to be killed."""

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path

from penstock.apps.entries import queue
from penstock.apps.entries.reconciliation import rebuild
from penstock.apps.entries.transfers import Options, import_records
from tests.apps.entries.support import opened, records


async def main(url: str, folder: str, content: bytes | None) -> None:
    """Print each step as it begins."""

    def report(_done: int, _total: int | None, step: str) -> None:
        sys.stdout.write(f"{step}\n")
        sys.stdout.flush()

    queue.PAUSE = timedelta(seconds=float(os.environ.get("PAUSE", "30")))
    async with opened(url, Path(folder)) as entries:
        if content is None:
            await rebuild(entries, "others", progress=report)
        else:
            found, options = records(entries, content), Options(mode="replace")
            await import_records(entries, found, options, name="1", progress=report)
        report(0, 0, "over")


if __name__ == "__main__":
    _, its_url, its_folder, *files = sys.argv
    asyncio.run(main(its_url, its_folder, Path(files[0]).read_bytes() if files else None))
