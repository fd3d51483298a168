"""The map of the modules is written from their docstrings.

`python -m tests.docs.test_modules` writes it anew.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "penstock"
PAGE = ROOT / "docs" / "internals" / "modules.md"
HEAD = """\
# Modules

Every module of the package, with the first line of its docstring. This page is generated:
`python -m tests.docs.test_modules` writes it anew, and a test compares it with the code.
[Architecture](architecture.md) explains the layers.
"""


def test_map_of_the_modules_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == "".join(written()), "run python -m tests.docs.test_modules"


def test_every_module_says_what_it_is() -> None:
    silent = [str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if not said(path)]
    assert silent == []


def written() -> Iterator[str]:
    """The page, part by part."""
    yield HEAD
    for folder in [SOURCE, *sorted(path for path in SOURCE.rglob("*") if path.is_dir())]:
        modules = sorted(folder.glob("*.py"))
        if not modules:
            continue
        name = folder.relative_to(SOURCE).as_posix()
        yield f"\n## {'penstock' if folder == SOURCE else name}\n\n"
        if (folder / "__init__.py").exists():
            yield f"{said(folder / '__init__.py')}\n"
        others = [path for path in modules if path.name != "__init__.py"]
        if others:
            yield "\n| module | |\n|---|---|\n"
        for path in others:
            yield f"| `{path.name}` | {said(path).replace('|', chr(92) + '|')} |\n"


def said(module: Path) -> str:
    """The first line of the docstring of a module."""
    docstring = ast.get_docstring(ast.parse(module.read_text("utf-8"))) or ""
    return docstring.split("\n", 1)[0]


if __name__ == "__main__":
    PAGE.write_text("".join(written()), "utf-8")
