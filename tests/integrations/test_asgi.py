"""The jobs API inside another application: who may call it, from where, and how long it runs."""

import asyncio
import json
import logging
import signal
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.routing import Mount

from penstock import ConfigurationError, InvalidJob, Job, JobQuery, NewJob, Penstock, State, Worker
from penstock.client import RemotePenstock
from penstock.engine.connection import acting_as
from penstock.integrations import asgi
from penstock.integrations.asgi import Caller, MountedServer, lifespan, trust_this_machine
from tests.environment import SOON
from tests.integrations.support import serving
from tests.server.support import streaming
from tests.worker.support import eventually

USERS = {
    "reader": ["read"],
    "publisher": ["publish"],
    "admin": ["publish", "read", "admin"],
    "nothing": [],
}
LOOKS_LIKE_ONE = SimpleNamespace(name="admin", scopes={"read", "admin"})
PAGE = {"X-Requested-With": "penstock"}
JOBS = "/ops/queue/api/v1/jobs"
Ask = Callable[..., Awaitable[httpx.Response]]


def who(request: Request) -> Caller | None:
    """Know users by a cookie, or by a token of the application's own."""
    name = request.cookies.get("user")
    if name is None:
        name = request.headers.get("authorization", "").removeprefix("Bearer ")
    return Caller(name, USERS[name]) if name in USERS else None


def host(server: MountedServer, prefix: str = "/ops/queue", **options: Any) -> Starlette:
    return Starlette(routes=[Mount(prefix, server)], lifespan=lifespan(server), **options)


@asynccontextmanager
async def calling(app: Any, *, client: str = "127.0.0.1") -> AsyncIterator[Ask]:
    """Call an application in this process, with its lifespan, inside the block."""
    transport = httpx.ASGITransport(app, client=(client, 1234), raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://shop.example") as http,
    ):

        async def ask(
            method: str, path: str, user: str | None = None, **options: Any
        ) -> httpx.Response:
            headers = {**({"Cookie": f"user={user}"} if user else {}), **options.pop("headers", {})}
            return await http.request(method, path, headers=headers, **options)

        yield ask


