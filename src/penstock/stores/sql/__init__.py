"""What the SQL stores share: the verbs of a store as functions over a database."""

import re
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def load_queries(package: str, file: str = "queries.sql", *, schema: int = 0) -> dict[str, str]:
    """The queries of a file, each under the name in the comment above it.

    `{schema}` in them stands for the number of the schema that this program knows.
    """
    text = files(package).joinpath(file).read_text("utf-8").replace("{schema}", str(schema))
    _, *parts = _NAME.split(text)
    return dict(zip(parts[::2], (text.strip() for text in parts[1::2]), strict=True))
