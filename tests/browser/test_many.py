"""Many jobs and many queues: a page costs the same however many there are.

A few thousand here; `PENSTOCK_BROWSER_JOBS=1000000 pytest tests/browser/test_many.py -s` tries a
million, and prints how long things took. `PENSTOCK_BROWSER_QUEUES` does the same for queues;
`PENSTOCK_BROWSER_PICTURE` names a file for a screenshot of them.
"""

import os
import time

from playwright.sync_api import Page, expect

from penstock import NewJob
from tests.browser.conftest import Site, ready

JOBS = int(os.environ.get("PENSTOCK_BROWSER_JOBS", "3000"))
AT_ONCE = 1_000
PAGES = 5


def fill(site: Site) -> None:
    portion = [NewJob(task="mail.send", payload="{}", queue="mail", tags=("eu",))] * AT_ONCE
    for _ in range(JOBS // AT_ONCE):
        site.do(site.app.enqueue_many(portion))


def test_pages_of_many_jobs(site: Site, page: Page) -> None:
    fill(site)
    ready(page, site.url)
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    whole = page.evaluate("performance.now()")
    expect(page.locator("td[data-name='Waiting jobs']")).to_have_text(f"{JOBS:,}")
    ready(page, f"{site.url}/#/jobs")
    took = []
    for n in range(PAGES):
        expect(page.locator("tbody tr").first).to_contain_text(f"#{JOBS - 50 * n}")
        began = time.perf_counter()
        page.get_by_role("button", name="Older").click()
        expect(page.locator("tbody tr").first).to_contain_text(f"#{JOBS - 50 * (n + 1)}")
        took.append(time.perf_counter() - began)
    ready(page, f"{site.url}/#/jobs?tags=eu&state=pending&after=100")
    expect(page.locator("tbody tr").first).to_contain_text("#99")
    seconds = ", ".join(f"{one:.3f}" for one in took)
    print(f"{JOBS:,} jobs: first paint {paint:.0f} ms, overview {whole:.0f} ms, pages {seconds} s")  # noqa: T201 - on request


QUEUES = int(os.environ.get("PENSTOCK_BROWSER_QUEUES", "300"))


def test_many_queues_are_shown_in_pages_and_found_by_name(site: Site, page: Page) -> None:
    names = [f"q{n:05}" for n in range(QUEUES)]
    for start in range(0, QUEUES, AT_ONCE):
        portion = names[start : start + AT_ONCE]
        site.do(site.app.enqueue_many([NewJob(task="t", payload="{}", queue=q) for q in portion]))
    ready(page, site.url)
    listed = page.locator("tr", has=page.locator("td[data-name='Waiting jobs']"))
    expect(listed).to_have_count(50)
    expect(page.locator(".pages")).to_contain_text(f"50 of {QUEUES:,} queues")
    expect(page.locator(".tile", has_text="Waiting").first).to_contain_text("ready")
    if picture := os.environ.get("PENSTOCK_BROWSER_PICTURE"):
        page.screenshot(path=picture, full_page=True)
    page.get_by_role("link", name="More").click()
    expect(listed.first).to_contain_text("q00050")
    page.get_by_role("link", name="First").click()
    expect(listed.first).to_contain_text("q00000")
    page.get_by_label("Name", exact=True).fill("q00123")
    page.keyboard.press("Enter")
    expect(listed).to_have_count(1)
    expect(listed.first).to_contain_text("q00123")
    page.get_by_label("Name", exact=True).fill("nowhere")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No matching queues")).to_be_visible()
