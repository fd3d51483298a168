"""Generates the stubs of synchronous calls from the coroutines of the classes.

`python -m tests.engine.sync_stub` writes them anew.
"""

import ast
import builtins
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[2] / "src"
ENGINE = SOURCE / "penstock" / "engine" / "sync_calls.pyi"
CLIENT = SOURCE / "penstock" / "client" / "sync_calls.pyi"


class Calls(NamedTuple):
    """A class of the stub, and the class whose coroutines it has."""

    name: str
    module: str
    owner: str
    base: str = ""
    of: str = ""


def _engine(module: str, owner: str, name: str = "", base: str = "", of: str = "") -> Calls:
    return Calls(name or f"Sync{owner}", f"penstock.engine.{module}", owner, base, of)


def _client(owner: str) -> Calls:
    return Calls(f"Sync{owner}", "penstock.client.remote", owner)


STUBS = {
    ENGINE: [
        _engine("penstock", "Penstock"),
        _engine("task", "Task", base="Generic[P, V_co]", of="Task[P, Any, V_co]"),
        _engine("bulk", "Selection"),
        _engine("queues", "Queues"),
        _engine("limits", "Limits"),
        _engine("schedules", "Schedules"),
        _engine("archive", "Archive"),
        _engine("leases", "Workers"),
        _engine("tokens", "Tokens"),
        _engine("statistics", "Statistics"),
        _engine("tables", "OwnTables", "SyncTables"),
        _engine("leases", "Leases"),
    ],
    CLIENT: [
        _client("RemotePenstock"),
        _client("RemoteSelection"),
        _client("RemoteQueues"),
        _client("RemoteLimits"),
        _client("RemoteSchedules"),
        _client("RemoteWorkers"),
        _client("RemoteTokens"),
        _client("RemoteStatistics"),
    ],
}
HEAD = '''"""The synchronous calls of {parts}, for type checkers and editors.

Generated from the coroutines by `python -m tests.engine.sync_stub`.
"""
'''
VARIABLES = {
    "P": ("ParamSpec", 'P = ParamSpec("P")'),
    "T": ("TypeVar", 'T = TypeVar("T")'),
    "V_co": ("TypeVar", 'V_co = TypeVar("V_co", covariant=True)'),
}


def stub(path: Path) -> str:
    """The text of a stub."""
    classes: list[str] = []
    imports: dict[str, str] = {}
    variables: set[str] = set()
    for calls in STUBS[path]:
        module = ast.parse(_file(calls.module).read_text("utf-8"))
        body = list(_members(module, calls))
        head = f"class {calls.name}({calls.base}):" if calls.base else f"class {calls.name}:"
        doc = f'"""The coroutines of `{calls.owner}` as plain functions."""'
        made = f"def __init__(self, owner: {calls.of or calls.owner}) -> None: ..."
        written = ast.parse(f"{head}\n    {doc}\n    {made}").body[0]
        assert isinstance(written, ast.ClassDef)
        written.body += body
        used = _names(written) - {calls.name}
        for name in used - VARIABLES.keys():
            imports.setdefault(name, _import(name, module, calls.module))
        variables |= used & VARIABLES.keys()
        classes.append(ast.unparse(written))
    kinds = {VARIABLES[name][0] for name in variables}
    statements = {*imports.values(), *(f"from typing import {kind}" for kind in kinds)}
    parts = "a queue behind a server" if path == CLIENT else "an app, its parts and its tasks"
    text = "\n".join(
        [
            HEAD.format(parts=parts),
            *sorted(statements - {""}),
            *(VARIABLES[name][1] for name in sorted(variables)),
            *classes,
        ]
    )
    return _formatted(text, path)


def _file(module: str) -> Path:
    return SOURCE.joinpath(*module.split(".")).with_suffix(".py")


def _members(module: ast.Module, calls: Calls) -> Iterator[ast.stmt]:
    """The coroutines of a class as functions."""
    (owner,) = [one for one in module.body if getattr(one, "name", "") == calls.owner]
    assert isinstance(owner, ast.ClassDef)
    methods = [one for one in owner.body if isinstance(one, ast.AsyncFunctionDef)]
    overloaded = {one.name for one in methods if one.decorator_list}
    said = {
        one.name: ast.get_docstring(one) for one in methods
    }  # the last one, which is no overload
    for method in methods:
        is_private = method.name.startswith("_") and method.name not in ("__aenter__", "__aexit__")
        is_hidden = method.name in overloaded and not method.decorator_list
        if not (is_private or is_hidden):
            yield _function(method, calls.owner, said[method.name])


def _function(method: ast.AsyncFunctionDef, owner: str, docstring: str | None) -> ast.stmt:
    is_iterator = any(isinstance(node, ast.Yield) for node in ast.walk(method))
    for one in ast.walk(method.args):
        if isinstance(one, ast.arg) and one.annotation is not None:
            one.annotation = _unquoted(one.annotation)
    method.args.defaults = [_default(one) for one in method.args.defaults]
    method.args.kw_defaults = [one and _default(one) for one in method.args.kw_defaults]
    assert method.returns is not None
    returns = ast.unparse(_unquoted(method.returns))
    returns = owner if returns == "Self" else returns
    if is_iterator:
        returns = returns.replace("AsyncIterator[", "Iterator[")
    method.returns = ast.parse(returns, mode="eval").body
    method.name = method.name.replace("__a", "__")
    method.body = [ast.Expr(ast.Constant(docstring or ...))]
    text = ast.unparse(method).removeprefix("async ").replace("\nasync def", "\ndef")
    (function,) = ast.parse(text).body
    return function


def _unquoted(annotation: ast.expr) -> ast.expr:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return ast.parse(annotation.value, mode="eval").body
    return annotation


def _default(value: ast.expr) -> ast.expr:
    """Plain values are shown as they are."""
    is_plain = isinstance(value, ast.Constant) or ast.unparse(value) == "()"
    return value if is_plain else ast.Constant(...)


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _import(name: str, module: ast.Module, path: str) -> str:
    """The statement that imports what a name means in a module."""
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom | ast.Import):
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    renamed = f" as {alias.asname}" if alias.asname else ""
                    start = f"from {node.module} " if isinstance(node, ast.ImportFrom) else ""
                    return f"{start}import {alias.name}{renamed}"
    if name == "Iterator":
        return "from collections.abc import Iterator"
    if name == "Generic":
        return "from typing import Generic"
    return "" if hasattr(builtins, name) else f"from {path} import {name}"


def _formatted(text: str, path: Path) -> str:
    """The text as ruff, which checks the stubs as well, lays it out."""
    for command in (["check", "--quiet", "--select", "I,F401,D209", "--fix"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    for _path in STUBS:
        _path.write_text(stub(_path), "utf-8")
