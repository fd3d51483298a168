"""The OpenAPI document only changes on purpose: clients are generated from it.

`python -m tests.web.test_openapi` writes `openapi.json` anew, without wording and examples.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.web.openapi import describe
from tests.applications import served_routes

RECORDED = Path(__file__).with_name("openapi.json")
WORDING = ("summary", "description", "title", "example")


def test_document_is_the_recorded_one_but_for_wording() -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    found = json.loads(json.dumps(dict(parts())))
    changed = {name for name in recorded | found if recorded.get(name) != found.get(name)}
    assert not changed, "if this is meant: python -m tests.web.test_openapi"


def parts() -> Iterator[tuple[str, Any]]:
    """Yield each operation and each schema by name."""
    document = describe(served_routes(), title="", version="", summary="")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", without_wording(operation)
    for name, schema in document["components"]["schemas"].items():
        yield name, without_wording(schema)


def without_wording(value: Any) -> Any:
    """Return a schema without wording; a property with such a name stays."""
    if isinstance(value, dict):
        return {
            name: without_wording(part)
            for name, part in value.items()
            if name != "example" and not (name in WORDING and isinstance(part, str))
        }
    return [without_wording(part) for part in value] if isinstance(value, list) else value


if __name__ == "__main__":
    lines = [f" {json.dumps(name)}: {json.dumps(part)}" for name, part in sorted(parts())]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
