"""The reference of all settings, from the types that hold them."""

import ast
import inspect
from collections.abc import Iterator, Mapping
from textwrap import dedent
from typing import Any, get_args

import msgspec

from penstock.apps import entries, events, indexing, ingest, notebooks
from penstock.config import PREFIX, Server

SECTIONS: Mapping[str, type[msgspec.Struct]] = {
    "": Server,
    "events": events.Settings,
    "notebooks": notebooks.Settings,
    "indexing": indexing.Settings,
    "entries": entries.Settings,
    "ingest": ingest.Settings,
}
HEAD = """\
# Settings

Every setting of `penstock serve`, of the server itself and of its applications. This page is
generated from the types that hold the settings: `python -m docs.generate` writes it anew, and a
test compares it with the code. A setting is taken from the command line (those of the server), else
from its environment variable, else from `penstock.toml` (`[section]` for an application), else it
has its default; [Run a server](../how-to/server.md#settings) says more. `penstock config` shows the
values in use and their sources.
"""


def page() -> str:
    """Return the page."""
    return HEAD + "".join(_section(name, kind) for name, kind in SECTIONS.items())


def _section(name: str, kind: type[msgspec.Struct]) -> str:
    title = name.capitalize() or "Server"
    head = "| setting | variable | type | default | meaning |\n|---|---|---|---|---|\n"
    return f"\n## {title}\n\n{head}" + "".join(_rows(name, kind))


def _rows(section: str, kind: type[msgspec.Struct]) -> Iterator[str]:
    told = _docstrings(kind)
    also: Mapping[str, tuple[str, ...]] = getattr(kind, "ALSO_CALLED", {})
    for field in msgspec.structs.fields(kind):
        name = f"{section}.{field.name}" if section else field.name
        variable = f"{PREFIX}{name.upper().replace('.', '_')}"
        variables = ", ".join(f"`{one}`" for one in (variable, *also.get(field.name, ())))
        meaning = told.get(field.name, "").replace("|", "\\|")
        yield (
            f"| `{name}` | {variables} | {kind_of(field.type)} | {_default(field)} | {meaning} |\n"
        )


def _docstrings(kind: type) -> Mapping[str, str]:
    """Return the first paragraph of the text below each field."""
    body = ast.parse(dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)  # noqa: S101 - for the type checker
    found: dict[str, str] = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            value = getattr(text.value, "value", "")
            found[ast.unparse(field.target)] = " ".join(str(value).split("\n\n")[0].split())
    return found


def kind_of(annotation: Any) -> str:
    """Return a type in words, with its bounds."""
    metadata = getattr(annotation, "__metadata__", ())
    if metadata:
        bounds = [
            f"{word} {_number(getattr(meta, name))}"
            for meta in metadata
            for name, word in (("ge", "from"), ("gt", "above"), ("le", "to"))
            if getattr(meta, name, None) is not None
        ]
        return " ".join([kind_of(annotation.__origin__), *bounds])
    parts = get_args(annotation)
    if type(None) in parts:
        return " or ".join(kind_of(part) for part in parts if part is not type(None))
    if str(annotation).startswith("typing.Literal"):
        return " or ".join(f"`{part}`" for part in parts)
    if str(annotation).startswith("tuple"):
        return "list of text"
    plain = {int: "integer", float: "number", str: "text", bool: "boolean"}
    return plain.get(annotation, getattr(annotation, "__name__", "mapping").lower())


def _number(value: float) -> str:
    return f"{value:,}"


def _default(field: msgspec.structs.FieldInfo) -> str:
    value = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory() if callable(field.default_factory) else None
    if value in (None, "", (), {}):
        return "none"
    if isinstance(value, tuple):
        return ", ".join(f"`{one}`" for one in value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"
