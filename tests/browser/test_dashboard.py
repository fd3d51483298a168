"""The dashboard in a real browser: each screen, each action, and what happens meanwhile."""

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from penstock import Job, JobQuery, NewJob, RetryPolicy, State
from penstock.core.job import Claim
from penstock.core.tasks import AnnouncedTask, KnownTasks
from penstock.jobs import JobId, Progress
from penstock.leases import Done, Failed, Report, WorkerInfo
from penstock.server import search
from tests.browser.conftest import Site, a_page, ready
from tests.server.support import serving

PHONE = {"width": 390, "height": 844}
SCREENS = ["", "jobs", "keys", "workers", "schedules", "store", "indexing"]


def new(task: str = "mail.send", args: str = "{}", **options: object) -> NewJob:
    return NewJob(task=task, payload=args, **{"queue": "mail", **options})  # type: ignore[arg-type] # as they come


def enqueue(site: Site, *jobs: NewJob) -> list[Job]:
    return site.do(site.app.enqueue_many(list(jobs)))


def fail(site: Site, error: str = "ValueError: no such box", n: int = 1) -> None:
    """Have jobs that are ready fail for good."""
    jobs = site.do(site.app.leases.claim(worker="w:1", limit=n))
    site.do(site.app.leases.settle([(job, Failed(error)) for job in jobs]))


def confirm(page: Page, button: str | re.Pattern[str]) -> None:
    page.get_by_role("dialog").get_by_role("button", name=button).click()


def toast(page: Page, text: str | re.Pattern[str]) -> None:
    expect(page.locator("#toasts")).to_contain_text(text)


def row(page: Page, text: str) -> Locator:
    return page.locator("main tbody tr", has_text=text)


def queue(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name="Queues").locator("tbody tr", has_text=name)


# Overview


def test_overview_shows_queues_and_follows_them(site: Site, page: Page) -> None:
    site.do(site.app.limits.queue("mail", 2))
    enqueue(site, new(), new(delay=timedelta(hours=1)))
    ready(page, site.url)
    expect(page).to_have_title("Overview · Penstock")
    mail = queue(page, "mail")
    expect(mail.locator("td[data-name='Waiting jobs']")).to_contain_text("2")
    expect(mail).to_contain_text("full")
    expect(mail).to_contain_text("no worker")
    enqueue(site, new(queue="photos"), new(queue="photos"))
    expect(queue(page, "photos").locator("td[data-name='Waiting jobs']")).to_have_text("2")


def test_overview_pauses_and_resumes_a_queue(site: Site, page: Page) -> None:
    enqueue(site, new())
    ready(page, site.url)
    page.get_by_role("button", name="Pause").click()
    confirm(page, "Pause")
    toast(page, "Paused mail.")
    expect(queue(page, "mail")).to_contain_text("paused")
    assert [queue.paused for queue in site.do(site.app.queues.list())] == [True]
    page.get_by_role("button", name="Resume").click()
    toast(page, "Resumed mail.")
    assert [queue.paused for queue in site.do(site.app.queues.list())] == [False]


def test_minute_without_a_claim_has_no_waiting_time(site: Site, page: Page) -> None:
    ready(page, site.url)
    quantile = "(await import('./dashboard/overview.js')).quantile"
    assert page.evaluate(f"async () => {quantile}([0, 0, 0], [1, 2], 0.95)") is None
    assert page.evaluate(f"async () => {quantile}([4, 0, 0], [1, 2], 0.5)") == 0.5


def test_overview_draws_charts_by_minute_hour_and_day(site: Site, page: Page) -> None:
    enqueue(site, new(), new())
    [job] = site.do(site.app.leases.claim(worker="w", limit=1))
    site.do(site.app.leases.settle([(job, Done())]))
    ready(page, site.url)
    for unit in ("minute", "hour", "day"):
        page.get_by_role("group", name="Charts by").get_by_role("button", name=unit).click()
        expect(page.get_by_role("heading", name=f"Jobs per {unit}")).to_be_visible()
        chart = page.get_by_role(
            "img", name=re.compile("jobs enqueued: 2 at most, . now; jobs done: 1")
        )
        expect(chart).to_be_visible()
        assert ("by=" in page.url) is (unit != "minute")


