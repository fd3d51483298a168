"""Draws boxes and arrows, lanes and bars as SVG, readable in light and in dark."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

COLUMN, ROW = 190, 92
HEIGHT = 46
LETTER = 7.2
"""The width of a letter of 13 pixels, about."""

STYLE = """\
<style>
.card { fill: #ffffff; stroke: #d5dadd; }
.box { fill: #eef4f5; stroke: #0f7a83; stroke-width: 1.3; }
.end { fill: #e9f3ea; stroke: #2e7d4f; stroke-width: 1.3; }
.bad { fill: #fbeceb; stroke: #b3372f; stroke-width: 1.3; }
.note { fill: #f4f4f6; stroke: #8a9299; stroke-dasharray: 4 3; }
.line { fill: none; stroke: #5d6970; stroke-width: 1.3; }
.lane { stroke: #b9c1c6; stroke-dasharray: 3 4; }
.ours { fill: #0f7a83; } .other { fill: #9aa7ad; }
text { font: 13px system-ui, sans-serif; fill: #1c2529; text-anchor: middle; }
.small { font-size: 11px; fill: #55626a; }
.label { font-size: 11px; fill: #3c484e; paint-order: stroke; stroke: #ffffff; stroke-width: 4px; }
.left { text-anchor: start; } .right { text-anchor: end; }
@media (prefers-color-scheme: dark) {
.card { fill: #1b2124; stroke: #384146; }
.box { fill: #20353a; stroke: #4fb5bf; } .end { fill: #1f3528; stroke: #6cc08d; }
.bad { fill: #3c2322; stroke: #e58a83; } .note { fill: #262c30; stroke: #7d878d; }
.line { stroke: #a4b0b6; } .lane { stroke: #4a545a; }
.ours { fill: #4fb5bf; } .other { fill: #66747b; }
text { fill: #e6ecee; } .small { fill: #a9b5bb; }
.label { fill: #c3ccd0; stroke: #1b2124; }
}
</style>
<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" \
orient="auto-start-reverse"><path class="line" d="M1 1 9 5 1 9"/></marker></defs>"""


@dataclass(frozen=True, slots=True)
class Box:
    """A box at a place of a grid; `|` in its text begins a second, smaller line."""

    x: float
    y: float
    text: str
    kind: str = "box"

    @property
    def width(self) -> float:
        """As wide as the longer of its lines."""
        return max(len(line) for line in self.text.split("|")) * LETTER + 26


@dataclass(frozen=True, slots=True)
class Arrow:
    """From one box to another; `bend` moves its middle aside, in pixels."""

    start: str
    end: str
    label: str = ""
    bend: float = 0
    back: bool = False
    """Whether it has a tip at both ends."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Boxes by name, and arrows among them."""

    title: str
    boxes: Mapping[str, Box]
    arrows: Sequence[Arrow]


@dataclass(frozen=True, slots=True)
class Message:
    """A line between two lanes, or a note at one lane if both are the same."""

    start: int
    end: int
    text: str
    kind: str = "note"


@dataclass(frozen=True, slots=True)
class Sequenced:
    """Lanes side by side, and what passes between them, downwards in time."""

    title: str
    lanes: Sequence[str]
    messages: Sequence[Message]


def draw(figure: Graph | Sequenced) -> str:
    """Return the figure as an SVG document."""
    return _graph(figure) if isinstance(figure, Graph) else _sequence(figure)


def document(title: str, width: float, height: float, parts: Iterable[str]) -> str:
    """Wrap drawn parts into a card of this size."""
    inside = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{escape(title)}">\n'
        f"<title>{escape(title)}</title>\n{STYLE}\n"
        f'<rect class="card" x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1:.0f}" '
        f'rx="8"/>\n{inside}\n</svg>\n'
    )


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Return one line of text."""
    marked = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.0f}" y="{y:.0f}"{marked}>{escape(words)}</text>'


def _graph(graph: Graph) -> str:
    left = min(box.x * COLUMN - box.width / 2 for box in graph.boxes.values()) - 24
    right = max(box.x * COLUMN + box.width / 2 for box in graph.boxes.values()) + 24
    top = min(box.y for box in graph.boxes.values()) * ROW - HEIGHT / 2 - 24
    bottom = max(box.y for box in graph.boxes.values()) * ROW + HEIGHT / 2 + 24
    middles = [_middle(graph, arrow) for arrow in graph.arrows]
    top, bottom = min(top, *middles) - 4, max(bottom, *middles) + 4
    placed = {
        name: (box.x * COLUMN - left, box.y * ROW - top, box) for name, box in graph.boxes.items()
    }
    arrows = [_arrow(placed[a.start], placed[a.end], a) for a in graph.arrows]
    lines, labels = [line for line, _ in arrows], [label for _, label in arrows if label]
    boxes = [_box(*place) for place in placed.values()]
    return document(graph.title, right - left, bottom - top, [*lines, *boxes, *labels])


def _middle(graph: Graph, arrow: Arrow) -> float:
    """Return how high or low the middle of an arrow is, with its label."""
    start, end = graph.boxes[arrow.start], graph.boxes[arrow.end]
    aside = arrow.bend / 2 * (1 if end.x > start.x else -1)
    return (start.y + end.y) / 2 * ROW + aside + (16 if aside > 0 else -16)


def _box(x: float, y: float, box: Box) -> str:
    first, _, second = box.text.partition("|")
    shape = (
        f'<rect class="{box.kind}" x="{x - box.width / 2:.0f}" y="{y - HEIGHT / 2:.0f}" '
        f'width="{box.width:.0f}" height="{HEIGHT}" rx="7"/>'
    )
    if not second:
        return f"{shape}{text(x, y + 4, first)}"
    return f"{shape}{text(x, y - 3, first)}{text(x, y + 13, second, 'small')}"


Placed = tuple[float, float, Box]


def _arrow(start: Placed, end: Placed, arrow: Arrow) -> tuple[str, str]:
    (x1, y1, _), (x2, y2, _) = start, end
    length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1)
    # The middle of the curve, moved aside at a right angle.
    mx = (x1 + x2) / 2 - (y2 - y1) / length * arrow.bend
    my = (y1 + y2) / 2 + (x2 - x1) / length * arrow.bend
    ax, ay = _border(start, (mx, my))
    bx, by = _border(end, (mx, my))
    tips = ' marker-start="url(#tip)"' if arrow.back else ""
    path = f"M{ax:.0f} {ay:.0f}Q{mx:.0f} {my:.0f} {bx:.0f} {by:.0f}"
    line = f'<path class="line" d="{path}" marker-end="url(#tip)"{tips}/>'
    if not arrow.label:
        return line, ""
    lx, ly = (ax + 2 * mx + bx) / 4, (ay + 2 * my + by) / 4
    return line, text(lx, ly + 4, arrow.label, "label")


def _border(placed: Placed, towards: tuple[float, float]) -> tuple[float, float]:
    """Return where a line from the middle of a box leaves it."""
    x, y, box = placed
    dx, dy = towards[0] - x, towards[1] - y
    reach = max(abs(dx) / (box.width / 2 + 3), abs(dy) / (HEIGHT / 2 + 3), 0.001)
    return x + dx / reach, y + dy / reach


LANE, STEP = 230, 44


def _sequence(figure: Sequenced) -> str:
    width = LANE * len(figure.lanes)
    height = 84 + STEP * len(figure.messages)
    parts = []
    for n, lane in enumerate(figure.lanes):
        x = LANE * (n + 0.5)
        parts.append(f'<path class="lane" d="M{x:.0f} 60V{height - 14:.0f}"/>')
        parts.append(_box(x, 36, Box(0, 0, lane)))
    for n, message in enumerate(figure.messages):
        y = 92 + STEP * n
        a, b = LANE * (message.start + 0.5), LANE * (message.end + 0.5)
        if message.start == message.end:
            parts.append(_remark(a, y, message))
        else:
            line = f'<path class="line" d="M{a:.0f} {y}H{b:.0f}" marker-end="url(#tip)"/>'
            parts.append(line + text((a + b) / 2, y - 6, message.text, "label"))
    return document(figure.title, width, height, parts)


def _remark(x: float, y: float, message: Message) -> str:
    width = len(message.text) * 6.2 + 18
    return (
        f'<rect class="{message.kind}" x="{x - width / 2:.0f}" y="{y - 15}" width="{width:.0f}" '
        f'height="26" rx="5"/>{text(x, y + 2, message.text, "small")}'
    )


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of a chart."""

    title: str
    value: float
    shown: str
    ours: bool


def draw_bars(title: str, subtitle: str, bars: Sequence[Bar]) -> str:
    """Return a chart of horizontal bars, the longest as wide as there is room."""
    left = max(230, 30 + 6 * max(len(bar.title) for bar in bars))
    width, step = left + 470, 30
    most = max(bar.value for bar in bars) or 1
    parts = [text(16, 26, title, "left"), text(16, 44, subtitle, "small left")]
    for n, bar in enumerate(bars):
        y = 62 + step * n
        length = max((width - left - 110) * bar.value / most, 2)
        kind = "ours" if bar.ours else "other"
        parts.append(text(left - 10, y + 14, bar.title, "small right"))
        parts.append(
            f'<rect class="{kind}" x="{left}" y="{y}" width="{length:.0f}" height="18" rx="3"/>'
        )
        parts.append(text(left + length + 8, y + 14, bar.shown, "small left"))
    return document(title, width, 74 + step * len(bars), parts)
