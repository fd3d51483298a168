"""The reference of all routes, from the OpenAPI document."""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from penstock.web.openapi import describe
from tests.applications import all_routes

HEAD = """\
# HTTP routes

Every route with its parameters, its body and an example. This page is generated from the OpenAPI
document that the server offers at `/openapi.json`: `python -m docs.generate` writes it anew, and a
test compares it with the code. [HTTP API](http.md) explains access, values, errors, and how the
routes work together.
"""
METHODS = ("get", "post", "put", "patch", "delete")
SAMPLES: Mapping[str, Any] = {
    "collection": "guides",
    "correlation": "monday",
    "correlation_id": "monday",
    "event_id": 1,
    "id": 1,
    "job_id": 1,
    "name": "mail",
    "notebook": "garden",
    "operation": "sync",
    "path": "notes/tea.md",
    "folder_path": "/srv/shop/docs",
    "priority": 9,
    "query": "how are jobs retried?",
    "tags": "mail",
    "task": "mail.send",
    "tenant_id": "shop",
    "title": "Welcome Ada",
    "token": 2,
    "worker_id": "laptop:1",
    "entity_type": "experience",
    "category_code": "HOME",
    "max_retries": 3,
    "key": "ada",
    "action": "PICKED",
    "actor": "web1:4711",
    "at": "2030-01-01T12:00:00Z",
    "author": "Ada",
    "branch": "main",
    "chunk_id": "handbook.md:3",
    "commit": "4f1c2ab",
    "content_type": "text/markdown",
    "cron": "0 7 * * *",
    "description": "how to make tea",
    "diff": "-Boil water.\n+Boil fresh water.\n",
    "directory": "/srv/garden",
    "email": "ada@example.org",
    "entry_id": "experience-0f3c",
    "error_message": "",
    "explanation": "it is ready; no free worker has claimed it yet",
    "hash": "9f86d081",
    "host": "web1",
    "idempotency_key": "order-7",
    "item_type": "file",
    "kind": "sqlite",
    "language": "markdown",
    "last_indexed": "2030-01-01T12:00:00Z",
    "last_run": "2030-01-01T12:00:00Z",
    "level": "info",
    "message": "accepted",
    "missed": "once",
    "next": "2030-01-01T12:00:00Z",
    "op": "add",
    "queue": "mail",
    "reason": "the address was corrected",
    "queue_id": "0f3c",
    "since": "2030-01-01T12:00:00Z",
    "source": "handbook.md",
    "source_type": "doc",
    "spec": "0 7 * * *",
    "state": "pending",
    "status": "pending",
    "text": "Boil the water first.",
    "timezone": "Europe/Berlin",
    "type": "create",
    "until": "2030-01-01T13:00:00Z",
    "url": "sqlite:///penstock.db",
    "verb": "enqueue",
    "version": "0.2.0",
    "waiting": "ready",
    "worker": "laptop:1",
}
"""Values of fields that read better than those made up from their types."""

UPLOADS: Mapping[str, str] = {
    "POST /api/v1/entries/import": "entries.csv",
    "PUT /api/v1/notebooks/{notebook}/content": "tea.md",
    "PUT /api/v1/notebooks/{notebook}/files/{file_id}/content": "tea.md",
}
"""Routes whose body is a file as it is, with the file of their example."""


def document() -> Mapping[str, Any]:
    """Return the OpenAPI document of a server with all applications."""
    return describe(all_routes().values(), title="", version="", summary="")


def page() -> str:
    """Return the page."""
    found = document()
    operations = sorted(
        (path, METHODS.index(method), operation)
        for path, methods in found["paths"].items()
        for method, operation in methods.items()
        if (path, method) not in (("/", "get"), ("/dashboard/{name}", "get"))
    )
    parts = [HEAD]
    for group, members in groupby(operations, key=lambda one: group_of(one[0])):
        parts.append(f"\n## {group}\n")
        for path, method, operation in members:
            parts.append(_route(METHODS[method], path, operation, found["components"]["schemas"]))
    return re.sub(r"\n{3,}", "\n\n", "".join(parts))


def group_of(path: str) -> str:
    """Return the heading that a route belongs under."""
    pieces = [piece for piece in path.split("/") if piece and piece not in {"api", "v1"}]
    return f"{'/api/v1' if path.startswith('/api/') else ''}/{pieces[0]}" if pieces else "/"


