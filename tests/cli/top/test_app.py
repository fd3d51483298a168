"""The view follows what happens, keeps its place, and comes back when a connection is lost."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock import NewJob, Penstock
from penstock.cli.top.theme import LIGHT
from penstock.client.remote import RemotePenstock
from penstock.leases import Done, Failed
from penstock.testing import Clock
from tests.cli.support import NOON, now_of, viewing
from tests.client.support import serving

MARKUP = "[bold red]x[/] <b>&amp;</b> $(reboot) [@click=app.quit]y[/]"


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Penstock]:
    app = Penstock(f"sqlite:///{tmp_path}/jobs.db")
    yield app
    await app.close()


def job(task: str, **options: str) -> NewJob:
    return NewJob(task=task, payload="{}", **options)  # type: ignore[arg-type] # texts only


async def test_jobs_of_others_appear(app: Penstock, tmp_path: Path) -> None:
    other = Penstock(f"sqlite:///{tmp_path}/jobs.db")
    async with viewing(app) as screen:
        await screen.until("There are no queues yet.")
        await other.enqueue_many([job("first", queue="mail")])
        await screen.until("mail", "1 pending")
        await screen.press("enter")
        await screen.until("first", "ready")
        (claimed,) = await other.leases.claim(worker="w")
        await other.leases.settle([(claimed, Done())])
        await screen.until("✓ done", absent="ready")
    await other.close()


async def test_list_that_is_read_does_not_jump(app: Penstock) -> None:
    await app.enqueue_many([job(f"old{n}") for n in range(5)])
    async with viewing(app) as screen:
        await screen.press("2")
        await screen.until("old4")
        await screen.press("j", "j")
        await app.enqueue_many([job("fresh")] * 3)
        seen = await screen.until("3 new: press g")
        assert "fresh" not in seen
        assert screen.top.query_one("#job-list").current == "3"  # type: ignore[attr-defined] # a Listing
        await app.cancel(3)
        await screen.until("⊘ cancelled")
        await screen.press("g")
        await screen.until("fresh", absent="new: press g")


async def test_list_that_is_read_does_not_jump_when_its_columns_change(app: Penstock) -> None:
    await app.enqueue_many([job(f"old{n}") for n in range(5)])
    async with viewing(app) as screen:
        await screen.press("2")
        await screen.until("old4")
        await screen.press("j", "j")
        await app.enqueue_many([job("fresh")] * 3)
        await screen.until("3 new: press g", "error")
        await screen.resize(50, 30)
        await screen.until("3 new: press g", absent="error")
        await screen.settle()
        assert screen.top.query_one("#job-list").current == "3"  # type: ignore[attr-defined] # a Listing


async def test_job_that_fits_no_more_stays_in_its_place(app: Penstock) -> None:
    await app.enqueue_many([job(f"old{n}") for n in range(3)])
    async with viewing(app) as screen:
        await screen.press("slash")
        await screen.type("state:pending")
        await screen.until("old2")
        await screen.press("j")
        await app.cancel(3)
        await app.cancel(1)
        await app.delete(1)
        await screen.until("⊘ cancelled", "old2", "gone")


async def test_pages_go_on_where_the_last_ended(app: Penstock) -> None:
    await app.enqueue_many([job(f"t{n}") for n in range(1, 121)])
    async with viewing(app) as screen:
        await screen.press("2")
        await screen.until("t120", "n: next page")
        await screen.press("n")
        await screen.until("page 2", "t70 ", absent="t71 ")
        await screen.press("n")
        await screen.until("page 3", "t20 ", absent="next page")
        await screen.press("b", "b")
        await screen.until("page 1", "t120")
        await screen.press("o")
        await screen.until("oldest first", "t1 ", absent="t120")


async def test_filters_choose_and_wrong_ones_say_why(app: Penstock) -> None:
    await app.enqueue_many([job("a", queue="mail"), job("b", queue="images"), job("c")])
    async with viewing(app) as screen:
        await screen.press("slash")
        await screen.type("queue:images")
        await screen.until(" b ", absent=" mail ")
        await screen.press("slash")
        await screen.type(" colour:red")
        assert "state, queue" in await screen.until_said("there is no filter colour")
        await screen.press("escape", "s")
        await screen.until("state:pending", "queue:images")
        await screen.press("s")
        await screen.until("No jobs match.")


async def test_number_opens_a_job(app: Penstock) -> None:
    await app.enqueue_many([job("a"), job("b")])
    async with viewing(app) as screen:
        await screen.press("slash")
        await screen.type("2")
        await screen.until("Job 2  b")
        await screen.press("escape", "slash")
        await screen.type("77")
        await screen.until("There is no job 77")


async def test_worker_leads_to_its_jobs(app: Penstock) -> None:
    await app.enqueue_many([job("mine"), job("theirs")])
    await app.leases.claim(worker="host one:1")
    await app.leases.claim(worker="w2")
    async with viewing(app) as screen:
        await screen.press("3")
        await screen.until("host one:1", "w2")
        await screen.press("enter")
        await screen.until("mine", absent="theirs")
        await screen.press("C")
        await screen.until_said("one by one")


async def test_hostile_texts_are_shown_as_they_are(app: Penstock) -> None:
    nasty = NewJob(task=MARKUP, payload='{"x": "[red]\\u001b[2J"}', queue=MARKUP, key=MARKUP)
    await app.enqueue_many([nasty])
    (claimed,) = await app.leases.claim(worker=MARKUP)
    await app.leases.settle([(claimed, Failed(f"{MARKUP} \x1b[2J\x07", permanent=True))])
    async with viewing(app, size=(250, 40)) as screen:
        await screen.until(MARKUP)
        await screen.press("p")
        await screen.until(f"Pause queue {MARKUP[:20]}")
        await screen.press("y")
        await screen.until_said(MARKUP)
        await screen.press("enter")
        await screen.until("✗ failed", MARKUP[:40])
        await screen.press("enter")
        await screen.until("Log", '"x": "[red]\\u001b[2J"', f"{MARKUP} \\x1b[2J\\x07")
        assert "\x1b" not in screen.text()
        assert screen.top.is_running


async def test_light_dark_and_a_smaller_terminal(app: Penstock) -> None:
    await app.enqueue_many([job("a", queue="mail")])
    async with viewing(app) as screen:
        assert "done per minute" in await screen.until("mail")
        await screen.press("t")
        assert screen.top.theme == LIGHT.name
        await screen.resize(40, 12)
        await screen.until("mail", absent="done per minute")
        await screen.resize(120, 30)
        await screen.until("mail", "done per minute")


async def test_q_ends_and_escape_leads_back(app: Penstock) -> None:
    async with viewing(app) as screen:
        await screen.press("question_mark")
        await screen.until("Everywhere")
        await screen.press("escape", "3")
        await screen.until("There are no workers")
        await screen.press("escape")
        await screen.until("There are no queues yet.")
        await screen.press("q")
        assert not screen.top.is_running or screen.top._exit


async def test_server_that_goes_and_comes_back(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        app = Penstock(server.store)
        await app.enqueue_many([job("before", queue="mail")])
        async with viewing(RemotePenstock(server.url, retries=0)) as screen:
            await screen.until("● live", "mail")
            await asyncio.to_thread(server.end)
            await screen.until("✗ disconnected", "Trying again", "mail")
            await app.enqueue_many([job("meanwhile", queue="images")])
            server.start()
            await screen.until("● live", "images", absent="disconnected")
            # The stream of changes is followed again: this is seen at once.
            await app.enqueue_many([job("after", queue="reports")])
            await screen.until("reports")
        await app.close()


async def test_tokens_that_may_not_look_or_only_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Penstock(f"sqlite:///{tmp_path / 'jobs.db'}")
    reader = await app.tokens.create("reader", ["read"])
    admin = await app.tokens.create("admin", ["read", "admin"])
    await app.enqueue_many([job("a", queue="mail")])
    with serving(tmp_path, reader) as server:
        monkeypatch.setenv("PENSTOCK_TOKEN", "pst_wrong")
        async with viewing(RemotePenstock(server.url, retries=0)) as screen:
            await screen.until("✗ no permission", "PENSTOCK_TOKEN")
        async with viewing(RemotePenstock(server.url, token=reader, retries=0)) as screen:
            await screen.until("● live", "mail", "read-only")
            await screen.press("p")
            await screen.until_said("Not allowed")
            assert "Pause queue" not in screen.text()
        async with viewing(RemotePenstock(server.url, token=admin, retries=0)) as screen:
            await screen.until("● live", "mail", absent="read-only")
    assert not (await app.queues.list())[0].paused
    await app.close()


async def test_schedule_leads_to_the_job_of_its_last_run() -> None:
    clock = Clock(NOON)
    app = Penstock("memory://", clock=clock)
    app.task("sweep", lambda: None)
    await app.schedules.put("often", job("sweep"), every=timedelta(minutes=5))
    async with viewing(app, now=now_of(clock)) as screen:
        await screen.press("4")
        await screen.until("often", "never", "in 5 min")
        clock.advance(timedelta(minutes=5))
        await app.schedules.fire_due()
        await screen.until("now", absent="never")
        await screen.press("enter")
        await screen.until("Job 1  sweep", "Log")
    await app.close()


async def test_password_of_a_database_is_not_shown(postgres_url: str) -> None:
    async with Penstock(postgres_url) as app:
        await app.enqueue_many([job("a", queue="mail")])
        async with viewing(app, size=(160, 20)) as screen:
            seen = await screen.until("● live", "mail", "postgresql://")
            assert str(urlsplit(postgres_url).password) not in seen
            assert ":***@" in seen
            await screen.press("2")
            await screen.until("ready")