def test_charts_tell_exact_values_to_pointer_keyboard_and_touch(
    site: Site, browser: Browser
) -> None:
    enqueue(site, *[new()] * 1_234)
    [job] = site.do(site.app.leases.claim(worker="w", limit=1))
    site.do(site.app.leases.settle([(job, Done())]))
    with a_page(browser, has_touch=True) as page:
        ready(page, f"{site.url}/#/?by=day")
        chart = page.get_by_role("img", name=re.compile("^Jobs enqueued and done"))
        tip = page.locator(".plot", has=chart).get_by_role("status")
        expect(tip).to_be_empty()
        chart.focus()
        page.keyboard.press("ArrowLeft")  # begins at the newest step
        expect(tip).to_contain_text(re.compile(r"^\d{4}-\d\d-\d\d 00:00 to \d{4}-\d\d-\d\d 00:00"))
        expect(tip).to_contain_text("jobs enqueued: 1,234")
        expect(tip).to_contain_text("jobs done: 1")
        page.keyboard.press("ArrowLeft")
        expect(tip).to_contain_text("jobs enqueued: 0")
        page.keyboard.press("End")
        with page.expect_response(re.compile(r"/api/v1/history\?.*step=86400")):
            """Wait until the charts are drawn anew."""
        expect(tip).to_contain_text("jobs enqueued: 1,234")
        expect(chart).to_be_focused()
        page.keyboard.press("Escape")
        expect(tip).to_be_empty()
        box = chart.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] - 4, box["y"] + 20)
        expect(tip).to_contain_text("jobs enqueued: 1,234")
        page.mouse.move(0, 0)
        expect(tip).to_be_empty()
        page.touchscreen.tap(box["x"] + box["width"] - 4, box["y"] + 20)
        expect(tip).to_contain_text("jobs enqueued: 1,234")


def test_rates_of_queues_have_one_unit(site: Site, page: Page) -> None:
    enqueue(site, *[new()] * 900, new(queue="rare"))
    ready(page, site.url)
    expect(queue(page, "rare").locator("td[data-name='Jobs in']")).to_have_text(re.compile("/s$"))
    units = page.locator("td[data-name='Jobs in'], td[data-name='Attempts ended']")
    expect(units).to_have_count(4)
    assert {one.split("/")[1] for one in units.all_inner_texts()} == {"s"}


def test_overview_tells_how_long_each_queue_takes(site: Site, page: Page) -> None:
    enqueue(site, new(), new(), new(queue="photos"))
    for job in site.do(site.app.leases.claim(worker="w", limit=3)):
        site.do(site.app.leases.settle([(job, Done())]))
    ready(page, site.url)
    times = page.get_by_role("region", name="Wait and run time of attempts by queue")
    for queue, runs in {"All": "3", "mail": "2", "photos": "1"}.items():
        line = times.locator("tbody tr", has_text=queue)
        expect(line.locator("td[data-name=Attempts]")).to_have_text(runs)
        expect(line.locator("td[data-name='Wait p95']")).to_have_text(re.compile(r"\d"))
    times.get_by_role("link", name="photos").click()
    expect(page.get_by_role("img", name=re.compile("enqueued: 1 at most"))).to_be_visible()
    assert "queue=photos" in page.url
    page.get_by_role("link", name="All queues").click()
    expect(page.get_by_role("img", name=re.compile("enqueued: 3 at most"))).to_be_visible()


# Jobs


def test_filters_of_jobs_live_in_the_address(site: Site, page: Page) -> None:
    enqueue(
        site,
        new(tags=("eu",), tenant="acme", key="ada", retry=RetryPolicy(attempts=1)),
        new("photo.resize", queue="photos"),
    )
    fail(site, "ValueError: no such box")
    ready(page, f"{site.url}/#/jobs")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_role("group", name="States").get_by_role("button", name="failed").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    assert page.url.endswith("#/jobs?state=failed")
    for field, value in {
        "queue": "mail",
        "task": "mail.send",
        "tags": "eu",
        "tenant": "acme",
        "key": "ada",
        "error": "such box",
        "text": "send",
        "since": "2000-01-01T00:00",
        "before": "2100-01-01T00:00",
    }.items():
        page.locator(f"#filter-{field}").fill(value)
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(field))
        expect(row(page, "mail.send")).to_have_count(1)
    page.reload()
    expect(page.locator("#filter-error")).to_have_value("such box")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("#filter-queue").fill("none")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No matching jobs")).to_be_visible()
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("tbody tr")).to_have_count(2)


def test_text_is_found_anywhere_and_all_that_fits_is_cancelled(site: Site, page: Page) -> None:
    enqueue(site, new(args='{"to":"ada@example.org"}'), new(key="ada"), new(tags=("eu",)))
    ready(page, f"{site.url}/#/jobs")
    page.keyboard.press("/")
    page.keyboard.type("ada")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page).to_have_url(re.compile("text=ada"))
    page.locator("#filter-since").fill("2000-01-01T00:00")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Cancel all").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Cancel all pending and running jobs of all queues that match")
    expect(dialog.locator("dl")).to_contain_text("Textada")
    expect(dialog.locator("dl")).to_contain_text("Since2000-01-01 00:00:00")
    confirm(page, "Cancel 2 jobs")
    toast(page, "Cancelled 2 jobs.")
    page.locator("#filter-text").fill("#3")
    page.keyboard.press("Enter")
    expect(page).to_have_title("Job 3 · Penstock")


