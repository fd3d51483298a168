"""The OpenAPI document covers every answer: tested with valid and with invalid requests."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from penstock import Penstock
from tests import tiers
from tests.server.support import Listener, serving_in_thread, whole_service

CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
EXAMPLES = tiers.amount(4, 12)
ROUTES = whole_service(Penstock("memory://")).routes
WORKER = "worker-01:1"


@pytest.fixture(scope="module")
def server() -> Iterator[Listener]:
    with serving_in_thread("memory://") as server:
        yield server


@pytest.fixture(scope="module")
def schema(server: Listener) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


@pytest.fixture
def events(server: Listener) -> None:
    """Publish events in all states, so that generated requests find some."""
    with httpx.Client(base_url=server.url) as client:
        batch = [{"title": "t", "tags": "a", "max_retries": 1} for _ in range(8)]
        client.post("/events/batch", json={"events": batch}).raise_for_status()
        wanted = {"tags": "a", "worker_id": WORKER, "limit": 3}
        picked = client.post("/events/subscribe", json=wanted).json()["events"]
        for event, action in zip(picked, ("complete", "fail", "start"), strict=True):
            client.post(f"/events/{event['id']}/{action}", json={"worker_id": WORKER})


def reach(case: Any) -> None:
    """Point generated requests at existing events, and keep them from waiting."""
    parameters = case.path_parameters or {}
    for name, value in parameters.items():
        if type(value) is int and value > 0:
            parameters[name] = value % 10 + 1
    for given_fields in (case.body, case.query):
        if not isinstance(given_fields, dict):
            continue
        for name, most in (("wait", 0), ("timeout", 1)):
            if isinstance(given_fields.get(name), int | float):
                given_fields[name] = min(given_fields[name], most)
        if len(str(given_fields.get("worker_id", ""))) % 2:
            given_fields["worker_id"] = WORKER


def label(route: Any) -> str:
    return f"{route.declared.method} {route.declared.path}"


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("route", [r for r in ROUTES if not r.declared.streams], ids=label)
def test_answers_are_documented(
    session: requests.Session,
    schema: Any,
    events: None,
    route: Any,
    mode: GenerationMode,
) -> None:
    operation = schema[route.declared.path][route.declared.method]
    if mode is GenerationMode.NEGATIVE and not takes_anything(route):
        return  # there is nothing to be wrong

    def exercise(case: Any) -> None:
        reach(case)
        case.call_and_validate(checks=CHECKS, session=session, timeout=30)

    run(exercise, operation.as_strategy(generation_mode=mode))


def takes_anything(route: Any) -> bool:
    return bool(route.path_types or route.query_type or route.body_type)


def run(exercise: Callable[[Any], None], cases: Any) -> None:
    settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )(given(case=cases)(exercise))()


def test_document_speaks_of_every_route(server: Listener) -> None:
    document = httpx.get(f"{server.url}/openapi.json").json()
    described = {
        f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item
    }
    assert described == {label(route) for route in ROUTES}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            assert operation["summary"], (method, path)
            assert operation["description"], (method, path)
    assert httpx.get(f"{server.url}/docs").status_code == 404  # it would load foreign scripts


def test_an_unknown_path_is_named_with_the_list_of_routes(server: Listener) -> None:
    answer = httpx.post(f"{server.url}/api/v1/nope")
    assert answer.status_code == 404
    assert answer.json() == {
        "detail": "there is no route POST /api/v1/nope; /openapi.json lists all routes",
        "routes": "/openapi.json",
    }
