"""What the documentation says of `benchmarks/results.json`: tables, a row, and charts."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from docs.generate.svg import Bar, draw_bars

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results.json"
PEERS = ("penstock", "celery", "rq", "dramatiq", "huey", "procrastinate", "pgqueuer")
"""The columns of the comparison, by the names of the contenders."""

DASH = "\N{EN DASH}"
SPEED = "drain.rate"
ROW = re.compile(r"^\| drain, jobs/s, in one run \|.*$", re.MULTILINE)
CHARTS = {
    "one-by-one.rate": "Single enqueues, jobs per second",
    "bulk-1000.rate": "Enqueues of 1,000 jobs, jobs per second",
    "drain.rate": "Jobs worked off by one process, per second",
    "drain-2.rate": "Jobs worked off by two processes, per second",
    "pickup.p50": "From enqueue to start in an idle worker, ms (less is better)",
    "publish.rate": "Events published over HTTP, one per request, per second",
    "publish.job_cpu": "Processor time of an event over HTTP, µs (less is better)",
    "publish-100.rate": "Events published over HTTP in batches of 100, per second",
}
"""The figures that are drawn where a run has them for more than one contender."""

Run = Mapping[str, Any]


def load() -> Mapping[str, Run]:
    """Return the stored runs by their commands."""
    runs: Mapping[str, Run] = json.loads(RESULTS.read_text("utf-8"))["runs"]
    return runs


def with_speed(page: str, runs: Mapping[str, Run]) -> str:
    """Return a page with the last row of the comparison as the runs have it."""
    cells = " | ".join(speeds(runs))
    return ROW.sub(f"| drain, jobs/s, in one run | {cells} |", page)


def speeds(runs: Mapping[str, Run]) -> list[str]:
    """Return the rates of the one run with most of the peers, dashes for the others."""

    def measured(run: Run) -> dict[str, float]:
        found = {name: run["figures"].get(name, {}).get(SPEED) for name in PEERS}
        return {name: figure["median"] for name, figure in found.items() if figure}

    # A run of ours alone compares nothing.
    best = max((measured(run) for run in runs.values()), key=len, default={})
    if len(best) < 2 or "penstock" not in best:
        best = {}
    return [f"{best[name]:,.0f}" if name in best else DASH for name in PEERS]


def sizes(runs: Mapping[str, Run]) -> str:
    """Return the table of how much a job takes on disk."""
    command = "python -m benchmarks.sizes"
    run = runs[command]
    figures = {name: one["median"] for name, one in run["figures"]["penstock"].items()}
    waiting, done = figures["sqlite.pending_job_bytes"], figures["sqlite.done_job_bytes"]
    load = run["load"]
    return f"""
Measured with `{command}` on SQLite {run["versions"]["sqlite"]}: {load["jobs"]:,} jobs with
arguments of {load["payload_bytes"]} bytes, log included.

| on SQLite | bytes | a million jobs |
|---|---:|---:|
| an empty store | {figures["sqlite.empty_bytes"]:,.0f} | |
| a waiting job | {waiting:,.0f} | {waiting:,.0f} MB |
| a finished job | {done:,.0f} | {done:,.0f} MB |
"""


def imports(runs: Mapping[str, Run]) -> str:
    """Return the table of how long imports take."""
    command = "python -m benchmarks.imports"
    run = runs[command]
    figures = run["figures"]["penstock"]
    rows = "".join(
        f"| `{code}` | {min(figures[f'{name}.milliseconds']['runs']):,.0f} ms | {times} |\n"
        for name, code in IMPORTS.items()
        for times in [_times(figures, name)]
    )
    return f"""
Processor time, the least of {run["load"]["rounds"]} starts in turn ({_versions(run)},
{run["machine"]["cores"]} cores, load {run["machine"]["load"]}):

| | processor time | against an empty start |
|---|---:|---:|
{rows}
```console
$ {command}
```
"""


IMPORTS = {
    "empty": "python -c pass",
    "penstock": "import penstock",
    "enqueuer": "from penstock import Penstock",
    "cli": "import penstock.cli.main",
    "command": "penstock jobs --help",
}


def _times(figures: Mapping[str, Any], name: str) -> str:
    found = figures.get(f"{name}.multiple")
    return f"{found['median']:.1f} times" if found else ""


def charts(runs: Mapping[str, Run]) -> Iterator[tuple[str, str, str]]:
    """Yield the charts: the name of a file, the drawing, and what stands around it."""
    for number, (command, run) in enumerate(sorted(runs.items())):
        for figure, title in CHARTS.items():
            names = [name for name in run["figures"] if figure in run["figures"][name]]
            if len(names) < 2:
                continue
            bars = [_bar(run, name, figure) for name in names]
            where = (
                f"{_versions(run)}, {run['machine']['cores']} cores, load {run['machine']['load']}"
            )
            name = f"{run['suite']}-{number}-{figure.replace('.', '-')}.svg"
            yield name, draw_bars(title, where, bars), command


def _bar(run: Run, name: str, figure: str) -> Bar:
    value = run["figures"][name][figure]["median"]
    shown = f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"
    return Bar(run["titles"][name], value, shown, name == run["ours"])


def _versions(run: Run) -> str:
    return ", ".join(f"{name} {version}" for name, version in run["versions"].items())


def chart_section(runs: Mapping[str, Run]) -> str:
    """Return the section with all charts, by the commands that made them."""
    parts: list[str] = []
    last = ""
    for name, drawing, command in charts(runs):
        if command != last:
            at, load = runs[command]["at"][:10], runs[command]["load"]
            parts.append(
                f"\nMedians of {load['rounds']} rounds with {load['jobs']:,} jobs, {at}:\n\n"
                f"```console\n$ {command}\n```\n"
            )
            last = command
        title = re.findall(r"<title>(.*)</title>", drawing)[0]
        parts.append(f"\n![{title}](images/charts/{name})\n")
    return "".join(parts)