def test_bulk_action_follows_a_filter_that_is_not_shown_yet(site: Site, page: Page) -> None:
    enqueue(site, new(key="ada"), new(key="bob"))
    ready(page, f"{site.url}/#/jobs?text=a")
    slow: list[Route] = []

    def hold(route: Route) -> None:
        slow.append(route)

    page.route(re.compile("/api/v1/jobs[?].*bob"), hold, times=1)  # the first list waits
    page.locator("#filter-text").fill("bob")
    page.get_by_role("button", name="Cancel all").click()  # the field changes as it is left
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("dl")).to_contain_text("Textbob")
    expect(dialog.get_by_role("button", name="Cancel 1 job")).to_be_visible()
    slow.pop().continue_()
    confirm(page, "Cancel 1 job")
    toast(page, "Cancelled 1 job.")
    expect(row(page, "bob")).to_contain_text("cancelled")


def test_search_through_many_jobs_goes_on_by_itself(
    site: Site, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_STRETCHES", (5,))
    monkeypatch.setattr(search, "TIMEOUT", 0.0)
    [wanted] = enqueue(site, new(key="needle"))
    enqueue(site, *[new()] * 42)
    page.clock.install()  # it stands still: patience does not end
    ready(page, f"{site.url}/#/jobs?text=needle")
    expect(row(page, f"#{wanted.id}")).to_have_count(1)
    expect(page.locator(".pages")).to_have_text(f"Jobs {wanted.id} to {wanted.id}")


# Time passes only by searching: after each request the page has run out of patience.
HASTY = """
    let now = Date.now();
    Date.now = () => now;
    const plain = window.fetch;
    window.fetch = (path, ...rest) => {
        if (path.startsWith("/api/v1/jobs?")) now += 5000;
        return plain(path, ...rest);
    };
"""


def test_long_search_says_how_far_it_came_and_goes_on_when_asked(
    site: Site, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_STRETCHES", (5,))
    monkeypatch.setattr(search, "TIMEOUT", 0.0)
    [wanted] = enqueue(site, new(key="needle"))
    enqueue(site, *[new()] * 42)
    page.add_init_script(HASTY)
    ready(page, f"{site.url}/#/jobs?text=needle")
    foot = page.locator(".pages")
    for last in (34, 29, 24, 19, 14, 9, 4):  # two requests at first, then one for each click
        expect(foot).to_contain_text(f"No matching job so far. Searched back to job {last}.")
        page.get_by_role("button", name="Continue searching").click()
    expect(row(page, f"#{wanted.id}")).to_have_count(1)
    expect(foot).to_have_text(f"Jobs {wanted.id} to {wanted.id}")


def test_jobs_come_in_pages(site: Site, page: Page) -> None:
    enqueue(site, *[new()] * 120)
    ready(page, f"{site.url}/#/jobs")
    seen = []
    for _ in range(3):
        seen += page.locator("tbody tr td:first-child .dim").all_inner_texts()
        if page.get_by_role("button", name="Older").is_visible():
            page.get_by_role("button", name="Older").click()
            expect(page.locator("tbody tr td:first-child .dim").first).not_to_have_text(seen[-50])
    assert seen == [f"#{n}" for n in range(120, 0, -1)]
    page.get_by_role("button", name="Newest").click()
    expect(page.locator("tbody tr").first).to_contain_text("#120")


def test_list_keeps_its_place_while_jobs_come_and_change(site: Site, page: Page) -> None:
    enqueue(site, *[new()] * 3)
    ready(page, f"{site.url}/#/jobs")
    expect(page.get_by_role("status").get_by_text("live", exact=True)).to_be_visible()
    enqueue(site, *[new()] * 12)
    fresh = page.get_by_role("button", name="12 new jobs")
    expect(fresh).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(3)
    site.do(site.app.leases.claim(worker="w", limit=1))
    expect(row(page, "#1").filter(has_text="running")).to_have_count(1)
    assert page.locator("tbody tr").first.inner_text().startswith("mail.send #3")
    fresh.click()
    expect(page.locator("tbody tr")).to_have_count(15)
    expect(fresh).to_have_count(0)


def test_row_that_does_not_fit_any_more_stays_until_asked(site: Site, page: Page) -> None:
    enqueue(site, *[new()] * 3)
    ready(page, f"{site.url}/#/jobs?state=pending")
    expect(page.get_by_role("status").get_by_text("live", exact=True)).to_be_visible()
    site.do(site.app.cancel(2))
    expect(row(page, "#2")).to_contain_text("cancelled")
    expect(page.locator("tbody tr")).to_have_count(3)


@pytest.mark.parametrize(
    ("verb", "done", "left"),
    [
        ("Cancel", "Cancelled 3 jobs", "cancelled"),
        ("Retry", "Retried 2 jobs", "pending"),
        ("Delete", "Deleted 2 jobs", None),
    ],
)
def test_many_jobs_are_steered_by_filter_with_a_count_first(
    site: Site, page: Page, verb: str, done: str, left: str | None
) -> None:
    enqueue(site, *[new(retry=RetryPolicy(attempts=1))] * 2)
    fail(site, n=2)
    enqueue(site, *[new()] * 3, new(queue="other"))
    ready(page, f"{site.url}/#/jobs?queue=mail")
    page.get_by_role("button", name=f"{verb} all…").click()
    n = 3 if verb == "Cancel" else 2
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"{n} jobs")
    meant = {"Cancel": "pending, running", "Retry": "failed"}
    touched = meant.get(verb, "done, failed, cancelled, superseded")
    named = touched.replace(", ", " and ")
    expect(dialog).to_contain_text(f"{verb} all {named} jobs of queue mail?")
    expect(dialog.locator("dl")).to_contain_text(f"States{touched}")
    expect(dialog.locator("dl")).to_contain_text("Queuemail")
    confirm(page, "Keep")
    assert len(site.do(site.app.find())) == 6
    page.get_by_role("button", name=f"{verb} all…").click()
    confirm(page, f"{verb} {n} jobs")
    toast(page, f"{done}.")
    states = [job.state.value for job in site.do(site.app.find()) if job.queue == "mail"]
    if left:
        assert states.count(left) == {"cancelled": 3, "pending": 5}[left]
    else:
        assert len(states) == 3


def many(site: Site, n: int) -> None:
    """Jobs that are cancelled, to be deleted or retried in parts."""
    enqueue(site, *[new()] * n)
    site.do(site.app.bulk(JobQuery(queue="mail")).cancel())


def asked_of(route: Route) -> dict[str, Any]:
    """The body of a request."""
    body: dict[str, Any] = route.request.post_data_json or {}
    return body


def hold_bulk(page: Page, parts: int) -> list[dict[str, Any]]:
    """Let so many parts of a bulk action through and answer no more; what was asked for."""
    asked: list[dict[str, Any]] = []

    def handle(route: Route) -> None:
        body = asked_of(route)
        if not body["dry_run"]:
            asked.append(body)
            if len(asked) > parts:
                return  # it stays without an answer
        route.continue_()

    page.route("**/api/v1/jobs/bulk/*", handle)
    return asked


def test_bulk_action_counts_as_it_goes_and_stops_when_asked(site: Site, page: Page) -> None:
    many(site, 1_200)
    asked = hold_bulk(page, parts=1)
    ready(page, f"{site.url}/#/jobs?state=cancelled")
    page.get_by_role("button", name="Retry all…").click()
    confirm(page, "Retry 1,200 jobs")
    dialog = page.get_by_role("dialog", name="Retrying 1,200 jobs")
    expect(dialog.get_by_role("status")).to_have_text("500 of 1,200 jobs")
    expect(dialog.get_by_role("progressbar")).to_have_attribute("max", "1200")
    page.keyboard.press("Escape")
    expect(dialog).to_contain_text("Stopping after this portion…")
    page.unroute("**/api/v1/jobs/bulk/*")
    assert asked[0]["limit"] == 500
    assert asked[1]["after"] == 500
    assert asked[1]["up_to"] == 1_200


def test_bulk_action_that_was_stopped_says_what_it_did(site: Site, page: Page) -> None:
    many(site, 1_200)
    ready(page, f"{site.url}/#/jobs?state=cancelled")
    page.route("**/api/v1/jobs/bulk/*", lambda route: pressed_stop(page, route))
    page.get_by_role("button", name="Retry all…").click()
    confirm(page, "Retry 1,200 jobs")
    dialog = page.get_by_role("dialog", name="Retrying 1,200 jobs")
    expect(dialog).to_contain_text("Retried 500 jobs of 1,200")
    expect(dialog).to_contain_text("Stopped. What was done stays done")
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)
    states = site.do(site.app.count())
    assert sum(n for (_, state, _), n in states.items() if state is State.PENDING) == 500


