"""Beats go on while the store answers, and stop while it hangs."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from penstock import Penstock, StoreUnavailable
from penstock.testing import faulty
from penstock.worker.liveness import Liveness, Pulse
from tests.environment import SOON


class Heart:
    """Counts beats."""

    def __init__(self) -> None:
        self.beats: asyncio.Queue[None] = asyncio.Queue()

    async def wait(self) -> None:
        async with asyncio.timeout(SOON):
            await self.beats.get()


@pytest.fixture
async def app() -> AsyncIterator[Penstock]:
    async with Penstock("memory://") as opened:
        yield opened


def liveness(app: Penstock, heart: Heart) -> Liveness:
    beat = lambda: heart.beats.put_nowait(None)  # noqa: E731 - shortest here
    return Liveness(app, Pulse(beat, timedelta(milliseconds=1)))


async def test_it_beats_again_and_again_until_it_is_cancelled(app: Penstock) -> None:
    heart = Heart()
    task = asyncio.create_task(liveness(app, heart).run())
    for _ in range(5):
        await heart.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_store_that_answers_with_an_error_does_not_hang(
    app: Penstock, caplog: pytest.LogCaptureFixture
) -> None:
    heart = Heart()
    with faulty(app) as faults:
        faults.fail("deregister", every=1, error=StoreUnavailable("the server restarts"))
        await liveness(app, heart).beat()
    await heart.wait()
    assert "the server restarts" in caplog.text


async def test_store_that_hangs_stops_the_beats_until_it_answers(
    app: Penstock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    heart, answers, asked = Heart(), asyncio.Event(), asyncio.Event()

    async def hang(_: object) -> None:
        asked.set()
        await answers.wait()

    monkeypatch.setattr(app.store, "deregister", hang)
    task = asyncio.create_task(liveness(app, heart).beat())
    await asked.wait()
    async with asyncio.timeout(SOON):
        while "has not answered" not in caplog.text:  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0.001)
    assert heart.beats.empty()
    answers.set()
    await task
    await heart.wait()


async def test_question_is_withdrawn_when_it_is_cancelled(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, asked = asyncio.Event(), asyncio.Event()

    async def hang(_: object) -> None:
        try:
            asked.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(app.store, "deregister", hang)
    task = asyncio.create_task(liveness(app, Heart()).run())
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(SOON):
        await ended.wait()


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
async def test_asking_writes_nothing(kind: str, tmp_path: Path) -> None:
    async with Penstock(f"{kind}:///{tmp_path}/jobs") as app:
        await app.store.deregister(["nobody"])
        before = written(tmp_path)
        for _ in range(3):
            await liveness(app, Heart()).beat()
        assert written(tmp_path) == before


def written(folder: Path) -> dict[Path, int]:
    """How much is in each file."""
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