Schemas = Mapping[str, Any]


def _route(method: str, path: str, operation: Mapping[str, Any], schemas: Schemas) -> str:
    scope = operation.get("x-scope")
    access = f"Scope `{scope}`." if scope else "No token needed."
    body = _body_of(operation)
    parts = [
        f"\n### {method.upper()} {path}\n\n{operation['summary']}. {access}\n\n",
        f"{_without_summary(operation)}\n\n",
        _parameters(operation["parameters"], schemas),
        _fields(resolve(body["schema"], schemas), schemas) if body else "",
        _answers(operation["responses"]),
        _example(method, path, operation, schemas),
    ]
    return "".join(parts)


def _without_summary(operation: Mapping[str, Any]) -> str:
    described = str(operation["description"])
    return "" if described.rstrip(".") == operation["summary"].rstrip(".") else described


def _body_of(operation: Mapping[str, Any]) -> Mapping[str, Any] | None:
    content = operation.get("requestBody", {}).get("content", {})
    found: Mapping[str, Any] | None = content.get("application/json")
    return found if found and "schema" in found else None


def _parameters(parameters: list[Mapping[str, Any]], schemas: Schemas) -> str:
    if not parameters:
        return ""
    rows = "".join(
        f"| `{one['name']}` | {one['in']} | {kind_of(one.get('schema', {}), schemas)} | "
        f"{_default(one.get('schema', {}), required=one.get('required', False))} |\n"
        for one in parameters
    )
    return f"| parameter | in | type | default |\n|---|---|---|---|\n{rows}\n"


def _fields(schema: Mapping[str, Any], schemas: Schemas) -> str:
    properties = schema.get("properties", {})
    if not properties:
        return ""
    required = schema.get("required", ())
    rows = "".join(
        f"| `{name}` | {kind_of(one, schemas)} | {_default(one, required=name in required)} |\n"
        for name, one in properties.items()
    )
    return f"| field of the body | type | default |\n|---|---|---|\n{rows}\n"


def _default(schema: Mapping[str, Any], *, required: bool) -> str:
    if required:
        return "required"
    return f"`{json.dumps(schema['default'])}`" if schema.get("default") is not None else "none"