def pressed_stop(page: Page, route: Route) -> None:
    """Press Stop while the first part is under way."""
    if not asked_of(route)["dry_run"]:
        page.evaluate("[...document.querySelectorAll('dialog button')].at(-1).click()")
    route.continue_()


def test_bulk_action_that_fails_says_what_it_did(site: Site, page: Page) -> None:
    many(site, 1_200)
    ready(page, f"{site.url}/#/jobs")
    parts = 0

    def handle(route: Route) -> None:
        nonlocal parts
        parts += not asked_of(route)["dry_run"]
        if parts > 1:
            route.fulfill(status=503, json={"detail": "the disk is full"})
        else:
            route.continue_()

    page.route("**/api/v1/jobs/bulk/*", handle)
    page.get_by_role("button", name="Delete all…").click()
    confirm(page, "Delete 1,200 jobs")
    dialog = page.get_by_role("dialog", name="Deleting 1,200 jobs")
    expect(dialog).to_contain_text("Deleted at least 500 jobs of 1,200")
    expect(dialog).to_contain_text("Failed: the disk is full.")
    dialog.get_by_role("button", name="Close").click()
    assert len(site.do(site.app.find(JobQuery(limit=2_000)))) == 700


def test_bulk_action_in_parts_does_all_and_leaves_newer_jobs(site: Site, page: Page) -> None:
    many(site, 1_200)
    ready(page, f"{site.url}/#/jobs?state=cancelled")
    page.get_by_role("button", name="Delete all…").click()
    expect(page.get_by_role("dialog")).to_contain_text("1,200 jobs")
    many(site, 3)
    confirm(page, "Delete 1,200 jobs")
    toast(page, "Deleted 1,200 jobs.")
    assert len(site.do(site.app.find())) == 3


