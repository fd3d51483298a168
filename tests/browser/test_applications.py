"""The pages of the applications in a real browser, on a real server with its processes."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, FilePayload, Locator, Page, ViewportSize, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from tests.apps.indexing.support import Embeddings, Server, serving, write
from tests.browser.conftest import a_page, ready
from tests.environment import SOON

PHONE: ViewportSize = {"width": 390, "height": 844}
DESK: ViewportSize = {"width": 1280, "height": 800}
HOSTILE = '<img src=x onerror="window.hit=1"><script>window.hit=1"\'><b id=planted>'
"""Without a slash, which would be one between two names of a path."""
POISON = "poison"


@pytest.fixture(scope="module")
def embeddings() -> Iterator[Embeddings]:
    with Embeddings() as service:
        yield service


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, embeddings: Embeddings) -> Iterator[Server]:
    """One for all tests of the module: each has names of its own."""
    project = tmp_path_factory.mktemp("applications") / "project"
    project.mkdir()
    settings = {
        "PENSTOCK_ENTRIES_EMBEDDER": embeddings.configuration,
        "PENSTOCK_ENTRIES_POLL_INTERVAL": "0.1",
        "PENSTOCK_INGEST_EMBEDDER": embeddings.configuration,
        "PENSTOCK_INGEST_RETRY_DELAY": "0",
        "PENSTOCK_INDEXING_LEASE": "30",
        "PENSTOCK_INDEXING_CHECKPOINT_INTERVAL": "1",
        "PENSTOCK_NOTEBOOKS_COMMIT_INTERVAL": "3600",
        "PENSTOCK_NOTEBOOKS_AUTHOR": "Ada <ada@example.org>",
        "OPENAI_API_KEY": "none",
    }
    with serving(project, embeddings, **settings) as running:
        yield running
        running.stop()


@pytest.fixture(autouse=True)
def willing(embeddings: Embeddings) -> Iterator[None]:
    """No test leaves the embedding service holding or refusing."""
    yield
    embeddings.refusals.clear()
    embeddings.release()


def region(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def row(where: Page | Locator, text: str) -> Locator:
    return where.locator("tbody tr", has_text=text)


def tile(page: Page, name: str) -> Locator:
    return page.locator(".tile", has=page.get_by_text(name, exact=True)).locator(".big")


def confirm(page: Page, button: str) -> None:
    page.get_by_role("dialog").get_by_role("button", name=button).click()


def toast(page: Page, text: str) -> None:
    expect(page.locator("#toasts")).to_contain_text(text)


def look_for(page: Page, text: str, **fields: str) -> Locator:
    """Search; what was found."""
    search = page.get_by_role("search")
    for label, value in fields.items():
        search.get_by_label(label, exact=True).fill(value)
    search.get_by_role("searchbox").fill(text)
    search.get_by_role("button", name="Search").click()
    return region(page, "Search").get_by_role("listitem")


def until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# Notebooks


def new_file(server: Server, notebook: str, path: str, content: str, **fields: Any) -> int:
    """Make a file, and wait until it is there; its id."""
    body = {"path": path, "content": content, **fields}
    answer = server.ask("POST", f"/api/v1/notebooks/{notebook}/files?sync=true&timeout=30", body)
    return int(answer["id"])


def new_notebook(server: Server, name: str) -> None:
    server.ask("POST", "/api/v1/notebooks", {"name": name}, status=201)


def commit(server: Server, notebook: str) -> None:
    server.ask("POST", "/api/v1/events/commit?sync=true&timeout=30", {"notebook": notebook})


def test_notebook_shows_what_waits_and_is_committed_now(server: Server, page: Page) -> None:
    new_notebook(server, "garden")
    server.ask("POST", "/api/v1/queues/notebooks/pause")
    try:
        body = {"path": "notes/tea.md", "content": "# Tea\n"}
        server.ask("POST", "/api/v1/notebooks/garden/files", body, status=202)
        ready(page, f"{server.url}/#/notebooks")
        waiting = row(region(page, "Pending by path"), "notes/tea.md")
        expect(waiting).to_contain_text("notebooks.create")
        expect(waiting).to_contain_text("pending")
    finally:
        server.ask("POST", "/api/v1/queues/notebooks/resume")
    expect(waiting).to_have_count(0)
    expect(row(region(page, "Pending by path"), "all of garden")).to_contain_text(
        "notebooks.commit"
    )
    garden = row(region(page, "Notebooks"), "garden")
    expect(garden.locator("td[data-name='Paths to commit']")).to_have_text("1")
    garden.get_by_role("button", name="Commit now").click()
    toast(page, "1 commit asked for.")
    expect(garden.locator("td[data-name='Paths to commit']")).to_have_text("0")
    expect(garden.locator("td[data-name=History]")).to_have_text("git")


def test_last_commits_of_a_file_are_shown_with_their_diff(server: Server, page: Page) -> None:
    new_notebook(server, "kitchen")
    file = new_file(server, "kitchen", "bread.md", "flour\nwater\n")
    commit(server, "kitchen")
    path = f"/api/v1/notebooks/kitchen/files/{file}?sync=true&timeout=30"
    server.ask("PUT", path, {"content": "flour\nsalt\n"})
    commit(server, "kitchen")
    ready(page, f"{server.url}/#/notebooks")
    page.get_by_role("link", name="kitchen", exact=True).click()
    page.get_by_role("link", name="bread.md").click()
    commits = region(page, "Last commits").get_by_role("listitem")
    expect(commits).to_have_count(2)
    expect(commits.first).to_contain_text("Ada")
    commits.first.get_by_text("What changed").click()
    expect(commits.first.locator(".add")).to_contain_text(["+salt"])
    expect(commits.first.locator(".del")).to_contain_text(["-water"])
    commits.last.get_by_text("What changed").click()
    expect(commits.last.locator(".add")).to_contain_text(["+flour", "+water"])


def test_watcher_of_a_notebook_is_told(server: Server, page: Page) -> None:
    new_notebook(server, "seen")
    new_notebook(server, "unseen")
    server.ask("PATCH", "/api/v1/notebooks/unseen", {"settings": {"watch": False}})
    ready(page, f"{server.url}/#/notebooks")
    for name, state in {"seen": "watched", "unseen": "off"}.items():
        link = page.get_by_role("link", name=name, exact=True)
        found = region(page, "Notebooks").locator("tbody tr", has=link)
        expect(found.locator("td[data-name=Watcher]")).to_have_text(state)


def test_trouble_of_a_watcher_is_told(server: Server, page: Page) -> None:
    new_notebook(server, "lost")
    folder = Path(server.ask("GET", "/api/v1/notebooks/lost")["path"])
    ready(page, f"{server.url}/#/notebooks")
    folder.rename(folder.with_name("elsewhere"))
    watcher = region(page, "Notebooks").locator("tbody tr", has_text="lost")
    expect(watcher.locator("td[data-name=Watcher]")).to_have_text(re.compile("not watched.*gone"))
    folder.with_name("elsewhere").rename(folder)
    expect(watcher.locator("td[data-name=Watcher]")).to_have_text("watched")


# Indexing


def test_folder_is_indexed_with_its_rate_and_searched_with_scores(
    server: Server, page: Page, embeddings: Embeddings
) -> None:
    texts = {f"{n}.md": f"# Note {n}\n\nslowly rising dough, number {n}" for n in range(40)}
    write(server.project / "baking", texts)
    embeddings.hold("slowly")
    ready(page, f"{server.url}/#/indexing")
    page.get_by_role("button", name="Index a folder…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Folder").fill("baking")
    dialog.get_by_role("textbox", name="Collection").fill("recipes")
    confirm(page, "Index")
    job = row(region(page, "Jobs"), "baking")
    expect(job).to_contain_text("running")
    see_rate(page, embeddings, job.get_by_text(re.compile(r"\d of 40 files · [\d,.]+ files/")))
    embeddings.release()
    expect(job).to_contain_text("done")
    folder = row(region(page, "Folders and collections"), "baking")
    expect(folder.locator("td[data-name=Collection]")).to_have_text("recipes")
    expect(folder.locator("td[data-name=Files]")).to_have_text("40")
    results = look_for(page, "dough number 7", Collection="recipes")
    expect(results.filter(has_text="7.md")).to_contain_text(re.compile(r"score \d\.\d{3}"))
    expect(results.first).to_contain_text(re.compile(r"meaning \d\.\d{3}"))
    expect(results.first).to_contain_text("slowly rising dough")


def see_rate(page: Page, embeddings: Embeddings, rate: Locator) -> None:
    """Let files be embedded, a few at a time, until it is shown how fast that goes.

    A process tells how far it is when it has something to say, and once a second at most.
    """
    for _ in range(9):
        embeddings.wait_until_held()
        with suppress(PlaywrightTimeout):
            rate.wait_for(timeout=3_000)
            return
        embeddings.release()
        embeddings.hold("slowly")
    pytest.fail(f"no rate is shown: {page.locator('main').inner_text()}")


# Entries


def new_entry(server: Server, title: str, **fields: Any) -> str:
    data = {"title": title, "playbook": "do it"}
    body = {"entity_type": "experience", "category_code": "HOME", "data": data, **fields}
    return str(server.ask("POST", "/api/v1/entries/write", body)["entry_id"])


def test_entries_that_failed_are_shown_with_their_error_and_retried(
    server: Server, page: Page, embeddings: Embeddings
) -> None:
    embeddings.refusals[POISON] = "no such words here"
    new_entry(server, "descale the kettle")
    one = new_entry(server, POISON)
    ready(page, f"{server.url}/#/entries")
    failed = row(region(page, "Failed"), one)
    failed.locator("summary", has_text="no such words here").click()
    expect(failed.locator("pre")).to_contain_text("HTTP 400")
    expect(failed.locator("td[data-name=Attempts]")).to_have_text("1")
    counts = row(region(page, "By type and status"), "experience")
    expect(counts.locator("td[data-name=failed]")).to_have_text("1")
    expect(counts.locator("td[data-name=embedded]")).to_have_text("1")
    expect(tile(page, "failed")).to_have_text("1")
    embeddings.refusals.clear()
    page.get_by_role("button", name="Retry failed…").click()
    confirm(page, "Retry 1 entry")
    toast(page, "Retried 1 entry.")
    expect(page.get_by_text("No entry has failed")).to_be_visible()
    expect(counts.locator("td[data-name=embedded]")).to_have_text("2")
    expect(counts.locator("td[data-name=failed]")).to_have_text("0")


def send(page: Page, name: str, *records: dict[str, Any]) -> None:
    """Import a file through the page."""
    page.get_by_role("button", name="Import…").click()
    text = "".join(f"{json.dumps(one)}\n" for one in records)
    file = FilePayload(name=name, mimeType="application/x-ndjson", buffer=text.encode())
    page.get_by_role("dialog").get_by_label("File").set_input_files(file)
    confirm(page, "Import")
    toast(page, "The import has started.")


def test_file_is_imported_to_its_end_and_searched(server: Server, page: Page) -> None:
    what = {"entity_type": "manual", "category_code": "HOME"}
    lamps = [{**what, "data": {"title": f"lamp {n}", "content": f"bulb {n}"}} for n in range(20)]
    ready(page, f"{server.url}/#/entries")
    send(page, "lamps.jsonl", *lamps)
    progress = region(page, "Import")
    expect(progress).to_contain_text("succeeded")
    expect(progress.get_by_role("meter")).to_have_attribute("aria-valuenow", "100")
    expect(progress).to_contain_text('"added": 20')
    manuals = row(region(page, "By type and status"), "manual")
    expect(manuals.locator("td[data-name=embedded]")).to_have_text("20")
    results = look_for(page, "lamp 7 bulb 7", Type="manual")
    expect(results.first).to_contain_text("lamp 7")
    expect(results.first).to_contain_text(re.compile(r"score \d\.\d{3}"))
    send(page, "wrong.jsonl", {"entity_type": "manual"})
    expect(progress).to_contain_text("failed")
    expect(progress).to_contain_text("nothing was stored: 1 of 1 records are invalid")


# Ingest


def add_item(server: Server, tenant: str, collection: str, content: str, name: str) -> str:
    payload = {"content": content, "document_id": name}
    where = {"tenant_id": tenant, "collection": collection}
    body = {"item_type": "content", "op": "ingest", "payload": payload, **where}
    return str(server.ask("POST", "/api/v1/queue/items", body, status=202)["items"][0]["queue_id"])


def test_items_are_summed_up_and_dead_ones_tell_why(
    server: Server, page: Page, embeddings: Embeddings
) -> None:
    embeddings.refusals[POISON] = "no such words here"
    add_item(server, "shop", "docs", "a price list", "prices")
    add_item(server, "shop", "letters", POISON, "threat")
    write(server.project / "books", {f"{n}.md": f"volume {n}" for n in range(3)})
    books = str(server.project / "books")
    folder = {"path": books, "tenant_id": "library", "collection": "books"}
    server.ask("POST", "/api/v1/ingest", folder, status=202)
    ready(page, f"{server.url}/#/ingest")
    by_type = region(page, "By type")
    expect(row(by_type, "content").locator("td[data-name=done]")).to_have_text("1")
    expect(row(by_type, "content").locator("td[data-name=failed]")).to_have_text("1")
    expect(row(by_type, "file").locator("td[data-name=done]")).to_have_text("3")
    ways = page.get_by_role("group", name="Totals by")
    ways.get_by_role("button", name="tenant").click()
    expect(row(region(page, "By tenant"), "library").locator("td[data-name=done]")).to_have_text(
        "4"
    )
    ways.get_by_role("button", name="collection").click()
    letters = row(region(page, "By collection"), "letters")
    letters.locator("td[data-name=failed]").get_by_role("link").click()
    items = region(page, "Items").locator("tbody tr")
    expect(items).to_have_count(1)
    expect(items).to_contain_text("threat")
    items.locator("summary", has_text="no such words here").click()
    expect(items.locator("pre")).to_contain_text("HTTP 400")
    embeddings.refusals.clear()
    items.get_by_role("button", name="Retry").click()
    toast(page, "The item runs again.")
    expect(page.get_by_text("No matching items")).to_be_visible()


def test_children_of_a_folder_are_shown_and_found(server: Server, page: Page) -> None:
    write(server.project / "attic", {f"{n}.md": f"dusty box {n}" for n in range(4)})
    ready(page, f"{server.url}/#/ingest")
    page.get_by_role("button", name="Ingest a path…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Path on the server").fill(str(server.project / "attic"))
    dialog.get_by_label("Tenant").fill("house")
    confirm(page, "Ingest")
    toast(page, "was enqueued.")
    folder = row(region(page, "Items"), "house").filter(has_text="folder ingest")
    folder.get_by_role("link", name="Children").click()
    expect(page).to_have_url(re.compile("parent="))
    items = region(page, "Items").locator("tbody tr")
    expect(items.filter(has_text="done")).to_have_count(4)
    expect(row(region(page, "Items"), "attic/2.md")).to_contain_text("file ingest")
    results = look_for(page, "dusty box 2", Tenant="house")
    expect(results.filter(has_text="2.md")).to_contain_text(re.compile(r"score \d\.\d{3}"))


# Everybody


@pytest.fixture(scope="module")
def hostile(server: Server, embeddings: Embeddings) -> list[str]:
    """Names, titles and errors that are markup; the screens that show them."""
    embeddings.refusals[POISON] = HOSTILE
    new_notebook(server, "hostile")
    file = new_file(server, "hostile", f"{HOSTILE}.md", HOSTILE, title=HOSTILE)
    commit(server, "hostile")
    new_entry(server, f"{HOSTILE} {POISON}", entry_id="<b><script>window.hit=1")
    new_entry(server, f"{HOSTILE} fine")
    add_item(server, HOSTILE, HOSTILE, POISON, HOSTILE)
    add_item(server, "default", "default", f"fine {HOSTILE}", HOSTILE)
    write(server.project / HOSTILE, {f"{HOSTILE}.md": f"fine {HOSTILE}"})
    server.finished(server.index(HOSTILE))
    until(lambda: not waiting(server.ask("GET", "/api/v1/queue/items/stats")["total"]))
    until(lambda: not waiting(server.ask("GET", "/admin/queue/status")["queue"]))
    notebook = "notebooks?notebook=hostile"
    return ["notebooks", notebook, f"{notebook}&file={file}", "indexing", "entries", "ingest"]


def waiting(counts: dict[str, Any]) -> int:
    """How many wait or run, of entries or of items."""
    found = [counts.get(name, 0) for name in ("pending", "processing", "in_progress")]
    return sum(one["total"] if isinstance(one, dict) else one for one in found)


def test_hostile_data_of_applications_stays_text(
    server: Server, page: Page, hostile: list[str]
) -> None:
    for path in [*hostile, "ingest?by=by_tenant", "ingest?by=by_collection"]:
        ready(page, f"{server.url}/#/{path}")
        main = page.locator("main")
        if "file=" in path:
            page.get_by_text("What changed").click()
            expect(page.locator(".add").last).to_contain_text("onerror")
        if path in ("indexing", "entries", "ingest"):
            expect(look_for(page, "fine").first).to_contain_text("onerror")
        if path in ("entries", "ingest"):
            expect(page.locator("tbody summary", has_text="onerror").first).to_be_visible()
        expect(main).to_contain_text("hostile" if path == "notebooks" else "onerror")
        assert page.locator("#planted, main img, main script").count() == 0, path
    assert page.evaluate("window.hit") is None


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_screens_of_applications_are_accessible_and_fit_on_a_phone(
    server: Server, browser: Browser, hostile: list[str], theme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    with a_page(browser, color_scheme=theme, viewport=DESK, bypass_csp=True) as page:
        for path in hostile:
            ready(page, f"{server.url}/#/{path}")
            for size in (DESK, PHONE):
                page.set_viewport_size(size)
                found = Axe().run(page)
                assert found.violations_count == 0, f"{path}: {found.generate_report()}"
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
