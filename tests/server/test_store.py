"""How the store fares, over HTTP, and what is not shown of jobs."""

import httpx

from penstock import Done, NewJob, Penstock
from penstock.server.app import Service
from penstock.server.secrets import HIDDEN, Secrets
from tests.contract.support import HOUR, ManualClock
from tests.server.conftest import Api


async def test_store_tells_its_size_and_what_it_refused(
    api: Api, app: Penstock, clock: ManualClock
) -> None:
    await app.enqueue_many([NewJob(task="t", payload="{}")])
    [job] = await app.claim(worker="slow", limit=1)
    clock.advance(HOUR)
    assert await app.reclaim() == 1
    assert await app.settle_held([(job, Done())]) == [None]
    store = await api("GET", "/store")
    assert (store["refused"], store["expired"]) == (1, 1)
    assert store["newest_log"] == await app.newest_log()
    if store["kind"] != "memory":
        assert store["bytes"] > 0
    assert (store["wal_bytes"] is not None) is (store["kind"] == "sqlite")
    assert (store["dead_rows"] is not None) is (store["kind"] == "postgres")


def test_secrets_are_hidden_at_any_depth_and_in_any_case() -> None:
    secrets = Secrets(["password", "api_key"])
    assert secrets.hide('{"a":{"Password":"x"},"b":[{"api_key":{"c":1}}]}') == (
        f'{{"a":{{"Password":"{HIDDEN}"}},"b":[{{"api_key":"{HIDDEN}"}}]}}'
    )
    assert secrets.hide('{"pass\\u0077ord":"x"}') == f'{{"password":"{HIDDEN}"}}'


def test_what_is_no_secret_stays_as_it_was_written() -> None:
    text = '{"a": 1.10,  "passwords": "password"}'
    assert Secrets(["password"]).hide(text) == text
    assert Secrets([]).hide('{"password":"x"}') == '{"password":"x"}'


async def test_secret_fields_of_arguments_and_results_are_not_shown() -> None:
    app = Penstock("memory://")
    service = Service(app, [], secret_fields=["password"])
    transport = httpx.ASGITransport(app=service)
    async with app, httpx.AsyncClient(transport=transport, base_url="http://penstock") as client:
        args = {"to": "ada", "password": "hunter2"}
        made = await client.post("/api/v1/jobs", json={"task": "t", "args": args})
        [job] = await app.claim(worker="w", limit=1)
        assert job.args == args
        await app.settle([(job, Done('{"password":"hunter2"}'))])
        one = await client.get(f"/api/v1/jobs/{job.id}")
        page = await client.get("/api/v1/jobs")
        assert one.json()["args"] == {"to": "ada", "password": HIDDEN}
        assert one.json()["result"] == {"password": HIDDEN}
        assert "hunter2" not in made.text + one.text + page.text
