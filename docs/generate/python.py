"""The reference of the Python API, from signatures, types and docstrings."""

import inspect
import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import msgspec

import penstock.errors
from penstock import Penstock
from penstock.engine.bulk import Selection

MODULES = (
    "penstock",
    *(f"penstock.{topic}" for topic in ("jobs", "queues", "schedules", "statistics")),
    *(f"penstock.{topic}" for topic in ("tokens", "leases", "tables", "errors")),
    *(f"penstock.{topic}" for topic in ("client", "testing", "vectors")),
    *(f"penstock.integrations.{name}" for name in ("asgi", "flask", "sqlalchemy")),
)
HEAD = """\
# Python names

Every public name with its signature, its types and its docstring. This page is generated from the
code: `python -m docs.generate` writes it anew, and a test compares it with the code.
[Python API](python.md) is shorter and sorted by what you want to do.
"""
ERRORS = set(penstock.errors.__all__)
WIDE = 92


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    seen: set[int] = set()
    for name in MODULES:
        parts.append(f"\n## {name}\n\n{_prose(import_module(name))}\n")
        parts.extend(_names(name, seen))
        if name == "penstock":
            parts.extend(_parts())
    return re.sub(r"\n{3,}", "\n\n", "".join(parts))


def public_names(module: str) -> Sequence[str]:
    """Return what a module offers: what it lists, else what it defines without an underscore."""
    found = import_module(module)
    defined = [
        name
        for name, value in vars(found).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isroutine(value))
        and value.__module__ == module
    ]
    listed: Sequence[str] = getattr(found, "__all__", defined)
    return listed


def _names(module: str, seen: set[int]) -> Iterator[str]:
    for name in public_names(module):
        value = getattr(import_module(module), name)
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield _described(name, value)


def _parts() -> Iterator[str]:
    """Yield what is reached through an app: `app.queues`, and so on."""
    app = Penstock("memory://")
    parts: dict[str, type] = {"app.bulk(query)": Selection}
    for name, part in sorted(vars(app).items()):
        if type(part).__module__.startswith("penstock.engine.") and name != "connection":
            parts[f"app.{name}"] = type(part)
    for name, kind in parts.items():
        yield f"\n### `{name}`\n\n{_prose(kind)}\n"
        yield from _methods(kind)


def _described(name: str, value: Any) -> str:
    if inspect.isclass(value):
        return _class(name, value)
    if callable(value) and inspect.isroutine(value):
        return f"\n### `{name}`\n\n{_code(name, value)}\n{_prose(value)}\n{_raised(value)}"
    return f"\n### `{name}`\n\n```py\n{name}: {_clean(_plain(value))}\n```\n"


def _class(name: str, kind: type) -> str:
    parts = [f"\n### `{name}`\n\n"]
    if issubclass(kind, BaseException):
        parts.append(f"Based on `{kind.__bases__[0].__name__}`.\n\n")
    elif issubclass(kind, msgspec.Struct):
        parts.append(_fields(kind))
    elif members := getattr(kind, "__members__", None):
        values = ", ".join(f"`{one.name} = {one.value!r}`" for one in members.values())
        parts.append(f"{values}\n\n")
    elif "__init__" in vars(kind) and not getattr(kind, "_is_protocol", False):
        parts.append(_code(name, kind) + "\n")
    parts.append(f"{_prose(kind)}\n")
    parts.extend(_methods(kind))
    return "".join(parts)


def _fields(kind: type[msgspec.Struct]) -> str:
    lines = [f"class {kind.__name__}:"]
    for field in msgspec.structs.fields(kind):
        default = "" if field.default is msgspec.NODEFAULT else f" = {_clean(repr(field.default))}"
        if field.default_factory is not msgspec.NODEFAULT:
            default = f" = {_clean(repr(field.default_factory()))}"
        lines.append(f"    {field.name}: {_clean(_type(field.type))}{default}")
    return "```py\n" + "\n".join(lines) + "\n```\n\n"


def _methods(kind: type) -> Iterator[str]:
    for name, value in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(value, property) and value.fget is not None:
            returned = _clean(_type(inspect.signature(value.fget).return_annotation))
            yield f"\n```py\n{name}: {returned}  # a property\n```\n\n{_prose(value)}\n"
        elif isinstance(value, (classmethod, staticmethod)) or inspect.isfunction(value):
            function: Any = getattr(value, "__func__", value)
            if inspect.getdoc(function):
                yield f"\n{_code(name, function)}\n{_prose(function)}\n{_raised(function)}"


def _code(name: str, function: Any) -> str:
    """Return the signature, over several lines if it is long."""
    signature = inspect.signature(function)
    parameters = [one for one in signature.parameters.values() if one.name not in {"self", "cls"}]
    shown = _clean(str(signature.replace(parameters=parameters)))
    if inspect.isclass(function):
        shown = shown.removesuffix(" -> None")
    word = "async def " if inspect.iscoroutinefunction(function) else ""
    if len(word + name + shown) > WIDE:
        inside = _clean(str(signature.replace(parameters=parameters)))
        shown = _wrapped(inside)
    return f"```py\n{word}{name}{shown}\n```\n"


def _wrapped(signature: str) -> str:
    """Break a signature at the commas between its parameters."""
    depth, lines, line = 0, [], ""
    inside, _, after = signature[1:].rpartition(")")
    for letter in inside:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            lines.append(line.strip())
            line = ""
        else:
            line += letter
    return "(\n" + "".join(f"    {one},\n" for one in [*lines, line.strip()]) + ")" + after


def _type(annotation: Any) -> str:
    if annotation is inspect.Signature.empty:
        return "Any"
    return annotation.__name__ if inspect.isclass(annotation) else str(annotation)


def _plain(value: Any) -> str:
    return f"{type(value).__name__}" if not hasattr(value, "__origin__") else str(value)


def _clean(text: str) -> str:
    """Shorten what `inspect` prints: no modules, no addresses in memory."""
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", text)
    text = re.sub(r"<([A-Z]\w*)\.(\w+): [^>]*>", r"\1.\2", text)
    text = re.sub(r"<function ([\w.<>]+) at 0x\w+>", r"\1", text)
    text = re.sub(r"<(?:\w+\.)*(\w+)(?: object)? at 0x\w+>", r"\1()", text)
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z_])", "", text).replace("~", "")
    return re.sub(r"frozenset\(\{([^}]+)\}\)", _sorted, text)


def _sorted(found: re.Match[str]) -> str:
    """A set is printed in another order by every process."""
    return f"frozenset({{{', '.join(sorted(found[1].split(', ')))}}})"


def _prose(value: Any) -> str:
    """Return a docstring as Markdown."""
    own = vars(value).get("__doc__") if inspect.isclass(value) else getattr(value, "__doc__", None)
    return inspect.cleandoc(own or "").replace("```python", "```py")


def _raised(function: Any) -> str:
    """Return the errors that a docstring names, in a line of their own."""
    named = [name for name in re.findall(r"`(\w+)`", _prose(function)) if name in ERRORS]
    errors = ", ".join(f"`{name}`" for name in dict.fromkeys(named))
    return f"\nRaises: {errors}\n" if errors else ""
