"""Relations of jobs over HTTP: keys and dependencies."""

from penstock import NewJob, Penstock
from tests.server.support import Api


def job(**options: object) -> NewJob:
    return NewJob(task="t", payload="{}", **options)  # type: ignore[arg-type] # as they come


async def test_line_of_a_key_has_its_holder_first(api: Api, app: Penstock) -> None:
    first, second, third = await app.enqueue_many([job(key="a/b ö")] * 3)
    await app.enqueue_many([job(key="other")])
    await app.leases.claim(worker="w", limit=1)
    line = await api("GET", "/keys/a%2Fb%20%C3%B6")
    assert (line["key"], line["after"]) == ("a/b ö", None)
    assert (line["holder"]["id"], line["holder"]["worker"]) == (first.id, "w")
    assert line["holder"]["state"] == "running"
    assert [one["id"] for one in line["waiting"]] == [second.id, third.id]


async def test_running_job_holds_its_key_before_older_ones(api: Api, app: Penstock) -> None:
    older, newer = await app.enqueue_many([job(key="k")] * 2)
    await app.cancel(older.id)
    await app.leases.claim(worker="w", limit=1)
    await app.retry(older.id)
    line = await api("GET", "/keys/k")
    assert line["holder"]["id"] == newer.id
    assert [one["id"] for one in line["waiting"]] == [older.id]


async def test_long_line_comes_in_pages(api: Api, app: Penstock) -> None:
    jobs = await app.enqueue_many([job(key="k")] * 5)
    page = await api("GET", "/keys/k?limit=2")
    assert page["holder"]["id"] == jobs[0].id
    assert [one["id"] for one in page["waiting"]] == [jobs[1].id]
    rest = await api("GET", f"/keys/k?limit=10&after={page['after']}")
    assert rest["holder"] is None
    assert [one["id"] for one in rest["waiting"]] == [one.id for one in jobs[2:]]
    assert rest["after"] is None


async def test_key_that_nobody_has_is_an_empty_line(api: Api) -> None:
    line = await api("GET", "/keys/none")
    assert (line["holder"], line["waiting"]) == (None, [])


async def test_graph_has_what_a_job_waits_for_and_what_waits_for_it(
    api: Api, app: Penstock
) -> None:
    a, b = await app.enqueue_many([job(), job()])
    [middle] = await app.enqueue_many([job(after=(a.id, b.id))])
    [last] = await app.enqueue_many([job(after=(middle.id,))])
    graph = await api("GET", f"/jobs/{middle.id}/graph")
    assert {one["id"] for one in graph["jobs"]} == {a.id, b.id, middle.id, last.id}
    assert {(one["needs"], one["job"]) for one in graph["edges"]} == {
        (a.id, middle.id),
        (b.id, middle.id),
        (middle.id, last.id),
    }
    assert not graph["more"]


async def test_large_graph_is_cut(api: Api, app: Penstock) -> None:
    needed = await app.enqueue_many([job()] * 60)
    [waiting] = await app.enqueue_many([job(after=tuple(one.id for one in needed))])
    graph = await api("GET", f"/jobs/{waiting.id}/graph")
    assert len(graph["jobs"]) == 40
    assert len(graph["edges"]) == 39
    assert graph["more"]


async def test_graph_of_no_job_is_not_found(api: Api) -> None:
    await api.refused("GET", "/jobs/7/graph", status=404)


async def test_keys_are_listed_whether_held_or_waited_for(api: Api, app: Penstock) -> None:
    held, _, waited = await app.enqueue_many([job(key="b"), job(key="b"), job(key="a b/c")])
    await app.leases.claim(worker="w", limit=1)
    found = await api("GET", "/keys")
    assert found["after"] is None
    assert [(one["key"], one["holder"]["id"], one["waiting"]) for one in found["keys"]] == [
        ("a b/c", waited.id, 0),
        ("b", held.id, 1),
    ]
    assert [one["holder"]["state"] for one in found["keys"]] == ["pending", "running"]
    first = await api("GET", "/keys?limit=1")
    assert (first["keys"], first["after"]) == (found["keys"][:1], "a b/c")
    rest = await api("GET", "/keys", params={"limit": 1, "after": first["after"]})
    assert (rest["keys"], rest["after"]) == (found["keys"][1:], None)
