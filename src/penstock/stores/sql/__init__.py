"""Loads a store's SQL: named queries from one file, migrations from numbered ones."""

import re
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_NUMBERED = re.compile(r"^(\d{4})_\w+\.sql$")


def load_queries(package: str) -> dict[str, str]:
    """The queries of `queries.sql`, each under the name in the comment above it."""
    _, *parts = _NAME.split(files(package).joinpath("queries.sql").read_text("utf-8"))
    return dict(zip(parts[::2], (text.strip() for text in parts[1::2]), strict=True))


def load_migrations(package: str) -> list[tuple[int, str]]:
    """The scripts of `migrations/`, by number."""
    numbered = {
        int(match[1]): file.read_text("utf-8")
        for file in files(package).joinpath("migrations").iterdir()
        if (match := _NUMBERED.match(file.name))
    }
    return sorted(numbered.items())
