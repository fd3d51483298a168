"""The tables, and the file that keeps the same as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.results import Circumstances, Results
from benchmarks.scenarios import USED, Load
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
    console: Console, suite: Suite, results: Results, circumstances: Circumstances, load: Load
) -> None:
    """Print what was measured, and what it is worth."""
    known = {**circumstances.versions, **circumstances.machine}
    console.print(", ".join(f"{name} {value}" for name, value in known.items()), style="dim")
    tables = (
        _comparison(suite, results, load),
        _used(suite, results),
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


def _used(suite: Suite, results: Results) -> Table:
    """What a job takes: processor time, bytes written, memory."""
    table = Table(title=", ".join(USED.values()))
    table.add_column("")
    measured = [
        scenario.name
        for scenario in suite.scenarios
        if any(f"{scenario.name}.job_cpu" in figures for figures in results.runs.values())
    ]
    for name in measured:
        table.add_column(name, justify="right")
    for contender in suite.contenders:
        if contender.name in results.runs and measured:
            table.add_row(
                contender.title,
                *(_use(results, contender.name, scenario) for scenario in measured),
            )
    return table


def _use(results: Results, contender: str, scenario: str) -> str:
    found = [results.get(contender, f"{scenario}.{figure}") for figure in USED]
    return " / ".join("-" if value is None else f"{value:,.0f}" for value in found)


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


SCHEMA = 2
"""Raised when the meaning of a field changes."""


def keep(
    path: Path, suite: Suite, results: Results, circumstances: Circumstances, load: Load
) -> None:
    """Keep everything measured in a file, run by run, with medians and verdicts.

    The file holds the newest run of each command, of all suites alike; the charts of the
    documentation are drawn from it.
    """
    runs: dict[str, Any] = {}
    if path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept.get("schema") != SCHEMA:
            raise ValueError(f"{path} has another schema than {SCHEMA}; choose another file")
        runs = kept["runs"]
    runs[circumstances.command] = _run(suite, results, circumstances, load)
    document = {"schema": SCHEMA, "runs": dict(sorted(runs.items()))}
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _run(
    suite: Suite, results: Results, circumstances: Circumstances, load: Load
) -> dict[str, Any]:
    return {
        "suite": suite.name,
        "at": circumstances.at,
        "machine": dict(circumstances.machine),
        "versions": dict(circumstances.versions),
        "load": asdict(load),
        "ours": suite.ours,
        "titles": {c.name: c.title for c in suite.contenders if c.name in results.runs},
        "columns": _described(suite.columns),
        "details": _described(suite.details),
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
                "format": bar.format,
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


def _described(columns: Sequence[Column]) -> list[dict[str, str]]:
    """Return how the figures are to be shown."""
    return [{"title": c.title, "figure": c.figure, "format": c.format} for c in columns]
