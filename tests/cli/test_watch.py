import asyncio
import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from penstock import JobQuery, Note, Penstock, Progress, Worker, context, run_sync
from penstock.cli.watch import Ended, _picture, bar
from penstock.client.remote import RemotePenstock
from tests.cli.support import COMMAND, SOON, Shell
from tests.client.support import serving


@pytest.mark.parametrize(
    ("fraction", "shown"), [(0, "   0%"), (0.5, "  50%"), (1, " 100%"), (None, "")]
)
def test_bar_says_its_share(fraction: float | None, shown: str) -> None:
    drawn = bar(fraction)
    assert drawn.endswith(shown)
    assert drawn.count("━") == 20 * (fraction or 0)


def test_pipe_is_refused(app: Penstock, shell: Shell) -> None:
    assert "log --follow" in shell.error("jobs", "--watch", code=2)


def test_terminal_shows_queues_and_jobs_until_ctrl_c(app: Penstock, url: str) -> None:
    @app.task(queue="pictures")
    async def resize() -> None:
        context().progress(1, 4, "img-1.png")

    run_sync(resize.enqueue())
    asyncio.run(Worker(app).run(until_empty=True))
    run_sync(resize.enqueue())
    run_sync(app.claim(worker="web1", limit=1))
    run_sync(app.enqueue_many([resize.new()] * 50))  # a backlog hides nothing
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES"):
        environment.pop(name, None)
    command = [*COMMAND, "jobs", "--watch", "--store", url]
    with subprocess.Popen(
        command, stdout=terminal, stderr=subprocess.DEVNULL, env=environment
    ) as watching:
        os.close(terminal)
        try:
            picture = read_until(main, b"Ended last", b"done", b"Waiting")
        finally:
            watching.send_signal(signal.SIGINT)
            assert watching.wait(SOON) == 130
            os.close(main)
    for text in (b"pictures", b"Running", b"web1", b"resize"):
        assert text in picture
    assert picture.index(b"Running") < picture.index(b"Ended last") < picture.index(b"Waiting")


def test_server_is_watched_as_its_store_is(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        app = Penstock(server.store)

        @app.task(queue="pictures")
        async def resize() -> None: ...

        run_sync(resize.enqueue())
        asyncio.run(Worker(app).run(until_empty=True))
        run_sync(resize.enqueue())
        (job,) = run_sync(app.claim(worker="web1", limit=1))
        said = datetime.now(UTC)
        progress = Progress(30, 40, "img-1.png", said, said - timedelta(seconds=10), 10)
        run_sync(app.note([Note(lease=job.lease, progress=progress)]))
        remote = RemotePenstock(server.url, blocking=True)
        console = Console(width=140, file=io.StringIO())
        console.print(_picture(remote, JobQuery(), Ended()))
        run_sync(remote.close())
        run_sync(app.close())
        picture = console.file.getvalue()  # type: ignore[attr-defined] # it is a StringIO
    assert re.search(r"resize .* 75% +2/s +5 s +img-1.png +web1", picture)
    assert re.search(r"Ended last\n.*\n *1 +resize +done", picture)


def read_until(descriptor: int, *texts: bytes) -> bytes:
    deadline, read = time.monotonic() + SOON, b""
    while not all(text in read for text in texts) and time.monotonic() < deadline:
        if select.select([descriptor], [], [], 0.1)[0]:
            read += os.read(descriptor, 65_536)
    return read
