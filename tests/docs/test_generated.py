"""What is generated is up to date; `python -m docs.generate` writes it anew."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from benchmarks.contenders import Contender
from benchmarks.report import keep
from benchmarks.results import Circumstances, Results
from benchmarks.scenarios import Load
from benchmarks.suites import NAMES, Bar, Column, Suite, at
from docs.generate import http
from docs.generate.__main__ import FOLDERS, outputs, with_section
from docs.generate.diagrams import DIAGRAMS, EVENTS, LAYERS, LIFE
from docs.generate.results import DASH, SUITES, charts, section, speeds
from docs.generate.svg import Box, Graph
from penstock.apps.events.views import STATUSES
from penstock.cli.main import cli
from penstock.core.lifecycle import allowed_moves
from tests.docs.support import ROOT

EXPECTED = outputs()


@pytest.mark.parametrize("path", [str(path.relative_to(ROOT)) for path in EXPECTED])
def test_file_is_up_to_date(path: str) -> None:
    expected = EXPECTED[ROOT / path]
    assert (ROOT / path).read_text("utf-8") == expected, "run python -m docs.generate"


def test_no_generated_picture_is_left_behind() -> None:
    assert {path for folder in FOLDERS for path in folder.glob("*")} <= EXPECTED.keys()


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


def test_life_of_an_event_is_that_of_its_job() -> None:
    states = {name: box.text.partition("|")[0] for name, box in EVENTS.boxes.items()}
    assert states.pop("publish")
    assert states == {str(state): status for state, status in STATUSES.items()}
    drawn = {(arrow.start, arrow.end) for arrow in EVENTS.arrows if arrow.start != "publish"}
    assert drawn == {(arrow.start, arrow.end) for arrow in LIFE.arrows if arrow.start != "enqueue"}


GRAPHS = {name: figure for name, figure in DIAGRAMS.items() if isinstance(figure, Graph)}
ANSWERS = {
    name: {status for status in operation["responses"] if status < "3"}
    for name, operation, _ in http.routes()
}


def routes_in(box: Box) -> list[str]:
    """The routes that a box names, by method and path; `…` stands for the beginning of a path."""
    named = re.findall(r"\b(GET|POST|PUT|PATCH|DELETE) ([/…][^\s|]*)", box.text)
    return [f"{method} {path}" for method, path in named]


def answers_of(named: str) -> list[set[str]]:
    """The statuses of success of the routes with this name."""
    method, _, end = named.partition("…")
    return [
        statuses
        for route, statuses in ANSWERS.items()
        if route == named or ("…" in named and route.startswith(method) and route.endswith(end))
    ]


@pytest.mark.parametrize("name", GRAPHS)
def test_routes_and_statuses_in_a_diagram_are_those_of_the_server(name: str) -> None:
    graph = GRAPHS[name]
    for box in graph.boxes.values():
        for route in routes_in(box):
            assert len(answers_of(route)) == 1, route
    for arrow in graph.arrows:
        if statuses := re.findall(r"\b\d{3}\b", arrow.label):
            [route] = routes_in(graph.boxes[arrow.start])
            assert answers_of(route) == [set(statuses)], route


@pytest.mark.parametrize("name", ["events", "notebooks", "indexing", "entries", "ingest"])
def test_diagram_of_an_application_begins_with_a_route(name: str) -> None:
    assert any(routes_in(box) for box in GRAPHS[name].boxes.values())


@pytest.mark.parametrize("name", GRAPHS)
def test_commands_in_a_diagram_are_there(name: str) -> None:
    words = [*(box.text for box in GRAPHS[name].boxes.values())]
    words += [arrow.label for arrow in GRAPHS[name].arrows]
    named = {one for text in words for one in re.findall(r"\bpenstock ([a-z]+)", text)}
    assert named <= cli.commands.keys()


def test_layers_are_those_that_imports_are_held_to() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    [layers] = [
        contract["layers"]
        for contract in project["tool"]["importlinter"]["contracts"]
        if contract["name"] == "Layers import downwards only"
    ]
    held = [set(re.findall(r"penstock\.(\w+)", layer)) for layer in layers]
    rows: dict[float, set[str]] = {}
    for box in LAYERS.boxes.values():
        if box.kind != "note":
            row = rows.setdefault(box.y, set())
            row.update(box.text.partition("|")[0].split(" · "))
    assert [rows[y] for y in sorted(rows)] == held


def test_speed_comes_from_one_run_with_several_contenders() -> None:
    def run(**rates: float) -> dict[str, object]:
        return {"figures": {n: {"drain.rate": {"median": r}} for n, r in rates.items()}}

    alone, pair = run(penstock=9_000.0), run(penstock=10_000.0, huey=2_000.0)
    without = run(huey=1.0, procrastinate=2.0)
    assert speeds({"a": alone}) == [DASH] * 7
    assert speeds({"a": without}) == [DASH] * 7
    assert speeds({"a": alone, "b": pair})[:5] == ["10,000", DASH, DASH, DASH, "2,000"]


def test_speed_is_given_for_both_databases() -> None:
    rates = {"penstock": 10_000.0, "penstock-postgres": 8_000.0, "rq": 500.0}
    run = {"figures": {name: {"drain.rate": {"median": rate}} for name, rate in rates.items()}}
    assert speeds({"a": run})[:3] == ["10,000; PostgreSQL: 8,000", DASH, "500"]


def test_section_is_replaced_between_its_marks() -> None:
    begin, end = "<!-- x: written by python -m docs.generate -->\n", "<!-- end of x -->"
    page = f"before\n{begin}old\n{end}\nafter\n"
    assert with_section(page, "x", "\nnew\n\n") == f"before\n{begin}\nnew\n\n{end}\nafter\n"
    with pytest.raises(ValueError, match="no marks"):
        with_section("nothing", "x", "new")


def kept_runs(path: Path, command: str) -> dict[str, Any]:
    """What a suite of two contenders leaves in a file of results."""
    suite = Suite(
        name="http",
        ours="penstock",
        contenders=(Contender("penstock", "penstock serve", ""), Contender("rq", "RQ", "")),
        scenarios=(),
        columns=(Column("publish /s", "publish.rate"),),
        details=(Column("polls, MB", "polls.memory", "{:.1f}"),),
        bars=(Bar("publish (2x)", "publish.rate", at(5_000), at(20_000)),),
    )
    results = Results(left_out=["Celery: redis-server is not installed"])
    for rate in (9_000.0, 10_000.0, 11_000.0):
        results.add("penstock", "publish", {"rate": rate, "job_cpu": 120.0})
        results.add("rq", "publish", {"rate": rate / 10})
    results.add("penstock", "polls", {"memory": 35.26})
    machine = {"processor": "Z80", "cores": "2", "memory": "4 GB", "load": "0.1"}
    versions = {"penstock": "0.2.0", "commit": "abc1234", "python": "3.12.1"}
    circumstances = Circumstances(
        command, "2026-11-18T10:00:00+00:00", {**machine, "file system": "ext4"}, versions
    )
    keep(path, suite, results, circumstances, Load())
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))["runs"]
    return found


def test_a_run_is_shown_with_its_circumstances_and_figures(tmp_path: Path) -> None:
    shown = section("http", kept_runs(tmp_path / "results.json", "./dev bench http"))
    for expected in (
        "$ ./dev bench http\n",
        "Medians of 3 rounds",
        "penstock 0.2.0, commit abc1234, python 3.12.1; Z80, 2 cores, 4 GB, ext4, load 0.1",
        "Left out: Celery: redis-server is not installed.",
        "| penstock serve | 10,000 |\n| RQ | 1,000 |",
        f"| penstock serve | 120 / {DASH} / {DASH} |",
        "| polls, MB | 35.3 |",
        "| publish (2x) | 10,000/s | 5,000/s | 20,000/s | short of the aim |",
        "(images/charts/http-0-publish-rate.svg)",
    ):
        assert expected in shown


def test_a_run_beside_an_earlier_tree_says_how_to_get_that_tree(tmp_path: Path) -> None:
    command = "BENCH_BEFORE=../penstock-abc1234 ./dev bench http"
    shown = section("http", kept_runs(tmp_path / "results.json", command))
    assert f"$ git worktree add ../penstock-abc1234 abc1234\n$ {command}\n" in shown


def test_a_suite_without_a_run_says_how_to_measure_it() -> None:
    assert "`./dev bench soak`" in section("soak", {})


def test_every_suite_has_a_place_in_the_documentation() -> None:
    assert {*SUITES, "sizes"} == NAMES.keys()


def test_chart_says_where_it_was_measured(tmp_path: Path) -> None:
    runs = kept_runs(tmp_path / "results.json", "./dev bench http")
    drawn = {name: drawing for name, drawing, _ in charts(runs)}
    assert drawn.keys() == {"http-0-publish-rate.svg"}
    assert "load 0.1" in drawn["http-0-publish-rate.svg"]
    assert "penstock 0.2.0" in drawn["http-0-publish-rate.svg"]
