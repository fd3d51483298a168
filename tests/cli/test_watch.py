import asyncio
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

from penstock import Penstock, Worker, context, run_sync
from penstock.cli.watch import bar
from tests.cli.support import COMMAND, SOON, Shell


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


def read_until(descriptor: int, *texts: bytes) -> bytes:
    deadline, read = time.monotonic() + SOON, b""
    while not all(text in read for text in texts) and time.monotonic() < deadline:
        if select.select([descriptor], [], [], 0.1)[0]:
            read += os.read(descriptor, 65_536)
    return read