@pytest.fixture
def queue(tmp_path: Path) -> Penstock:
    app = Penstock(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    async def send(n: int) -> None: ...

    return app


@pytest.fixture
async def ask(queue: Penstock) -> AsyncIterator[Ask]:
    async with calling(host(MountedServer(queue, authenticate=who))) as ask:
        yield ask


async def enqueued(ask: Ask, **more: Any) -> httpx.Response:
    body = {"task": "send", "args": {"n": 1}, **more}
    return await ask("POST", JOBS, "admin", json=body, headers=PAGE)


# Who calls


def test_authentication_must_be_chosen(queue: Penstock) -> None:
    with pytest.raises(TypeError, match="authenticate"):
        MountedServer(queue)  # type: ignore[call-arg] # what is refused
    with pytest.raises(ConfigurationError, match="authenticate must be a function"):
        MountedServer(queue, authenticate=None)  # type: ignore[arg-type] # what is refused


@pytest.mark.parametrize("path", ["/", "/api/v1/jobs", "/api/v1/stream", "/openapi.json", "/no"])
async def test_nobody_gets_anything(ask: Ask, path: str) -> None:
    for headers in ({}, {"Cookie": "user=stranger"}, {"Authorization": "Bearer stranger"}):
        answer = await ask("GET", f"/ops/queue{path}", headers=headers)
        assert answer.status_code == HTTPStatus.UNAUTHORIZED
        assert answer.json() == {"detail": "sign in to the application first"}


async def test_nobody_learns_only_that_they_are_signed_out(ask: Ask) -> None:
    answer = await ask("GET", "/ops/queue/api/v1/session")
    assert answer.status_code == HTTPStatus.OK
    session = answer.json()
    assert (session["signed_in"], session["open"], session["external"]) == (False, False, True)
    assert (session["name"], session["scopes"], session["version"]) == (None, [], None)


async def test_health_and_files_need_no_caller(ask: Ask) -> None:
    for path in ("/health", "/health/ready", "/health/startup", "/dashboard/app.js"):
        assert (await ask("GET", f"/ops/queue{path}")).status_code == HTTPStatus.OK, path
    assert (await ask("GET", "/ops/queue/healthy")).status_code == HTTPStatus.UNAUTHORIZED


async def test_unknown_path_is_answered_with_the_prefix(ask: Ask) -> None:
    answer = await ask("GET", "/ops/queue/api/v1/nope", "reader")
    assert answer.status_code == HTTPStatus.NOT_FOUND
    routes = "/ops/queue/openapi.json"
    assert answer.json() == {
        "detail": f"there is no route GET /ops/queue/api/v1/nope; {routes} lists all routes",
        "routes": routes,
    }
    assert (await ask("GET", routes, "reader")).status_code == HTTPStatus.OK


async def test_session_names_the_user_of_the_application(ask: Ask) -> None:
    session = (await ask("GET", "/ops/queue/api/v1/session", "reader")).json()
    assert (session["name"], session["scopes"]) == ("reader", ["read"])
    assert (session["signed_in"], session["open"], session["external"]) == (True, False, True)


async def test_token_of_the_store_is_nobody_here(ask: Ask, queue: Penstock) -> None:
    secret = await queue.tokens.create("root", ["admin", "read"])
    answer = await ask("GET", JOBS, headers={"Authorization": f"Bearer {secret}"})
    assert answer.status_code == HTTPStatus.UNAUTHORIZED
    for user in (None, "reader"):
        path, body = "/ops/queue/api/v1/session", {"token": secret}
        answer = await ask("POST", path, user, json=body, headers=PAGE)
        assert answer.status_code == HTTPStatus.FORBIDDEN
        assert "set-cookie" not in answer.headers


async def test_scopes_limit_what_a_user_does(ask: Ask, queue: Penstock) -> None:
    job = (await enqueued(ask)).json()
    cancel = f"{JOBS}/{job['id']}/cancel"
    for user in ("reader", "publisher", "nothing"):
        answer = await ask("POST", cancel, user, headers=PAGE)
        assert answer.status_code == HTTPStatus.FORBIDDEN
        assert answer.json()["detail"] == f"{user!r} does not have the scope admin"
    assert (await ask("GET", JOBS, "nothing")).status_code == HTTPStatus.FORBIDDEN
    assert (await ask("GET", JOBS, "publisher")).status_code == HTTPStatus.FORBIDDEN
    assert (await queue.get(job["id"])).state is State.PENDING
    assert (await ask("POST", cancel, "admin", headers=PAGE)).status_code == HTTPStatus.OK
    assert (await queue.get(job["id"])).state is State.CANCELLED


async def test_log_names_the_user_and_not_a_token(ask: Ask, queue: Penstock) -> None:
    job = (await enqueued(ask)).json()
    assert [entry.actor for entry in await queue.log(job["id"])] == ["user:admin"]


async def test_token_of_the_same_name_owns_none_of_a_users_jobs(queue: Penstock) -> None:
    """A superseding job replaces what the same caller enqueued, and only that."""
    server = MountedServer(queue, authenticate=lambda request: Caller("ada", ["publish"]))
    async with calling(host(server)) as ask:
        with acting_as("token:ada"):
            old = await queue.enqueue_many([NewJob(task="send", payload="{}", key="k")])
        body = {"task": "send", "key": "k", "supersede": True}
        answer = await ask("POST", JOBS, json=body, headers=PAGE)
        assert answer.status_code == HTTPStatus.CREATED
        assert (await queue.get(old[0].id)).state is State.PENDING


@pytest.mark.parametrize(
    "names",
    [
        {"task": "notebooks.write"},
        {"queue": "Events"},
        {"key": "indexing:x"},
        {"task": "\uff45ntries.embed"},  # a wide e
    ],
)
async def test_names_of_applications_are_reserved(
    ask: Ask, queue: Penstock, names: dict[str, str]
) -> None:
    """Although none is served here: a server beside may run them on the same store."""
    answer = await enqueued(ask, **names)
    assert answer.status_code == HTTPStatus.FORBIDDEN
    assert "belongs to the application" in answer.json()["detail"]
    assert await queue.find() == []


async def test_error_of_the_application_is_its_own(queue: Penstock) -> None:
    def redirect(request: Request) -> Caller | None:
        raise HTTPException(303, headers={"Location": "/login"})

    async with calling(host(MountedServer(queue, authenticate=redirect))) as ask:
        answer = await ask("GET", "/ops/queue/")
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")


@pytest.mark.parametrize("found", [True, "admin", {"name": "admin"}, LOOKS_LIKE_ONE])
async def test_anything_but_a_caller_is_an_error(queue: Penstock, found: Any) -> None:
    async with calling(host(MountedServer(queue, authenticate=lambda request: found))) as ask:
        assert (await ask("GET", JOBS)).status_code == HTTPStatus.INTERNAL_SERVER_ERROR


async def test_application_may_have_to_wait_for_who_calls(queue: Penstock) -> None:
    async def later(request: Request) -> Caller | None:
        await asyncio.sleep(0)
        return who(request)

    async with calling(host(MountedServer(queue, authenticate=later))) as ask:
        assert (await ask("GET", JOBS)).status_code == HTTPStatus.UNAUTHORIZED
        assert (await ask("GET", JOBS, "reader")).status_code == HTTPStatus.OK


async def test_plain_function_may_take_its_time_to_tell_who_calls(queue: Penstock) -> None:
    threads = []

    def plain(request: Request) -> Caller | None:
        threads.append(threading.get_ident())
        return who(request)

    class Later:
        async def __call__(self, request: Request) -> Caller | None:
            threads.append(threading.get_ident())
            return who(request)

    async with calling(host(MountedServer(queue, authenticate=plain))) as ask:
        assert (await ask("GET", JOBS, "reader")).status_code == HTTPStatus.OK
    async with calling(host(MountedServer(queue, authenticate=Later()))) as ask:
        assert (await ask("GET", JOBS, "reader")).status_code == HTTPStatus.OK
    assert [one == threading.get_ident() for one in threads] == [False, True]


@pytest.mark.parametrize(
    ("name", "scopes"),
    [("", ["read"]), ("a\nb", ["read"]), ("ada", "read"), ("ada", ["root"]), (None, ["read"])],
)
def test_caller_is_checked(name: Any, scopes: Any) -> None:
    with pytest.raises((ConfigurationError, InvalidJob)):
        Caller(name, scopes)


# Pages of other sites


@pytest.mark.parametrize(
    "headers",
    [
        {},  # a form of another site, in an old browser
        {"Sec-Fetch-Site": "cross-site", **PAGE},
        {"Sec-Fetch-Site": "same-site", **PAGE},
        {"Origin": "https://evil.example", **PAGE},
        {"Origin": "null", **PAGE},
        {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-origin"},  # a form of the application's own, which users may fill
        {"Authorization": "Bearer x", "Origin": "https://evil.example"},
        {"Authorization": "Basic YWRtaW46eA=="},  # which browsers remember
    ],
)
async def test_page_of_another_site_changes_nothing(
    ask: Ask, queue: Penstock, headers: dict[str, str]
) -> None:
    answer = await ask("POST", JOBS, "admin", json={"task": "send"}, headers=headers)
    assert answer.status_code == HTTPStatus.FORBIDDEN
    assert await queue.find() == []


@pytest.mark.parametrize("relation", ["cross-site", "same-site"])
async def test_page_of_another_site_reads_nothing(ask: Ask, relation: str) -> None:
    for path in (JOBS, "/ops/queue/api/v1/stream"):
        answer = await ask("GET", path, "admin", headers={"Sec-Fetch-Site": relation})
        assert answer.status_code == HTTPStatus.FORBIDDEN
    path = "/ops/queue/api/v1/session"
    session = (await ask("GET", path, "admin", headers={"Sec-Fetch-Site": relation})).json()
    assert (session["signed_in"], session["name"]) == (False, None)


async def test_link_of_another_site_opens_the_page(ask: Ask) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    answer = await ask("GET", "/ops/queue/", "reader", headers=headers)
    assert answer.status_code == HTTPStatus.OK
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"


async def test_careless_cors_of_the_application_opens_nothing(queue: Penstock) -> None:
    careless = Middleware(
        CORSMiddleware,
        allow_origins=["*"],
        allow_credentials=True,
        allow_methods=["*"],
        allow_headers=["*"],
    )
    app = host(MountedServer(queue, authenticate=who), middleware=[careless])
    evil = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site", **PAGE}
    async with calling(app) as ask:
        for headers in (evil, {**evil, "Authorization": "Bearer x"}):
            answer = await ask("POST", JOBS, "admin", json={"task": "send"}, headers=headers)
            assert answer.status_code == HTTPStatus.FORBIDDEN
        assert await queue.find() == []


async def test_program_needs_no_header_of_pages(ask: Ask) -> None:
    headers = {"Authorization": "Bearer admin"}
    answer = await ask("POST", JOBS, json={"task": "send"}, headers=headers)
    assert answer.status_code == HTTPStatus.CREATED


# This machine only


@pytest.mark.parametrize(
    ("client", "headers"),
    [
        ("10.0.0.7", {"Host": "localhost"}),
        ("127.0.0.1", {"Host": "localhost", "X-Forwarded-For": "10.0.0.7"}),
        ("127.0.0.1", {"Host": "localhost", "Forwarded": "for=10.0.0.7"}),
        ("127.0.0.1", {"Host": "rebound.example"}),
        ("127.0.0.1", {"Host": "localhost", "Origin": "https://evil.example"}),
        ("127.0.0.1", {"Host": "localhost", "Sec-Fetch-Site": "cross-site"}),
    ],
)
async def test_trust_in_this_machine_goes_no_further(
    queue: Penstock, client: str, headers: dict[str, str]
) -> None:
    app = host(MountedServer(queue, authenticate=trust_this_machine))
    async with calling(app, client=client) as ask:
        for method in ("GET", "POST"):
            answer = await ask(method, JOBS, json={"task": "send"}, headers={**PAGE, **headers})
            assert answer.status_code == HTTPStatus.UNAUTHORIZED
        assert await queue.find() == []


async def test_programs_of_this_machine_are_trusted(queue: Penstock) -> None:
    async with calling(host(MountedServer(queue, authenticate=trust_this_machine))) as ask:
        headers = {"Host": "localhost:8000", **PAGE}
        answer = await ask("POST", JOBS, json={"task": "send"}, headers=headers)
        assert answer.status_code == HTTPStatus.CREATED


# Under a prefix


@pytest.mark.parametrize("prefix", ["", "/q", "/api", "/ops/queue", "/t/{tenant}/queue"])
async def test_everything_works_under_any_prefix(queue: Penstock, prefix: str) -> None:
    """Also under one that begins like the paths below it."""
    app = host(MountedServer(queue, authenticate=who), prefix)
    place = prefix.replace("{tenant}", "acme")
    async with calling(app) as ask:
        for path in ("/", "/dashboard/app.js", "/api/v1/jobs", "/api/v1/jobs/", "/health"):
            answer = await ask("GET", place + path, "admin")
            assert answer.status_code == HTTPStatus.OK, path
        document = (await ask("GET", f"{place}/openapi.json", "admin")).json()
        assert document["servers"] == [{"url": place}]
        path = f"{place}/api/v1/jobs"
        job = (await ask("POST", path, "admin", json={"task": "send"}, headers=PAGE)).json()
        assert (await ask("GET", f"{path}/{job['id']}", "admin")).json()["id"] == job["id"]
        assert (await ask("GET", f"{place}/nothing", "admin")).status_code == HTTPStatus.NOT_FOUND
        assert (await ask("PATCH", f"{place}/api/v1/jobs", "admin")).status_code == 405
        wrong = await ask("PATCH", f"{place}/health", "admin")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD")


async def test_page_is_found_without_its_slash(queue: Penstock) -> None:
    """Its files are beside it, which a browser resolves by the slash."""
    server = MountedServer(queue, authenticate=who)

    async def bare(scope: Any, receive: Any, send: Any) -> None:
        await server({**scope, "root_path": "/ops"}, receive, send)

    async with (
        server.running(),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(bare), base_url="http://shop.example"
        ) as http,
    ):
        answer = await http.get("/ops")
        assert (answer.status_code, answer.headers["location"]) == (307, "/ops/")
        answer = await http.get("/ops/", headers={"Cookie": "user=reader"})
        assert answer.status_code == HTTPStatus.OK


async def test_queue_whose_name_has_a_slash_is_found(ask: Ask) -> None:
    await enqueued(ask, queue="a/b")
    answer = await ask("GET", "/ops/queue/api/v1/queues/a%2Fb", "admin")
    assert answer.json()["name"] == "a/b"


# Its life


async def test_server_without_its_lifespan_says_so(queue: Penstock) -> None:
    app = Starlette(routes=[Mount("/ops/queue", MountedServer(queue, authenticate=who))])
    async with calling(app) as ask:
        answer = await ask("GET", JOBS, "admin")
        assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
        assert "lifespan=lifespan(server)" in answer.json()["detail"]


async def test_lifespan_opens_and_closes_again_and_again(queue: Penstock) -> None:
    server = MountedServer(queue, authenticate=who)
    app = FastAPI(lifespan=lifespan(server, worker=lambda: Worker(queue)))
    app.mount("/ops/queue", server)
    for _ in range(2):
        async with calling(app) as ask:
            job = (await enqueued(ask)).json()

            async def is_done(number: int = job["id"]) -> bool:
                return (await queue.get(number)).state is State.DONE

            await eventually(is_done)
            with pytest.raises(ConfigurationError, match="running already"):
                async with server.running():
                    pass
        assert queue.connection._store is None


async def test_lifespan_creates_the_store(tmp_path: Path) -> None:
    """A request whose transaction locks the file could not."""
    queue = Penstock(f"sqlite:///{tmp_path}/new.db")
    async with lifespan(queue)(None):
        with closing(sqlite3.connect(tmp_path / "new.db", timeout=0)) as own, own:
            own.execute("CREATE TABLE orders (item TEXT)")
            await queue.enqueue_many([NewJob(task="send", payload="{}")], connection=own)
        assert len(await queue.find()) == 1


async def test_worker_finishes_its_job_when_the_application_stops(queue: Penstock) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()

    @queue.task
    async def held() -> str:
        began.set()
        await may_end.wait()
        return "done"

    async with lifespan(queue, worker=lambda: Worker(queue))(None):
        job = await held.enqueue()
        await began.wait()
        asyncio.get_running_loop().call_soon(may_end.set)
    assert (await queue.get(job.id)).returned == "done"
    await queue.close()


async def test_worker_that_ends_with_an_error_is_noticed(
    queue: Penstock, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Worker):
        async def run(self, *, until_empty: bool = False) -> None:
            raise OSError("no more files")

    async def is_reported() -> bool:
        return "the worker of this process has ended" in caplog.text

    async def live() -> None:
        async with lifespan(queue, worker=lambda: Broken(queue))(None):
            await eventually(is_reported)
            assert await queue.find() == []  # the application goes on

    with pytest.raises(OSError, match="no more files"):
        await live()


async def test_signals_and_logging_stay_those_of_the_application(queue: Penstock) -> None:
    def found() -> Any:
        root = logging.getLogger()
        signals = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
        ours = logging.getLogger("penstock")
        return signals, root.handlers[:], root.level, ours.handlers[:], ours.level, ours.propagate

    before = found()
    app = FastAPI(lifespan=lifespan(MountedServer(queue, authenticate=who)))
    async with app.router.lifespan_context(app):
        assert found() == before
    assert found() == before


async def test_websocket_is_closed(queue: Penstock) -> None:
    said: list[Any] = []

    async def send(message: Any) -> None:
        said.append(message)

    server = MountedServer(queue, authenticate=who)
    await server({"type": "websocket", "path": "/"}, lambda: None, send)  # type: ignore[arg-type,return-value] # never called
    assert said == [{"type": "websocket.close"}]


async def test_stream_ends_when_its_reader_is_not_known_any_more(
    queue: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "RECHECK", 0.01)
    known = {"ada"}

    def who(request: Request) -> Caller | None:
        return Caller("ada", ["read", "publish"]) if "ada" in known else None

    with serving(host(MountedServer(queue, authenticate=who))) as url:
        async with (
            streaming(f"{url}/ops/queue") as stream,
            httpx.AsyncClient(trust_env=False) as http,
        ):
            await anext(stream)
            known.clear()

            async def is_refused() -> bool:
                answer = await http.get(f"{url}{JOBS}")
                return answer.status_code == HTTPStatus.UNAUTHORIZED

            await eventually(is_refused)
            other = Penstock(queue.url)

            async def write() -> None:
                while True:  # a stream looks when there is something to send
                    await other.enqueue_many([NewJob(task="send", payload="{}")])
                    await asyncio.sleep(0.05)

            writing = asyncio.create_task(write())
            async with asyncio.timeout(SOON):
                async for _ in stream:
                    pass
            writing.cancel()
            await other.close()


def test_application_stops_although_a_stream_is_open(queue: Penstock) -> None:
    """Within the time that the server gives its connections."""
    with serving(host(MountedServer(queue, authenticate=who))) as url:
        http = httpx.Client(trust_env=False, timeout=SOON)
        reading = http.stream(
            "GET", f"{url}/ops/queue/api/v1/stream", headers={"Cookie": "user=reader"}
        )
        answer = reading.__enter__()
        assert answer.status_code == HTTPStatus.OK
    http.close()


def test_client_finds_a_server_under_a_prefix(queue: Penstock) -> None:
    async def use(url: str) -> list[Job]:
        remote = RemotePenstock(url, token="admin")
        try:
            await remote.enqueue_many([NewJob(task="send", payload="{}")])
            return await remote.find(JobQuery())
        finally:
            await remote.close()

    with serving(host(MountedServer(queue, authenticate=who))) as url:
        found = asyncio.run(use(f"{url}/ops/queue"))
    assert [json.loads(job.payload) for job in found] == [{}]
