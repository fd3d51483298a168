"""The tables, and the same as JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.results import Results
from benchmarks.scenarios import Load
from benchmarks.suites import Column, Suite, Verdict

NOISY = 1.5
"""Runs further apart than this are marked."""

COLOURS = {
    Verdict.AIM: "green",
    Verdict.SHORT: "yellow",
    Verdict.MISSED: "bold red",
    Verdict.UNKNOWN: "dim",
}


def show(
    console: Console, suite: Suite, results: Results, machine: Mapping[str, str], load: Load
) -> None:
    """Print what was measured, and what it is worth."""
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()), style="dim")
    tables = (
        _comparison(suite, results, load),
        _details(suite, results, load),
        _bars(suite, results),
    )
    for table in tables:
        if table.row_count and len(table.columns) > 1:
            console.print(table)
    for contender in results.left_out:
        console.print(f"left out: {contender}", style="dim", markup=False)
    for failure in results.failures:
        console.print(f"failed: {failure}", style="red", markup=False)


def _comparison(suite: Suite, results: Results, load: Load) -> Table:
    """All contenders; beside each figure how many times better ours is."""
    columns = [
        c for c in suite.columns if any(results.all(x.name, c.figure) for x in suite.contenders)
    ]
    table = Table(
        title=f"{load.jobs:,} jobs, median of {load.rounds}; "
        f"(x) how many times better {suite.ours} is; ~ runs differ by {NOISY}x or more"
    )
    table.add_column("")
    for column in columns:
        table.add_column(column.title, justify="right")
    for contender in suite.contenders:
        if contender.name in results.runs:
            cells = (_compare(suite.ours, contender.name, column, results) for column in columns)
            table.add_row(contender.title, *cells)
    return table


def _compare(ours: str, name: str, column: Column, results: Results) -> str:
    value, own = results.get(name, column.figure), results.get(ours, column.figure)
    if value is None:
        return "-"
    text = _noise(name, column.figure, results) + column.format.format(value)
    if name == ours or not own or not value:
        return text
    ratio = value / own if column.less_is_better else own / value
    return f"{text} [dim]({ratio:.2g}x)[/]" if ratio < 10 else f"{text} [dim]({ratio:.0f}x)[/]"


def _noise(name: str, figure: str, results: Results) -> str:
    runs = results.all(name, figure)
    return "~" if max(runs) >= NOISY * min(runs) else ""


def _details(suite: Suite, results: Results, load: Load) -> Table:
    """Figures only we have."""
    table = Table(title=f"{suite.ours}; the large store holds {load.backlog:,} jobs")
    table.add_column("")
    table.add_column("median", justify="right")
    for column in suite.details:
        value = results.get(suite.ours, column.figure)
        if value is not None:
            mark = _noise(suite.ours, column.figure, results)
            table.add_row(column.title, mark + column.format.format(value))
    return table


def _bars(suite: Suite, results: Results) -> Table:
    """What is to be reached."""
    table = Table(title="Bars")
    table.add_column("")
    for title in ("floor", "aim", "measured"):
        table.add_column(title, justify="right")
    table.add_column("verdict")
    for bar in suite.bars:
        measured = results.get(suite.ours, bar.figure)
        if measured is None:
            continue
        limits = (bar.floor(results), bar.aim(results), measured)
        verdict = bar.judge(results, suite.ours)
        table.add_row(
            bar.title,
            *("-" if limit is None else bar.format.format(limit) for limit in limits),
            f"[{COLOURS[verdict]}]{verdict.value}[/]",
        )
    return table


def write_json(
    path: Path, suite: Suite, results: Results, machine: Mapping[str, str], load: Load
) -> None:
    """Everything measured, run by run, with medians and verdicts."""
    document = {
        "suite": suite.name,
        "machine": machine,
        "load": asdict(load),
        "figures": {
            name: {
                figure: {"median": results.get(name, figure), "runs": runs}
                for figure, runs in figures.items()
            }
            for name, figures in results.runs.items()
        },
        "bars": [
            {
                "title": bar.title,
                "figure": bar.figure,
                "floor": bar.floor(results),
                "aim": bar.aim(results),
                "measured": results.get(suite.ours, bar.figure),
                "verdict": bar.judge(results, suite.ours).name.lower(),
            }
            for bar in suite.bars
        ],
        "left_out": results.left_out,
        "failures": results.failures,
    }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
