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
from pathlib import Path

from rich.console import Console

from penstock import JobQuery, NewJob, Penstock, Worker, context, run_sync
from penstock.cli.live.follower import Follower, Now, system_now
from penstock.cli.live.watch import Watch
from penstock.client.remote import RemotePenstock
from penstock.engine.protocol import App
from penstock.errors import ServerUnreachable
from tests.cli.support import COMMAND, NOON, Shell, now_of, sample
from tests.client.support import serving
from tests.environment import SOON

PICTURE = Path(__file__).parents[3] / "docs" / "images" / "watch.svg"
WRITES = os.environ.get("PENSTOCK_SNAPSHOTS") == "write"


async def drawn(app: App, query: JobQuery | None = None, now: Now = system_now) -> str:
    """The screen as text."""
    watch = Watch(app, query or JobQuery(), now)
    await watch.read()
    console = Console(width=140, no_color=True)
    with console.capture() as screen:
        console.print(watch.picture(140))
    return screen.get()


def test_pipe_is_refused(app: Penstock, shell: Shell) -> None:
    assert "log --follow" in shell.error("jobs", "--watch", code=2)


def test_terminal_shows_queues_and_jobs_until_ctrl_c(app: Penstock, url: str) -> None:
    @app.task(queue="pictures")
    async def resize() -> None:
        context().progress(1, 4, "img-1.png")

    run_sync(resize.enqueue())
    asyncio.run(Worker(app).run(until_empty=True))
    run_sync(resize.enqueue())
    run_sync(app.leases.claim(worker="web1", limit=1))
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


async def test_server_is_watched_as_its_store_is(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        app = Penstock(server.store)

        @app.task(queue="pictures")
        async def resize() -> None:
            context().progress(30, 40, "img-1.png")

        await resize.enqueue()
        await Worker(app).run(until_empty=True)
        await resize.enqueue()
        await app.leases.claim(worker="web1", limit=1)
        remote = RemotePenstock(server.url)
        moment = system_now()  # rates are shown as of a moment
        far, near = [await drawn(one, now=lambda: moment) for one in (remote, app)]
        await remote.close()
        await app.close()
    assert re.search(r"Running\n.*\n *2 +resize .*web1", far)
    assert re.search(r"Ended last\n.*\n *1 +✓ done +resize", far)
    assert far.splitlines()[2:4] == near.splitlines()[2:4]
    assert far.partition("Ended last")[2] == near.partition("Ended last")[2]


async def test_filter_selects_among_jobs(tmp_path: Path) -> None:
    async with Penstock(f"sqlite:///{tmp_path}/jobs.db") as app:
        new = [NewJob(task="a", payload="{}", queue="mail"), NewJob(task="b", payload="{}")]
        _, job = await app.enqueue_many(new)
        await app.cancel(job.id)
        assert " b " not in await drawn(app, JobQuery(queue="mail"))
        screen = await drawn(app, JobQuery(task="b"))
        assert re.search(r"⊘ cancelled +b", screen)
        assert "Waiting" not in screen


async def test_lost_connection_is_said_and_the_last_picture_stays() -> None:
    app, clock = await sample()
    watch = Watch(app, JobQuery(), now_of(clock))
    gone = asyncio.Event()

    async def read() -> None:
        await watch.read()
        if gone.is_set():
            raise ServerUnreachable("the server at http://127.0.0.1:1 did not answer")

    screens: asyncio.Queue[str] = asyncio.Queue()

    def draw() -> None:
        console = Console(width=140, no_color=True)
        with console.capture() as screen:
            console.print(watch.picture(140))
        screens.put_nowait(screen.get())

    watch.follower = Follower(app, read, draw, now_of(clock))
    following = asyncio.create_task(watch.follower.run())
    assert "● live" in await screens.get()
    gone.set()
    watch.follower.read_soon()
    async with asyncio.timeout(SOON):
        screen = await screens.get()
    assert "✗ disconnected" in screen
    assert "did not answer. Trying again… The view is from now." in screen
    assert "mail" in screen
    gone.clear()
    async with asyncio.timeout(SOON):
        assert "● live" in await screens.get()
    following.cancel()
    await app.close()


async def test_picture_in_the_documentation_is_true() -> None:
    app, clock = await sample()
    assert clock.now == NOON
    watch = Watch(app, JobQuery(), now_of(clock))
    await watch.read()
    console = Console(width=110, record=True, file=io.StringIO(), color_system="truecolor")
    console.print(watch.picture(110))
    svg = console.export_svg(title="penstock jobs --watch", unique_id="watch")
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\s*<!-- Generated.*?-->", "", svg)
    svg = "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
    if WRITES:
        PICTURE.write_text(svg, "utf-8")
    assert PICTURE.read_text("utf-8") == svg
    await app.close()


def read_until(descriptor: int, *texts: bytes) -> bytes:
    deadline, read = time.monotonic() + SOON, b""
    while not all(text in read for text in texts) and time.monotonic() < deadline:
        if select.select([descriptor], [], [], 0.1)[0]:
            read += os.read(descriptor, 65_536)
    return read