def kind_of(schema: Mapping[str, Any], schemas: Schemas) -> str:
    """Return the type of a value in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        inner = schemas.get(name, {})
        return kind_of(inner, schemas) if "enum" in inner else f"`{name}`"
    if "enum" in schema:
        return " or ".join(f"`{one}`" for one in schema["enum"])
    if "anyOf" in schema:
        kinds = [kind_of(one, schemas) for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if schema.get("type") == "array":
        return f"list of {kind_of(schema.get('items', {}), schemas)}"
    bounds = [
        f"{word} {schema[name]:,}"
        for name, word in (("minimum", "from"), ("exclusiveMinimum", "above"), ("maximum", "to"))
        if name in schema and abs(schema[name]) < 2**53
    ]
    kinds = schema.get("type", "any JSON")
    kind = " or ".join(kinds) if isinstance(kinds, list) else kinds
    return " ".join([{"string": "text"}.get(kind, kind), *bounds])


def _answers(responses: Mapping[str, Any]) -> str:
    good = sorted(status for status in responses if status < "4")
    bad = sorted(status for status in responses if status >= "4")
    return f"Answers: {', '.join(good)}; errors: {', '.join(bad)}.\n\n"


def _example(method: str, path: str, operation: Mapping[str, Any], schemas: Schemas) -> str:
    lines = [f"$ {curl(method, path, operation, schemas)}"]
    answer = answer_of(operation, schemas)
    if answer is not None:
        lines += json.dumps(answer, indent=2, ensure_ascii=False).splitlines()
    inside = "\n".join(f"    {line}" for line in ["```console", *lines, "```"])
    return f'??? example "Example"\n\n{inside}\n'


def curl(method: str, path: str, operation: Mapping[str, Any], schemas: Schemas) -> str:
    """Return the request as a command."""
    words = ["curl"] if method == "get" else ["curl", "-X", method.upper()]
    if operation.get("x-scope"):
        words += ["-H", '"Authorization: Bearer $PENSTOCK_TOKEN"']
    body = body_of(operation, schemas)
    if body is not None:
        words += ["-H", "'Content-Type: application/json'", "-d", f"'{json.dumps(body)}'"]
    if (file := UPLOADS.get(f"{method.upper()} {path}")) is not None:
        words += ["--data-binary", f"@{file}"]
    return " ".join([*words, f"'http://127.0.0.1:8000{target_of(path, operation, schemas)}'"])


def target_of(path: str, operation: Mapping[str, Any], schemas: Schemas) -> str:
    """Return a path with its parameters filled in, and the query that is required."""
    filled = re.sub(r"\{(\w+)\}", lambda found: str(SAMPLES.get(found[1], "1")), path)
    query = "&".join(
        f"{one['name']}={value_for(one['name'], one.get('schema', {}), schemas)}"
        for one in operation["parameters"]
        if one["in"] == "query" and one.get("required")
    )
    return f"{filled}{'?' + query if query else ''}"


def body_of(operation: Mapping[str, Any], schemas: Schemas) -> Any:
    """Return an example of a body: the declared one, else made up from its type."""
    body = _body_of(operation)
    if body is None:
        return None
    return body["example"] if "example" in body else value_for("", body["schema"], schemas)


def answer_of(operation: Mapping[str, Any], schemas: Schemas) -> Any:
    """Return an example of a successful answer, None if it has no JSON."""
    for status, response in operation["responses"].items():
        content = response.get("content", {}).get("application/json")
        if status < "3" and content:
            if "example" in content:
                return content["example"]
            return value_for("", content["schema"], schemas, whole=True)
    return None


def resolve(schema: Mapping[str, Any], schemas: Schemas) -> Mapping[str, Any]:
    """Return a schema itself, where it is only referred to."""
    while "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    return schema


def value_for(
    name: str, schema: Mapping[str, Any], schemas: Schemas, *, whole: bool = False, depth: int = 0
) -> Any:
    """Return a value of a type: what is required, or with `whole` every field."""
    schema = resolve(schema, schemas)
    if name in SAMPLES and _fits(SAMPLES[name], schema):
        return SAMPLES[name]
    for way in ("anyOf", "oneOf"):
        if way in schema:
            choices = [one for one in schema[way] if one.get("type") != "null"]
            sampled = bool(SAMPLES.get(name)) and _fits(SAMPLES[name], resolve(choices[0], schemas))
            if whole and len(choices) < len(schema[way]) and not sampled:
                return None  # an answer leaves open what need not be there
            return value_for(name, choices[0], schemas, whole=whole, depth=depth)
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "object":
        return _object(schema, schemas, whole=whole, depth=depth)
    return _scalar(name, schema, schemas, whole=whole, depth=depth)


def _object(schema: Mapping[str, Any], schemas: Schemas, *, whole: bool, depth: int) -> Any:
    required = schema.get("required", ())
    return {
        field: value_for(field, one, schemas, whole=whole, depth=depth + 1)
        for field, one in schema.get("properties", {}).items()
        if field in required or (whole and depth < 2)
    }


def _scalar(
    name: str, schema: Mapping[str, Any], schemas: Schemas, *, whole: bool, depth: int
) -> Any:
    kind = schema.get("type")
    if kind == "array":
        item = schema.get("items", {})
        return [value_for("", item, schemas, whole=whole, depth=depth + 1)] if depth < 3 else []
    if kind == "string":
        is_time = schema.get("format") == "date-time" or name.endswith("_at")
        if is_time:
            return "2030-01-01T12:00:00Z"
        return schema.get("default") or str(SAMPLES.get(name, name)) or "text"
    least = max(1, schema.get("minimum", 1))
    plain = {"integer": least, "number": float(least), "boolean": schema.get("default", False)}
    return plain.get(str(kind), {} if whole else "text")


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    kinds: dict[str, type | tuple[type, ...]] = {
        "string": str,
        "integer": int,
        "number": (int, float),
    }
    if "enum" in schema:
        return value in schema["enum"]
    kind = schema.get("type")
    return isinstance(kind, str) and kind in kinds and isinstance(value, kinds[kind])


def routes() -> Iterator[tuple[str, Mapping[str, Any], Schemas]]:
    """Yield every operation by its method and path, for tests."""
    found = document()
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation, found["components"]["schemas"]
