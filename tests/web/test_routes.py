import gc
import json
import weakref
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import msgspec.inspect
import pytest

from penstock.core.tokens import Access
from penstock.web.openapi import describe
from penstock.web.routes import Answer, Route, route, routes_of
from tests.applications import all_routes

ROUTES = all_routes()
ANY_QUERY = {
    "GET /",
    "GET /dashboard/{name}",
    "GET /health",
    "GET /health/live",
    "GET /health/ready",
    "GET /health/startup",
    "GET /metrics",
}
"""Pages, probes and scrapers: additional parameters are ignored there."""
BODY_OPTIONAL = sorted(
    name for name, one in ROUTES.items() if one.body_type is not None and not one.needs_body
)
BODILESS = sorted(
    name
    for name, one in ROUTES.items()
    if one.body_type is None and not one.declared.reads_body and not name.startswith("GET ")
)
NEEDED = {"POST /api/v1/jobs/{job_id}/reprioritise": b"priority=1"}
"""Queries that cannot be left out."""
TYPES = [None, b"application/json", b"application/x-www-form-urlencoded", b"text/plain"]


class Served(msgspec.Struct):
    """The answer to one request, and the arguments of the handler, if it was called."""

    status: int
    body: Any
    given: dict[str, Any] | None


async def serve(
    one: Route, *, query: bytes = b"", body: bytes = b"", content_type: bytes | None = None
) -> Served:
    """Serve one request with a handler that records its arguments."""
    given: dict[str, Any] | None = None
    sent: list[Any] = []

    async def handler(**arguments: Any) -> Answer[Any]:
        nonlocal given
        given = arguments
        return Answer(200, {})

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    made = Route(one.declared, one.handler)
    made.handler = handler
    scope = {
        "type": "http",
        "method": one.declared.method,
        "query_string": query,
        "path_params": dict.fromkeys(one.path_types, "1"),
        "headers": [] if content_type is None else [(b"content-type", content_type)],
    }
    status = await made.serve(scope, receive, send)
    return Served(status, json.loads(sent[1]["body"]), given)


@pytest.mark.parametrize("name", sorted(ROUTES))
async def test_unknown_query_parameter_is_refused_by_name(name: str) -> None:
    served = await serve(ROUTES[name], query=b"nonsense=1")
    if name in ANY_QUERY:
        assert served.given is not None
    else:
        assert (served.status, served.body["field"]) == (422, "nonsense")
        assert served.given is None


@pytest.mark.parametrize("name", ["GET /api/v1/notebooks", "POST /events"])
async def test_query_has_a_length_also_where_no_parameter_is_taken(name: str) -> None:
    assert (await serve(ROUTES[name], query=b"a=" + b"1" * 8_000)).status == 414


async def test_parameters_of_known_clients_stay_accepted() -> None:
    served = await serve(
        ROUTES["POST /index"],
        query=b"force=false&allow_external=true",
        body=b'{"folder_path": "/x"}',
    )
    assert served.status == 200


def test_query_type_that_ignores_unknown_parameters_cannot_be_declared() -> None:
    class Loose(msgspec.Struct):
        limit: int = 1

    class Routes:
        @route("GET", "/loose", Access.READ)
        async def loose(self, query: Loose) -> None:
            """Never called."""

    with pytest.raises(TypeError, match="Loose must forbid unknown fields"):
        list(routes_of(Routes()))


# Bodies


@pytest.mark.parametrize("content_type", TYPES)
@pytest.mark.parametrize("name", BODY_OPTIONAL)
async def test_body_whose_fields_are_all_optional_may_be_left_out(
    name: str, content_type: bytes | None
) -> None:
    served = await serve(ROUTES[name], content_type=content_type)
    assert served.status == 200
    assert served.given is not None
    assert served.given["body"] == msgspec.convert({}, ROUTES[name].body_type)


def test_commit_needs_no_body() -> None:
    assert "POST /api/v1/events/commit" in BODY_OPTIONAL


@pytest.mark.parametrize("name", BODY_OPTIONAL)
async def test_body_that_is_there_has_to_be_json(name: str) -> None:
    assert (await serve(ROUTES[name], body=b"{}", content_type=b"text/plain")).status == 415
    assert (await serve(ROUTES[name], body=b"{")).status == 400


@pytest.mark.parametrize("name", BODILESS)
async def test_body_that_would_be_ignored_is_refused(name: str) -> None:
    for sent in (b'{"duration": -1}', b"[]", b"1"):
        served = await serve(
            ROUTES[name], query=NEEDED.get(name, b""), body=sent, content_type=b"application/json"
        )
        assert (served.status, served.given) == (422, None)
        assert "takes no body" in served.body["detail"]
    served = await serve(ROUTES[name], body=b"a=1", content_type=b"text/plain")
    assert (served.status, served.given) == (422, None)


