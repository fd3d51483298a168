"""Many jobs: a page costs the same however many there are.

A few thousand here; `PENSTOCK_BROWSER_JOBS=1000000 pytest tests/browser/test_many.py -s` tries a
million, and prints how long things took.
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
