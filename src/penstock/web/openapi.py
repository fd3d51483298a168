"""The OpenAPI document, generated from the declarations of routes."""

import inspect
import types
import typing
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from penstock.web.routes import Route

_REFS = "#/components/schemas/{name}"


class ProblemBody(msgspec.Struct, frozen=True):
    """What is wrong with a request; `field` names the field or parameter, if it is about one.

    `queue` is the queue that is full or in use, `limit` the limit that has been reached,
    `unfinished` how many jobs keep the queue in use. For an unknown path, `routes` is where all
    routes are listed.
    """

    detail: str
    field: str | msgspec.UnsetType = msgspec.UNSET
    queue: str | msgspec.UnsetType = msgspec.UNSET
    limit: int | msgspec.UnsetType = msgspec.UNSET
    unfinished: int | msgspec.UnsetType = msgspec.UNSET
    routes: str | msgspec.UnsetType = msgspec.UNSET


_PROBLEMS = {
    400: "The body is empty or not JSON.",
    401: "The token is missing, unknown or expired.",
    403: "The token lacks the required scope, or a name belongs to an application.",
    404: "Not found.",
    405: "The method is not allowed.",
    408: "The body did not arrive in time.",
    409: "The current state does not allow this.",
    413: "The body is too large.",
    414: "The query string is too long.",
    415: "The content type is not JSON.",
    422: "A field or a parameter is invalid; `field` names it.",
    429: "The queue is full, or the store has reached its limit of queues.",
    503: "The store is not available; nothing was changed.",
}


def describe(routes: Iterable[Route], *, title: str, version: str, summary: str) -> dict[str, Any]:
    """Return the OpenAPI document of these routes."""
    routes = list(routes)
    kinds = {kind: None for route in routes for kind in _kinds(route)}
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REFS)
    known = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path, method = route.declared.path, route.declared.method.lower()
        paths.setdefault(path, {})[method] = _operation(route, known, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "summary": summary},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _kinds(route: Route) -> Iterable[Any]:
    yield ProblemBody
    if route.body_type is not None:
        yield route.body_type
    if route.query_type is not None:
        yield route.query_type
    yield from route.path_types.values()
    for answer in route.answers.values():
        yield from _parts(answer)


def _parts(kind: Any) -> tuple[Any, ...]:
    if kind is None or isinstance(kind, str):
        return ()
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return typing.get_args(kind)
    return (kind,)


def _operation(
    route: Route, known: Mapping[Any, Any], components: Mapping[str, Any]
) -> dict[str, Any]:
    declared = route.declared
    operation: dict[str, Any] = {
        "operationId": route.handler.__qualname__.replace(".", "_"),
        "summary": route.summary,
        "description": route.description,
        "tags": [declared.path.strip("/").split("/")[0]],
        "parameters": [*_path_parameters(route, known), *_query_parameters(route, components)],
        "responses": _responses(route, known),
    }
    if declared.access is not None:
        operation["security"] = [{"token": []}]
        operation["x-scope"] = str(declared.access)
    if route.body_type is not None:
        content: dict[str, Any] = {"schema": known[route.body_type]}
        if "body" in declared.examples:
            content["example"] = declared.examples["body"]
        operation["requestBody"] = {
            "required": route.needs_body,
            "content": {"application/json": content},
        }
    return operation


def _path_parameters(route: Route, known: Mapping[Any, Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": known[kind]}
        for name, kind in route.path_types.items()
    ]


def _query_parameters(route: Route, components: Mapping[str, Any]) -> list[dict[str, Any]]:
    if route.query_type is None:
        return []
    schema = components[route.query_type.__name__]
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": described}
        for name, described in schema["properties"].items()
    ]


def _responses(route: Route, known: Mapping[Any, Any]) -> dict[str, Any]:
    declared = route.declared
    responses: dict[str, Any] = {}
    for status, kind in route.answers.items():
        answer: dict[str, Any] = {"description": _described(kind) or HTTPStatus(status).phrase}
        parts = [known[part] for part in _parts(kind)]
        if isinstance(kind, str):  # a content type other than JSON
            answer["content"] = {kind: {"schema": {"type": "string"}}}
        elif parts:
            schema = parts[0] if len(parts) == 1 else {"anyOf": parts}
            example = declared.examples.get(str(status))
            answer["content"] = {
                "application/json": {"schema": schema, **({"example": example} if example else {})}
            }
        responses[str(status)] = answer
    for status in _possible(route):
        problem = {
            "description": _PROBLEMS[status],
            "content": {"application/json": {"schema": known[ProblemBody]}},
        }
        answer = responses.setdefault(str(status), problem)
        if answer is not problem:  # the route also uses this status, with another body
            content = answer["content"]["application/json"]
            content["schema"] = {"anyOf": [content["schema"], known[ProblemBody]]}
    return responses


def _possible(route: Route) -> Iterable[int]:
    if route.declared.access is not None:
        yield from (401, 403, 409, 503)
    if route.path_types:
        yield 404
    if not route.declared.any_query:
        yield 414
    if route.body_type is not None:
        yield from (400, 408, 413, 415, 429)
    if route.path_types or route.body_type or not route.declared.any_query:
        yield 422


def _described(kind: Any) -> str:
    return "" if isinstance(kind, str) else (inspect.getdoc(kind) or "").split("\n")[0]