@pytest.mark.parametrize(
    ("sent", "help_"),
    [
        ('{"duration": 5}', "send duration in the query: ?duration=5"),
        ('{"duration": "1 h"}', "send duration in the query: ?duration=1+h"),
        ('{"duration": 5, "other": 6}', "it would be ignored"),
        ("[5]", "it would be ignored"),
        ('{"duration": ' + 9_999 * "[", "it would be ignored"),
    ],
)
async def test_body_of_query_parameters_is_refused_with_the_query_to_send(
    sent: str, help_: str
) -> None:
    one = ROUTES["POST /api/v1/queues/{name}/pause"]
    served = await serve(one, body=sent.encode())
    assert served.status == 422
    assert served.body == {"detail": f"this route takes no body; {help_}"}


@pytest.mark.parametrize("content_type", TYPES)
@pytest.mark.parametrize("name", BODILESS)
async def test_route_without_a_body_takes_nothing_and_an_empty_object(
    name: str, content_type: bytes | None
) -> None:
    for sent in (b"", b"{}") if content_type in (None, b"application/json") else (b"",):
        served = await serve(
            ROUTES[name], query=NEEDED.get(name, b""), body=sent, content_type=content_type
        )
        assert served.status == 200
        assert served.given is not None
        assert "body" not in served.given


@pytest.mark.parametrize("name", ["POST /events", "POST /api/v1/jobs"])
async def test_empty_body_is_said_to_be_empty_where_one_is_needed(name: str) -> None:
    served = await serve(ROUTES[name])
    assert (served.status, served.given) == (400, None)
    assert "the body is empty" in served.body["detail"]


def test_document_says_which_bodies_are_needed() -> None:
    document = describe(ROUTES.values(), title="", version="", summary="")
    described = {
        f"{method.upper()} {path}": operation["requestBody"]["required"]
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if "requestBody" in operation
    }
    assert {name for name, needed in described.items() if not needed} == set(BODY_OPTIONAL)


# Integers

LARGEST = 2**63 - 1
"""The largest integer that a column holds, in every store."""


def unbounded(kind: Any) -> Iterator[str]:
    """Yield the places in a type where an integer may exceed what stores accept."""
    pending = [("", msgspec.inspect.type_info(kind))]
    seen: set[type] = set()
    while pending:
        where, one = pending.pop()
        if isinstance(one, msgspec.inspect.IntType):
            highest = min(
                (one.le, one.lt), key=lambda bound: LARGEST + 1 if bound is None else bound
            )
            lowest = one.ge if one.ge is not None else one.gt
            if highest is None or highest > LARGEST or lowest is None or lowest < -LARGEST - 1:
                yield where
        if isinstance(one, msgspec.inspect.StructType):
            if one.cls in seen:
                continue
            seen.add(one.cls)
            pending += [(f"{where}.{field.encode_name}", field.type) for field in one.fields]
        for name in ("type", "types", "item_type", "item_types", "key_type", "value_type"):
            inner = getattr(one, name, ())
            pending += [(where, each) for each in (inner if isinstance(inner, tuple) else (inner,))]


@pytest.mark.parametrize("name", sorted(ROUTES))
def test_integers_that_a_route_takes_fit_into_a_store(name: str) -> None:
    one = ROUTES[name]
    kinds = {**one.path_types, "query": one.query_type, "body": one.body_type}
    found = [
        f"{part}{place}"
        for part, kind in kinds.items()
        if kind is not None
        for place in unbounded(kind)
    ]
    assert found == []


def test_unbounded_integers_are_found() -> None:
    class Inner(msgspec.Struct):
        deep: list[dict[str, Annotated[int, msgspec.Meta(ge=1)] | None]]

    class Outer(msgspec.Struct):
        inner: Inner | None
        fine: Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
        low: Annotated[int, msgspec.Meta(le=1)]

    assert sorted(unbounded(Outer)) == [".inner.deep", ".low"]


async def test_request_that_is_nested_too_deep_is_not_kept() -> None:
    """An error that is raised again and again would keep every request, with its traceback."""
    free = next(one for one in ROUTES.values() if one._is_free and not one.path_types)

    class Request:
        async def receive(self) -> Any:
            return {"type": "http.request", "body": b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}"}

    async def send(message: Any) -> None:
        statuses.append(message.get("status"))

    statuses: list[int | None] = []
    request = Request()
    scope = {"type": "http", "query_string": b"", "path_params": {}, "headers": []}
    await Route(free.declared, free.handler)(scope, request.receive, send)
    kept = weakref.ref(request)
    del request
    gc.collect()
    assert (statuses[0], kept()) == (422, None)
