"""Prometheus' text format: families of samples, with their help and their type.

Written by hand because it is this small; a library would bring a registry of its own beside the
store, which has the numbers already.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, object]


class Family:
    """All samples of one metric."""

    def __init__(
        self, name: str, kind: Literal["gauge", "counter", "histogram", "summary"], text: str
    ) -> None:
        self.name = name
        self._lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]

    def add(self, value: float, labels: Labels | None = None, suffix: str = "") -> None:
        """Add one sample."""
        self._lines.append(f"{self.name}{suffix}{_labels(labels or {})} {_number(value)}")

    def add_histogram(
        self, bounds: Sequence[float], buckets: Sequence[int], total: float, labels: Labels
    ) -> None:
        """Add the samples of one histogram; `buckets` has one more than `bounds`."""
        below = 0
        # Most lines are of histograms: what they have in common is written once.
        start = f"{self.name}_bucket{_labels(labels)[:-1] or '{'}{',' if labels else ''}le="
        for bound, n in zip((*bounds, float("inf")), buckets, strict=True):
            below += n
            self._lines.append(f'{start}"{_number(bound)}"}} {below}')
        self.add(total, labels, "_sum")
        self.add(below, labels, "_count")

    def __len__(self) -> int:
        """How many lines it has."""
        return len(self._lines)

    def __str__(self) -> str:
        return "\n".join(self._lines)


def render(families: Iterable[Family]) -> bytes:
    """The text of these families."""
    return ("\n".join(map(str, families)) + "\n").encode()


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: object) -> str:
    return str(value).replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if float(value).is_integer() else repr(float(value))
