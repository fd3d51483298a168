"""Cuts source code by function and class, along the tree that tree-sitter makes of it."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.vectors.chunks import Chunk
from penstock.vectors.languages import CONTAINERS, Language, grammar_of, parse
from penstock.vectors.packing import Lines, count, joined, limits, pack, pieces, trimmed

if TYPE_CHECKING:
    from tree_sitter import Node

LARGEST = 2_000_000
"""Characters; a longer text is data rather than source, and is cut by tokens alone."""
DEEPEST = 12
"""Definitions inside of more than so many others are not looked for."""
VALUES = frozenset({"arrow_function", "function_expression", "generator_function", "class"})
"""What makes a variable of JavaScript the name of a definition."""


class Unit(NamedTuple):
    """Lines from `first` to before `behind` that belong together."""

    first: int
    behind: int
    type: str
    symbol: str


class Definition(NamedTuple):
    """A definition: the node with all that belongs to it, and the one that has its name."""

    whole: "Node"
    node: "Node"
    type: str
    name: str


class CodeChunker:
    """Cuts the source code of one language into its functions and classes.

    A class that is too long for a chunk is cut into its methods, and a function that is too long
    by tokens; small neighbours are joined. Source with errors is cut as far as it is understood.
    """

    def __init__(self, language: Language, size: int = 512) -> None:
        self._language = language
        self._limits = limits(size, 0)
        grammar_of(language)  # says what is missing before there is a text

    def chunk(self, text: str) -> list[Chunk]:
        """The chunks of a text."""
        lines = Lines(text)
        units = [Unit(0, len(lines), "module", "")]
        if len(text) <= LARGEST:
            root = parse(self._language, text).root_node
            units = list(self._units(lines, root, units[0], 0))
        return [
            Chunk(cut, first, last, unit.type, self._language.name, unit.symbol)
            for unit in _joined(lines, units, self._limits.size)
            for cut, first, last in trimmed(lines, self._windows(lines, unit))
        ]

    def _windows(self, lines: Lines, unit: Unit) -> Iterator[tuple[int, int]]:
        parts = list(pieces(lines, unit.first, unit.behind, self._limits.size))
        return pack(parts, self._limits)

    def _units(self, lines: Lines, node: "Node", around: Unit, depth: int) -> Iterator[Unit]:
        """The lines of a node as definitions and what stands between them."""
        done = around.first
        for found in self._definitions(node, depth):
            first = max(done, _first_line(found.whole))
            behind = min(around.behind, found.whole.end_point.row + 1)
            if first >= behind:
                continue  # it shares its lines with the definition before it
            if not lines.slice(done, first).strip():
                first = done  # blank lines are no unit of their own
            if first > done:
                yield around._replace(first=done, behind=first)
            done = behind
            within = around.symbol and around.type in CONTAINERS
            kind = "method" if within and found.type == "function" else found.type
            symbol = ".".join(filter(None, (around.symbol, found.name)))
            yield from self._fitted(lines, found.node, Unit(first, behind, kind, symbol), depth)
        if done < around.behind:
            yield around._replace(first=done)

    def _fitted(self, lines: Lines, node: "Node", unit: Unit, depth: int) -> Iterator[Unit]:
        """A definition as one unit, or as several if it holds others and is too long."""
        if (
            unit.type in CONTAINERS
            and depth < DEEPEST
            and count(lines.slice(unit.first, unit.behind)) > self._limits.size
        ):
            yield from self._units(lines, node, unit, depth + 1)
        else:
            yield unit

    def _definitions(self, node: "Node", depth: int) -> Iterator[Definition]:
        """The definitions directly inside of a node, in the order of the text."""
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


def _joined(lines: Lines, units: Sequence[Unit], size: int) -> Iterator[Unit]:
    """Units, the small ones put together."""
    tokens = [count(lines.slice(unit.first, unit.behind)) for unit in units]
    for group in joined(tokens, size):
        members = units[group.start : group.stop]
        symbols = dict.fromkeys(unit.symbol for unit in members if unit.symbol)
        # What is left of a class beside its method needs no name of its own.
        names = [each for each in symbols if not any(o.startswith(f"{each}.") for o in symbols)]
        kind = next((unit.type for unit in members if unit.symbol in names), "module")
        yield Unit(members[0].first, members[-1].behind, kind, ", ".join(names))


def _first_line(node: "Node") -> int:
    """The first line of a definition with the comments and attributes right above it."""
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
    """The name that a definition gives, empty where it has none."""
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
    """C and C++: int *(name)(int) has its name inside of several declarators."""
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
    """Go: the type that a method belongs to."""
    parameter = node.named_children[0] if node.named_children else None
    kind = parameter.child_by_field_name("type") if parameter else None
    return _text(kind).lstrip("*").partition("[")[0]


def _text(node: "Node | None") -> str:
    """What a node says, on one line and not too long for a name."""
    raw = node.text if node is not None else None
    return " ".join((raw or b"").decode("utf-8", "replace").split())[:200]
