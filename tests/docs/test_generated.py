"""What is generated is up to date; `python -m docs.generate` writes it anew."""

import re
from xml.etree import ElementTree as ET

import pytest

from docs.generate.__main__ import FOLDERS, outputs, with_section
from docs.generate.diagrams import DIAGRAMS, LIFE
from docs.generate.results import DASH, speeds
from docs.generate.svg import Graph
from penstock.core.lifecycle import allowed_moves
from tests.docs.support import ROOT

EXPECTED = outputs()


@pytest.mark.parametrize("path", [str(path.relative_to(ROOT)) for path in EXPECTED])
def test_file_is_up_to_date(path: str) -> None:
    expected = EXPECTED[ROOT / path]
    assert (ROOT / path).read_text("utf-8") == expected, "run python -m docs.generate"


def test_no_generated_picture_is_left_behind() -> None:
    assert {path for folder in FOLDERS for path in folder.iterdir()} <= EXPECTED.keys()


@pytest.mark.parametrize("name", DIAGRAMS)
def test_diagram_is_a_picture_with_a_title_that_a_page_shows(name: str) -> None:
    drawing = EXPECTED[FOLDERS[0] / f"{name}.svg"]
    assert ET.fromstring(drawing).tag.endswith("svg")  # noqa: S314 - drawn here
    assert DIAGRAMS[name].title in drawing
    pages = [page.read_text("utf-8") for page in ROOT.glob("docs/**/*.md")]
    assert any(f"diagrams/{name}.svg)" in page for page in pages)


@pytest.mark.parametrize("name", [n for n, d in DIAGRAMS.items() if isinstance(d, Graph)])
def test_arrows_lead_to_boxes(name: str) -> None:
    graph = DIAGRAMS[name]
    assert isinstance(graph, Graph)
    assert {end for arrow in graph.arrows for end in (arrow.start, arrow.end)} <= set(graph.boxes)


def test_life_of_a_job_has_the_moves_that_the_code_allows() -> None:
    moves = {
        (str(before), str(after)) for before, _, after in allowed_moves() if before is not after
    }
    drawn = {(arrow.start, arrow.end) for arrow in LIFE.arrows if arrow.start != "enqueue"}
    assert drawn == moves


def test_labels_of_that_diagram_are_events_of_the_code() -> None:
    for arrow in LIFE.arrows:
        for event in filter(None, arrow.label.split(", ")):
            pairs = {(str(b), str(e), str(a)) for b, e, a in allowed_moves()}
            assert (arrow.start, event, arrow.end) in pairs


def test_speed_comes_from_one_run_with_several_contenders() -> None:
    def run(**rates: float) -> dict[str, object]:
        return {"figures": {n: {"drain.rate": {"median": r}} for n, r in rates.items()}}

    alone, pair = run(penstock=9_000.0), run(penstock=10_000.0, huey=2_000.0)
    without = run(huey=1.0, procrastinate=2.0)
    assert speeds({"a": alone}) == [DASH] * 7
    assert speeds({"a": without}) == [DASH] * 7
    assert speeds({"a": alone, "b": pair})[:5] == ["10,000", DASH, DASH, DASH, "2,000"]


def test_section_is_replaced_between_its_marks() -> None:
    begin, end = "<!-- x: written by python -m docs.generate -->\n", "<!-- end of x -->"
    page = f"before\n{begin}old\n{end}\nafter\n"
    assert with_section(page, "x", "\nnew\n\n") == f"before\n{begin}\nnew\n\n{end}\nafter\n"
    with pytest.raises(ValueError, match="no marks"):
        with_section("nothing", "x", "new")


def test_figures_of_charts_are_those_of_the_results() -> None:
    charts = [path for path in EXPECTED if path.parent == FOLDERS[1]]
    assert charts
    for path in charts:
        assert re.search(r"load \d", EXPECTED[path]), "a chart says where it was measured"