# A job


def test_failed_job_tells_all_and_is_retried(site: Site, page: Page) -> None:
    args = '{"to":"ada","password":"hunter2"}'
    [job] = enqueue(site, new(args=args, retry=RetryPolicy(attempts=1)))
    fail(site, "Traceback (most recent call last):\n  File x\nValueError: no such box")
    ready(page, f"{site.url}/#/jobs/{job.id}")
    main = page.locator("main")
    expect(main).to_contain_text("How it ended")
    expect(main).to_contain_text('"to": "ada"')
    expect(main).to_contain_text('"password": "•••"')
    assert "hunter2" not in page.content()
    page.locator("summary", has_text="ValueError: no such box").click()
    expect(page.locator("details pre")).to_contain_text("File x")
    expect(page.get_by_role("region", name="Audit log").locator("tr")).to_have_count(4)
    expect(page.get_by_role("img", name=re.compile("^Waited"))).to_be_visible()
    page.get_by_role("button", name="Retry…").click()
    page.get_by_label("Reason").fill("the box is there now")
    confirm(page, "Retry")
    toast(page, f"Job {job.id} runs again.")
    expect(main).to_contain_text("Why is it not running?")
    expect(main).to_contain_text("the box is there now")


def test_pending_job_says_why_and_links_to_what_blocks_it(site: Site, page: Page) -> None:
    first, second = enqueue(site, new(key="ada"), new(key="ada"))
    site.do(site.app.leases.claim(worker="w", limit=1))
    ready(page, f"{site.url}/#/jobs/{second.id}")
    why = page.get_by_role("region", name="Why is it not running?")
    expect(why).to_contain_text("holds its key")
    why.get_by_role("link", name="Jobs with the same key").click()
    expect(page.get_by_role("heading", name="Key ada")).to_be_visible()
    expect(row(page, "holds it")).to_contain_text(f"#{first.id}")
    page.go_back()
    why.get_by_role("link", name=f"Job {first.id}", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"#{first.id}")


def test_graph_shows_what_a_job_waits_for_and_its_batch(site: Site, page: Page) -> None:
    batch = site.do(site.app.enqueue_batch([new()] * 3, correlation="b-1", ordered=True))
    ready(page, f"{site.url}/#/jobs/{batch[1].id}")
    graph = page.get_by_role("group", name="Dependencies")
    expect(graph.get_by_role("link")).to_have_count(3)
    expect(page.locator("main")).to_contain_text("b-1 is running: 3 pending")
    graph.get_by_role("link", name=f"Job {batch[0].id}, mail.send, pending").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"#{batch[0].id}")


def test_running_job_shows_lease_and_progress_and_is_taken_away(site: Site, page: Page) -> None:
    [job] = enqueue(site, new())
    [held] = site.do(site.app.leases.claim(worker="w:7", limit=1))
    now = held.started_at
    assert now is not None
    far = Progress(
        done=30, total=120, note="page 30", at=now + timedelta(seconds=10), started_at=now
    )
    site.do(site.app.leases.report([Report(lease=held.lease, progress=far)]))
    ready(page, f"{site.url}/#/jobs/{job.id}")
    expect(page.locator("main")).to_contain_text("30 of 120 · 25 %")
    expect(page.locator("main")).to_contain_text(f"w:7, token {held.token}")
    page.get_by_role("button", name="Take from worker…").click()
    confirm(page, "Take from worker")
    toast(page, "was taken from its worker")
    assert site.do(site.app.get(job.id)).state == "pending"


