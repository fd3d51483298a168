"""Reads the documentation: the examples of a page, and what the Python reference names."""

import inspect
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference" / "python.md"
NOT_RUN = "<!-- not run -->"


def program(text: str) -> str:
    """A page's examples as one program, with every line at its place in the page."""
    lines: list[str] = []
    last, inside, runs = "", False, False
    for line in text.splitlines():
        if line.startswith("```"):
            runs = not inside and line == "```python" and last != NOT_RUN
            inside = not inside
            lines.append("")
        else:
            lines.append(line if inside and runs else "")
        last = line.strip() or last
    return "\n".join(lines) + "\n"


def own_docstring(value: Any) -> str:
    """The docstring of a value itself, not an inherited one."""
    return vars(value).get("__doc__") or "" if inspect.isclass(value) else value.__doc__ or ""


def methods(owner: type) -> list[str]:
    """The public methods and properties of a class itself."""
    return [
        name
        for name, value in vars(owner).items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
    ]


def words(text: str) -> set[str]:
    """All words in backticks."""
    quoted = re.findall(r"`([^`\n]+)`", text)
    return {word for one in quoted for word in re.findall(r"\w+", one)}


def mentioned() -> set[str]:
    """All words in backticks on the page of the Python API."""
    return words(REFERENCE.read_text("utf-8"))


def section(title: str, level: int = 2) -> str:
    """A section of that page."""
    marks = "#" * level
    rest = REFERENCE.read_text("utf-8").partition(f"\n{marks} {title}\n")[2]
    return re.split(rf"\n#{{2,{level}}} ", rest)[0]


def words_in(title: str, level: int = 2) -> set[str]:
    """All words in backticks in a section of that page."""
    return words(section(title, level))
