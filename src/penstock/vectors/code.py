"""Split source code by function and class, using the syntax tree of tree-sitter."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.vectors.chunks import (
    Chunk,
    Lines,
    check_limits,
    count_tokens,
    merge_small,
    pack,
    split_lines,
    trim,
)
from penstock.vectors.languages import CONTAINERS, Language, grammar_of, parse

if TYPE_CHECKING:
    from tree_sitter import Node

LARGEST = 2_000_000
"""Characters; a longer text is data rather than source code and is split by tokens only."""
DEEPEST = 12
"""Definitions nested deeper than this are not searched for."""
VALUES = frozenset({"arrow_function", "function_expression", "generator_function", "class"})
"""Values that make a JavaScript variable the name of a definition."""


class Unit(NamedTuple):
    """Lines from `first` up to but excluding `end` that belong together."""

    first: int
    end: int
    type: str
    symbol: str


class Definition(NamedTuple):
    """A definition: its outermost node, such as a decorated one, and the node with its name."""

    whole: "Node"
    node: "Node"
    type: str
    name: str


class CodeChunker:
    """Splits the source code of one language into functions and classes.

    A class that is too long for a chunk is split into its methods, a function that is too long is
    split by tokens, and small neighbours are merged. Of invalid code, the parts that can be parsed
    are split by definition.
    """

    def __init__(self, language: Language, size: int = 512) -> None:
        self._language = language
        self._limits = check_limits(size, 0)
        grammar_of(language)  # fail early if a package is missing

    def chunk(self, text: str) -> list[Chunk]:
        """Return the chunks of a text."""
        lines = Lines(text)
        units = [Unit(0, len(lines), "module", "")]
        if len(text) <= LARGEST:
            root = parse(self._language, text).root_node
            units = list(self._units(lines, root, units[0], 0))
        return [
            Chunk(content, first, last, unit.type, self._language.name, unit.symbol)
            for unit in _merged(lines, units, self._limits.size)
            for content, first, last in trim(lines, self._windows(lines, unit))
        ]

    def _windows(self, lines: Lines, unit: Unit) -> Iterator[tuple[int, int]]:
        pieces = list(split_lines(lines, unit.first, unit.end, self._limits.size))
        return pack(pieces, self._limits)

    def _units(self, lines: Lines, node: "Node", around: Unit, depth: int) -> Iterator[Unit]:
        """Yield the definitions in a node, and the lines between them."""
        done = around.first
        for found in self._definitions(node, depth):
            first = max(done, _first_line(found.whole))
            end = min(around.end, found.whole.end_point.row + 1)
            if first >= end:
                continue  # it is on the same lines as the definition before it
            if not lines.slice(done, first).strip():
                first = done  # blank lines belong to the unit that follows
            if first > done:
                yield around._replace(first=done, end=first)
            done = end
            within = around.symbol and around.type in CONTAINERS
            kind = "method" if within and found.type == "function" else found.type
            symbol = ".".join(filter(None, (around.symbol, found.name)))
            yield from self._fitted(lines, found.node, Unit(first, end, kind, symbol), depth)
        if done < around.end:
            yield around._replace(first=done)

    def _fitted(self, lines: Lines, node: "Node", unit: Unit, depth: int) -> Iterator[Unit]:
        """Yield a definition as one unit, or as several if it is too long and contains others."""
        if (
            unit.type in CONTAINERS
            and depth < DEEPEST
            and count_tokens(lines.slice(unit.first, unit.end)) > self._limits.size
        ):
            yield from self._units(lines, node, unit, depth + 1)
        else:
            yield unit

    def _definitions(self, node: "Node", depth: int) -> Iterator[Definition]:
        """Yield the definitions directly inside a node, in the order of the text."""
        for child in node.named_children:
            kind = child.type
            if kind in self._language.definitions:
                name = name_of(child)
                if name or kind not in {"lexical_declaration", "variable_declaration"}:
                    yield Definition(child, child, self._language.definitions[kind], name)
            elif kind in self._language.wraps:
                for found in list(self._definitions(child, depth + 1))[:1]:
                    yield found._replace(whole=child)
            elif depth < DEEPEST and (kind in self._language.through or kind == "ERROR"):
                yield from self._definitions(child, depth + 1)


def _merged(lines: Lines, units: Sequence[Unit], size: int) -> Iterator[Unit]:
    """Merge small units."""
    tokens = [count_tokens(lines.slice(unit.first, unit.end)) for unit in units]
    for group in merge_small(tokens, size):
        members = units[group.start : group.stop]
        symbols = dict.fromkeys(unit.symbol for unit in members if unit.symbol)
        # In a group with one of its methods, the rest of a class needs no name of its own.
        names = [each for each in symbols if not any(o.startswith(f"{each}.") for o in symbols)]
        kind = next((unit.type for unit in members if unit.symbol in names), "module")
        yield Unit(members[0].first, members[-1].end, kind, ", ".join(names))


def _first_line(node: "Node") -> int:
    """Return the first line of a definition, including comments and attributes above it."""
    first, before = node.start_point.row, node.prev_named_sibling
    while (
        before is not None
        and before.end_point.row >= first - 1
        and ("comment" in before.type or before.type in {"attribute_item", "decorator"})
    ):
        first = min(first, before.start_point.row)
        before = before.prev_named_sibling
    return first


def name_of(node: "Node") -> str:
    """Return the name of a definition, empty if it has none."""
    if node.type in {"lexical_declaration", "variable_declaration"}:
        return _name_of_variable(node)
    if receiver := node.child_by_field_name("receiver"):
        return f"{_receiver(receiver)}.{_text(node.child_by_field_name('name'))}"
    if declarator := node.child_by_field_name("declarator"):
        return _text(_innermost(declarator))
    if node.type == "type_declaration":  # Go: type Name struct {…}
        return ", ".join(_text(each.child_by_field_name("name")) for each in node.named_children)
    return _text(node.child_by_field_name("name") or node.child_by_field_name("type"))


def _innermost(declarator: "Node") -> "Node":
    """Return the declarator with the name: C and C++ nest them, as in int *(name)(int)."""
    for _ in range(DEEPEST):
        inner = declarator.child_by_field_name("declarator")
        if inner is None and declarator.type == "reference_declarator":
            inner = declarator.named_children[-1]
        if inner is None:
            break
        declarator = inner
    return declarator


def _name_of_variable(node: "Node") -> str:
    for child in node.named_children:
        value = child.child_by_field_name("value")
        if value is not None and value.type in VALUES:
            return _text(child.child_by_field_name("name"))
    return ""


def _receiver(node: "Node") -> str:
    """Return the type that a Go method belongs to."""
    parameter = node.named_children[0] if node.named_children else None
    kind = parameter.child_by_field_name("type") if parameter else None
    return _text(kind).lstrip("*").partition("[")[0]


def _text(node: "Node | None") -> str:
    """Return the text of a node on one line, truncated to the length of a name."""
    raw = node.text if node is not None else None
    return " ".join((raw or b"").decode("utf-8", "replace").split())[:200]