def test_job_is_reprioritised_cancelled_and_deleted(site: Site, page: Page) -> None:
    [job] = enqueue(site, new())
    ready(page, f"{site.url}/#/jobs/{job.id}")
    page.get_by_role("button", name="Priority…").click()
    page.get_by_label("Priority", exact=True).fill("9")
    confirm(page, "Set")
    toast(page, f"Job {job.id} has priority 9.")
    page.get_by_role("button", name="Cancel…").click()
    confirm(page, "Cancel")
    toast(page, f"Cancelled job {job.id}.")
    page.get_by_role("button", name="Delete…").click()
    confirm(page, "Delete")
    toast(page, f"Deleted job {job.id}.")
    assert site.do(site.app.find()) == []


def test_job_that_is_not_there(site: Site, page: Page) -> None:
    ready(page, f"{site.url}/#/jobs/77")
    expect(page.locator("main")).to_contain_text("there is no job 77")


# The other screens


def test_keys_that_are_held_or_waited_for(site: Site, page: Page) -> None:
    enqueue(site, new(key="a/b"), new(key="a/b"), new(key="idle", delay=timedelta(hours=1)))
    site.do(site.app.leases.claim(worker="w", limit=1))
    ready(page, f"{site.url}/#/keys")
    expect(row(page, "a/b").locator("td[data-name=State]")).to_have_text("running")
    expect(row(page, "a/b").locator("td[data-name='Waiting behind']")).to_have_text("1")
    expect(row(page, "idle").locator("td[data-name=State]")).to_have_text("pending")
    expect(row(page, "idle").locator("td[data-name=Worker]")).to_have_text("")
    page.get_by_role("link", name="a/b").click()
    expect(page.get_by_role("heading", name="Key a/b")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_label("Key", exact=True).fill("nobody")
    page.keyboard.press("Enter")
    expect(page.get_by_text("This key is not in use")).to_be_visible()


def test_worker_is_shown_with_its_leases_and_drained(site: Site, page: Page) -> None:
    [job] = enqueue(site, new())
    site.do(site.app.leases.claim(worker="w:1", limit=1))
    info = WorkerInfo(name="w:1", host="h", pid=7, concurrency=4, seen_at=job.enqueued_at)
    site.do(site.app.store.heartbeat([info]))
    ready(page, f"{site.url}/#/workers")
    card = page.get_by_role("region", name="Worker w:1")
    expect(card).to_contain_text("1 of 4 slots")
    expect(card).to_contain_text("Last heartbeat")
    expect(card.get_by_role("link", name="mail.send")).to_be_visible()
    card.get_by_role("button", name="Drain…").click()
    confirm(page, "Drain")
    toast(page, "w:1 was asked to drain.")
    expect(card).to_contain_text("draining")
    assert site.do(site.app.store.heartbeat([info])) == ["w:1"]


def test_task_that_no_live_worker_knows_is_named_with_its_jobs(site: Site, page: Page) -> None:
    job = enqueue(site, *[new("report")] * 3)[0]
    tasks = (AnnouncedTask(name="mail"),)
    worker = WorkerInfo(name="web-2", host="h", seen_at=job.enqueued_at, tasks=tasks)
    site.do(site.app.store.heartbeat([worker]))
    known = KnownTasks({"mail": (1,)})
    assert site.do(site.app.store.claim(Claim(worker="web-2", limit=1, tasks=known))) == []
    ready(page, f"{site.url}/#/workers")
    panel = page.get_by_role("region", name="Tasks without a worker")
    expect(panel).to_contain_text("no live worker knows task 'report'; no worker has announced it")
    expect(panel.get_by_role("row").nth(1)).to_contain_text("3")


def test_dashboard_says_when_there_are_more_jobs_than_it_counts(site: Site, page: Page) -> None:
    answer = {
        "task": "report",
        "version": 1,
        "jobs": 10_000,
        "oldest": "2030-01-01T00:00:00Z",
        "text": "no live worker knows task 'report'",
    }
    page.route(
        "**/api/v1/workers",
        lambda route: route.fulfill(json={"workers": [], "after": None, "waiting_tasks": [answer]}),
    )
    ready(page, f"{site.url}/#/workers")
    expect(page.get_by_role("region", name="Tasks without a worker")).to_contain_text("10,000+")


def test_schedule_is_run_now_paused_and_resumed(site: Site, page: Page) -> None:
    site.do(site.app.schedules.put("nightly", new(), cron="0 2 * * *"))
    ready(page, f"{site.url}/#/schedules")
    line = row(page, "nightly")
    expect(line).to_contain_text("never")
    line.get_by_role("button", name="Run now").click()
    toast(page, "Enqueued job 1 of nightly.")
    line.get_by_role("button", name="Pause").click()
    toast(page, "Paused nightly.")
    expect(line).to_contain_text("paused")
    line.get_by_role("button", name="Resume").click()
    toast(page, "Resumed nightly.")


def test_store_tells_how_it_fares(site: Site, page: Page) -> None:
    enqueue(site, new())
    ready(page, f"{site.url}/#/store")
    main = page.locator("main")
    for text in ("answers", "Write-ahead log", "Stale writes refused", "Write latency", "sqlite"):
        expect(main).to_contain_text(text)
    expect(row(page, "add").locator("td[data-name=Calls]")).to_have_text("1")


def test_folder_is_indexed_and_searched(site: Site, page: Page, tmp_path: Path) -> None:
    ready(page, f"{site.url}/#/indexing")
    expect(page.get_by_text("No indexed folders")).to_be_visible()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("# Bread\n\nFlour, water and salt.")
    page.get_by_role("button", name="Index a folder…").click()
    page.get_by_role("textbox", name="Folder").fill("notes")
    confirm(page, "Index")
    expect(row(page, "notes")).to_contain_text("pending")
    row(page, "notes").get_by_role("button", name="Cancel").click()
    expect(row(page, "notes")).to_contain_text("cancelled")
    page.get_by_role("searchbox", name="Search").fill("bread")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_text("0 results")).to_be_visible()


