"""Hiding secrets: fields of arguments and results are shown without their values, by name."""

import re
from collections.abc import Collection
from typing import Any

import msgspec

HIDDEN = "•••"


class Secrets:
    """Hides the values of fields with these names, at any depth, whatever their case."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(name.lower() for name in names)
        words = "|".join(map(re.escape, sorted(self._names)))
        # Most jobs have none: a look at the text is cheaper than to decode it. An escape may
        # spell a name in another way.
        self._hint = re.compile(rf'"(?:{words})"|\\u', re.IGNORECASE) if words else None

    def hide(self, text: str) -> str:
        """JSON text without the values of those fields."""
        if self._hint is None or not self._hint.search(text):
            return text
        found = msgspec.json.decode(text)
        hidden = self._hidden(found)
        return text if hidden == found else msgspec.json.encode(hidden).decode()

    def _hidden(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                name: HIDDEN if name.lower() in self._names else self._hidden(one)
                for name, one in value.items()
            }
        if isinstance(value, list):
            return [self._hidden(one) for one in value]
        return value
