"""What the documentation says of `benchmarks/results.json`: tables, a row, and charts."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from docs.generate.svg import Bar, draw_bars

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results.json"
PEERS = ("penstock", "celery", "rq", "dramatiq", "huey", "procrastinate", "pgqueuer")
"""The columns of the comparison, by the names of the contenders."""

SUITES = (
    "embedded",
    "postgres",
    "peers",
    "http",
    "lists",
    "names",
    "django",
    "django-postgres",
    "indexing",
    "entries",
    "ingest",
    "notebooks",
    "imports",
    "soak",
)
"""Those that docs/benchmarks.md has a section for."""

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

USED = ("job_cpu", "job_bytes", "peak")
VERDICTS = {
    "aim": "aim reached",
    "short": "short of the aim",
    "missed": "floor missed",
    "unknown": "not measured",
}

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
        found = {
            name: run["figures"].get(name, {}).get(SPEED) for name in (*PEERS, "penstock-postgres")
        }
        return {name: figure["median"] for name, figure in found.items() if figure}

    def peers(rates: Mapping[str, float]) -> int:
        return len(rates.keys() & set(PEERS))

    # A run of ours alone compares nothing.
    best = max((measured(run) for run in runs.values()), key=peers, default={})
    if peers(best) < 2 or "penstock" not in best:
        best = {}
    cells = {name: f"{rate:,.0f}" for name, rate in best.items()}
    if "penstock-postgres" in cells:
        cells["penstock"] += f"; PostgreSQL: {cells['penstock-postgres']}"
    return [cells.get(name, DASH) for name in PEERS]


def sizes(runs: Mapping[str, Run]) -> str:
    """Return the table of how much a job takes on disk."""
    found = [(command, run) for command, run in runs.items() if run["suite"] == "sizes"]
    if not found:
        return _nothing("sizes")
    command, run = max(found, key=lambda one: str(one[1]["at"]))
    figures = {name: one["median"] for name, one in run["figures"]["penstock"].items()}
    waiting, done = figures["sizes.waiting"], figures["sizes.done"]
    return f"""
Measured with `{command}` on SQLite {run["versions"]["sqlite"]}: {run["load"]["jobs"]:,} jobs with
arguments of 200 bytes, log included (Penstock {run["versions"]["penstock"]}).

| on SQLite | bytes | a million jobs |
|---|---:|---:|
| an empty store | {figures["sizes.empty"]:,.0f} | |
| a waiting job | {waiting:,.0f} | {waiting:,.0f} MB |
| a finished job | {done:,.0f} | {done:,.0f} MB |
"""


def charts(runs: Mapping[str, Run]) -> Iterator[tuple[str, str, str]]:
    """Yield the charts: the name of a file, the drawing, and the command of its run."""
    for suite in SUITES:
        for number, (command, run) in enumerate(_of(suite, runs)):
            for figure, title in CHARTS.items():
                names = [name for name in run["figures"] if figure in run["figures"][name]]
                if len(names) < 2:
                    continue
                bars = [_bar(run, name, figure) for name in names]
                name = f"{suite}-{number}-{figure.replace('.', '-')}.svg"
                yield name, draw_bars(title, _short(run), bars), command


def _bar(run: Run, name: str, figure: str) -> Bar:
    value = run["figures"][name][figure]["median"]
    shown = f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"
    return Bar(run["titles"][name], value, shown, run["titles"][name].startswith("penstock"))


def section(suite: str, runs: Mapping[str, Run]) -> str:
    """Return what the stored runs of a suite found: each with its command, tables and charts."""
    found = _of(suite, runs)
    if not found:
        return _nothing(suite)
    drawn = [(name, drawing, command) for name, drawing, command in charts(runs)]
    return "\n".join(
        part
        for command, run in found
        for part in (
            _circumstances(command, run),
            _compared(run),
            _used(run),
            _details(run),
            _bars(run),
            *(
                f"![{re.findall(r'<title>(.*)</title>', drawing)[0]}](images/charts/{name})\n"
                for name, drawing, by in drawn
                if by == command
            ),
        )
        if part
    )


def _of(suite: str, runs: Mapping[str, Run]) -> list[tuple[str, Run]]:
    return sorted((command, run) for command, run in runs.items() if run["suite"] == suite)


def _nothing(suite: str) -> str:
    return f"\nNo run is stored; `./dev bench {suite}` measures it.\n"


def _circumstances(command: str, run: Run) -> str:
    """Say how a run was made, and how to make it again."""
    first = ""
    if earlier := re.match(r"BENCH_BEFORE=(\.\./penstock-([0-9a-f]+))", command):
        first = f"$ git worktree add {earlier[1]} {earlier[2]}\n"
    load, where = run["load"], run["machine"]
    rounds = "One round" if load["rounds"] == 1 else f"Medians of {load['rounds']} rounds"
    left_out = "".join(f" Left out: {one}." for one in run["left_out"])
    return (
        f"\n```console\n{first}$ {command}\n```\n\n"
        f"{rounds}, {load['jobs']:,} jobs where a scenario does not say "
        f"otherwise; {run['at'][:10]}, {_named(run['versions'])}; {where['processor']}, "
        f"{where['cores']} cores, {where['memory']}, {where['file system']}, "
        f"load {where['load']} when it began.{left_out}\n"
    )


def _short(run: Run) -> str:
    chosen = {name: run["versions"][name] for name in ("penstock", "python")}
    return f"{_named(chosen)}, {run['machine']['cores']} cores, load {run['machine']['load']}"


def _named(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _compared(run: Run) -> str:
    """Return the table of all contenders."""
    columns = [
        column
        for column in run["columns"]
        if any(column["figure"] in figures for figures in run["figures"].values())
    ]
    if not columns:
        return ""
    rows = [
        [title, *(_value(run, name, one["figure"], one["format"]) for one in columns)]
        for name, title in run["titles"].items()
    ]
    return _table(["", *(column["title"] for column in columns)], rows)


def _used(run: Run) -> str:
    """Return the table of what a job takes: processor time, bytes written, memory."""
    scenarios = dict.fromkeys(
        figure.removesuffix(".job_cpu")
        for figures in run["figures"].values()
        for figure in figures
        if figure.endswith(".job_cpu")
    )
    if not scenarios:
        return ""
    rows = [
        [
            title,
            *(
                " / ".join(_value(run, name, f"{scenario}.{one}", "{:,.0f}") for one in USED)
                for scenario in scenarios
            ),
        ]
        for name, title in run["titles"].items()
    ]
    return _table(["a job: processor µs / bytes written / peak MB", *scenarios], rows)


def _details(run: Run) -> str:
    """Return the table of what only we were measured in."""
    rows = [
        [one["title"], _value(run, run["ours"], one["figure"], one["format"])]
        for one in run["details"]
        if one["figure"] in run["figures"].get(run["ours"], {})
    ]
    return _table([run["titles"].get(run["ours"], ""), "median"], rows) if rows else ""


def _bars(run: Run) -> str:
    """Return the table of what is to be reached."""
    rows = [
        [
            bar["title"],
            *(
                DASH if bar[one] is None else bar["format"].format(bar[one])
                for one in ("measured", "floor", "aim")
            ),
            VERDICTS[bar["verdict"]],
        ]
        for bar in run["bars"]
        if bar["measured"] is not None
    ]
    return _table(["to reach", "measured", "floor", "aim", ""], rows) if rows else ""


def _value(run: Run, name: str, figure: str, form: str) -> str:
    found = run["figures"].get(name, {}).get(figure)
    return form.format(found["median"]) if found else DASH


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