def test_screen_that_is_not_there(site: Site, page: Page) -> None:
    ready(page, f"{site.url}/#/notebooks")
    expect(page.get_by_text("Page not found")).to_be_visible()
    expect(page.get_by_role("link", name="Notebooks")).to_have_count(0)


# Who looks


def test_signing_in_with_a_token_that_only_reads(site: Site, page: Page) -> None:
    enqueue(site, new())
    secret = site.do(site.app.tokens.create("ada", ["read"]))
    until(lambda: httpx.get(f"{site.url}/api/v1/jobs").status_code == 401)
    ready(page, f"{site.url}/#/jobs")
    token = page.get_by_label("Token")
    token.fill("pst_wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("the token is unknown")
    token.fill(secret)
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.get_by_text("read-only")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel all…")).to_have_count(0)
    [cookie] = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert page.evaluate("document.cookie") == ""
    assert secret not in page.evaluate("JSON.stringify(localStorage)")
    for path in ("", "workers", "schedules", "jobs/1"):
        ready(page, f"{site.url}/#/{path}")
        names = page.locator("main button").all_inner_texts()
        assert not {name for name in names if name not in {"minute", "hour", "day"}}
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert page.context.cookies() == []


def test_token_that_is_revoked_leads_back_to_the_door(site: Site, page: Page) -> None:
    secret = site.do(site.app.tokens.create("ada", ["read", "admin"]))
    site.do(site.app.tokens.create("other", ["read"]))
    until(lambda: httpx.get(f"{site.url}/api/v1/jobs").status_code == 401)
    ready(page, site.url)
    page.get_by_label("Token").fill(secret)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    site.do(site.app.tokens.revoke("ada"))
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_token_that_may_not_read_is_told_so(site: Site, page: Page) -> None:
    secret = site.do(site.app.tokens.create("ci", ["publish"]))
    until(lambda: httpx.get(f"{site.url}/api/v1/jobs").status_code == 401)
    ready(page, site.url)
    page.get_by_label("Token").fill(secret)
    page.keyboard.press("Enter")
    expect(page.get_by_text("No permission")).to_be_visible()


def until(met: Callable[[], bool]) -> None:
    import time

    deadline = time.monotonic() + 30
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# When things go wrong


def test_page_goes_on_when_the_server_is_restarted(tmp_path: Path, page: Page) -> None:
    with serving(tmp_path) as server:
        job = {"task": "mail.send", "queue": "mail"}
        httpx.post(f"{server.url}/api/v1/jobs", json=job)
        ready(page, f"{server.url}/#/jobs")
        expect(page.get_by_role("status").get_by_text("live", exact=True)).to_be_visible()
        server.kill()
        expect(page.get_by_text("reconnecting")).to_be_visible()
        expect(page.get_by_text("The server does not answer")).to_be_visible()
        expect(row(page, "mail.send")).to_have_count(1)
        # What comes before the page is back is not missed.
        server.start()
        for _ in range(3):
            httpx.post(f"{server.url}/api/v1/jobs", json=job)
        expect(page.get_by_role("status").get_by_text("live", exact=True)).to_be_visible()
        expect(page.get_by_text("The server does not answer")).to_have_count(0)
        expect(page.get_by_role("button", name="3 new jobs")).to_be_visible()


HOSTILE = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>"\'><b id=planted>'


def test_hostile_data_stays_text(site: Site, page: Page) -> None:
    site.do(site.app.schedules.put(HOSTILE, new(HOSTILE, queue=HOSTILE), cron="0 2 * * *"))
    args = f'{{"a": "{HOSTILE.replace(chr(34), chr(92) + chr(34))}"}}'
    [job, _] = enqueue(
        site,
        new(
            HOSTILE,
            args,
            queue=HOSTILE,
            tags=(HOSTILE,),
            key=HOSTILE,
            tenant=HOSTILE,
            retry=RetryPolicy(attempts=1),
            correlation=HOSTILE,
        ),
        new(HOSTILE, queue=HOSTILE, key=HOSTILE),
    )
    site.do(
        site.app.store.heartbeat([WorkerInfo(name=HOSTILE, host=HOSTILE, seen_at=job.enqueued_at)])
    )
    [held] = site.do(site.app.leases.claim(worker=HOSTILE, limit=1))
    paths = [*SCREENS, "jobs/1", "jobs/2", "keys?key=" + httpx.QueryParams({"k": HOSTILE})["k"]]
    for path in paths:
        ready(page, f"{site.url}/#/{path}")
        assert page.locator("#planted, main img, main script").count() == 0
    site.do(site.app.leases.settle([(held, Failed(f"{HOSTILE}\n{HOSTILE}"))]))
    for path in ("jobs", "jobs/1", "jobs?state=failed"):
        ready(page, f"{site.url}/#/{path}")
        expect(page.locator("main")).to_contain_text("onerror")
        assert page.locator("#planted, main img, main script").count() == 0
    assert page.evaluate("window.hit") is None


# Everybody


def test_everything_is_done_by_keyboard(site: Site, page: Page) -> None:
    enqueue(site, *[new()] * 3)
    ready(page, site.url)
    page.keyboard.press("g")
    page.keyboard.press("j")
    expect(page.get_by_role("heading", name="Jobs")).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.locator("tr.at")).to_contain_text("#2")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("#2")
    button = page.get_by_role("button", name="Cancel…")
    for _ in range(30):
        page.keyboard.press("Tab")
        if button.evaluate("element => element === document.activeElement"):
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert site.do(site.app.get(2)).state == "pending"
    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.type("by hand")
    page.keyboard.press("Enter")
    toast(page, "Cancelled job 2.")
    page.go_back()
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    page.keyboard.press("/")
    expect(page.locator("#filter-text")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next row")


def test_theme_follows_the_system_until_one_is_chosen(site: Site, browser: Browser) -> None:
    with a_page(browser, color_scheme="dark") as page:
        ready(page, site.url)
        background = "getComputedStyle(document.body).backgroundColor"
        dark = page.evaluate(background)
        page.get_by_role("button", name="Use light colours").click()
        light = page.evaluate(background)
        assert dark != light
        page.reload()
        assert page.evaluate(background) == light


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_screens_are_accessible_and_fit_on_a_phone(
    site: Site, browser: Browser, theme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    furnish(site)
    with a_page(browser, color_scheme=theme, viewport=PHONE, bypass_csp=True) as page:
        for path in [*SCREENS, "jobs/1", "jobs/2", "jobs?state=failed", "keys?key=ada"]:
            ready(page, f"{site.url}/#/{path}")
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
            found = Axe().run(page)
            assert found.violations_count == 0, f"{path}: {found.generate_report()}"
        page.set_viewport_size({"width": 1280, "height": 800})
        for path in ["", "jobs", "jobs/1", "workers"]:
            ready(page, f"{site.url}/#/{path}")
            found = Axe().run(page)
            assert found.violations_count == 0, f"{path}: {found.generate_report()}"
        page.get_by_role("button", name="Keyboard shortcuts").click()
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()


def furnish(site: Site) -> None:
    """Something of everything."""
    once = RetryPolicy(attempts=1)
    enqueue(site, new(retry=once, tags=("eu",)), new(key="ada"), new(key="ada", tenant="acme"))
    fail(site)
    site.do(site.app.leases.claim(worker="w:1", limit=1))
    enqueue(site, new(after=(JobId(2),)), new(delay=timedelta(hours=1)))
    site.do(site.app.queues.pause("mail"))
    site.do(site.app.schedules.put("nightly", new(), cron="0 2 * * *"))
