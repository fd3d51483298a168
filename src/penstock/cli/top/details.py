"""One job in full, for a screen: its fields, its progress, and what happened to it."""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from penstock.cli.live.reader import LOG_SHOWN, Details
from penstock.cli.live.style import Colours, instant, share, word
from penstock.cli.output import decoded, shown, span, state_word, when, without_secrets
from penstock.core.job import Job, LogEntry, headline
from penstock.core.lifecycle import State
from penstock.core.progress import Progress
from penstock.web.jobs import Attempt, attempts_of

_TEXT_SHOWN = 20_000
_BAR = 40
_SMALLEST = 1


class Stretch(NamedTuple):
    """A time that a job spent in one state."""

    state: State
    time: timedelta


def stretches(log: Sequence[LogEntry], now: datetime) -> list[Stretch]:
    """Return the states of a job in order, and the time it spent in each; an end takes none."""
    found: list[Stretch] = []
    ends = [entry.at for entry in log[1:]] + [now]
    for entry, end in zip(log, ends, strict=True):
        time = timedelta(0) if entry.state.final else max(timedelta(0), end - entry.at)
        if found and found[-1].state is entry.state:
            time += found.pop().time
        found.append(Stretch(entry.state, time))
    return found


def render(whole: Details, now: datetime, palette: Colours) -> RenderableType:
    """Return one job in full."""
    job = whole.job
    parts: list[RenderableType] = [
        _heading(job, palette),
        Text(shown(f"{whole.explanation.text[:1].upper()}{whole.explanation.text[1:]}.")),
    ]
    if whole.explanation.blocked_by is not None:
        go = f"w: go to job {whole.explanation.blocked_by}"
        parts.append(Text(go, style=palette["title"]))
    parts += [Text(), _fields(job, now, palette)]
    if whole.progress is not None:
        parts += [Text(), _progress(whole.progress, palette)]
    parts += _section("Timeline", _timeline(whole.log, now, palette), palette)
    attempts = attempts_of(whole.log)
    if attempts:
        parts += _section("Attempts", _attempts(attempts, now, palette), palette)
    parts += _contents(whole, palette)
    if whole.lines:
        parts += _section("Lines", _lines(whole, now, palette), palette)
    parts += _section("Log", _log_table(whole.log, now, palette), palette)
    return Group(*parts)


def _section(title: str, body: RenderableType, palette: Colours) -> list[RenderableType]:
    return [Text(), Text(title, style=f"bold {palette['title']}"), Padding(body, (0, 0, 0, 2))]


def _heading(job: Job, palette: Colours) -> Text:
    return Text.assemble(
        (f"Job {job.id}  ", "bold"), (shown(job.task), "bold"), "  ", word(state_word(job), palette)
    )


def _fields(job: Job, now: datetime, palette: Colours) -> Table:
    table = Table.grid(padding=(0, 2))
    lease = f"token {job.token}, until {instant(job.expires_at)}" if job.expires_at else ""
    for name, value in (
        ("queue", f"{job.queue}, priority {job.priority}"),
        ("key", job.key),
        ("dedupe", job.dedupe),
        ("tags", ", ".join(job.tags)),
        ("batch", job.correlation),
        ("parent", job.parent and f"job {job.parent}"),
        ("tenant", job.tenant),
        ("throttle", job.throttle),
        ("attempt", f"{job.attempt} of {job.retry.attempts}"),
        ("timeout", job.timeout and span(job.timeout)),
        ("enqueued", _at(job.enqueued_at, now)),
        ("due", _at(job.run_at, now) if job.run_at != job.enqueued_at else ""),
        ("started", _at(job.started_at, now)),
        ("finished", _at(job.finished_at, now)),
        ("worker", job.worker),
        ("lease", lease if job.state is State.RUNNING else ""),
    ):
        if value:
            table.add_row(Text(name, style=palette["quiet"]), Text(shown(str(value))))
    return table


def _at(at: datetime | None, now: datetime) -> str:
    return "" if at is None else f"{instant(at)}, {when(at, now)}"


def _progress(said: Progress, palette: Colours) -> Text:
    far = f"{said.done:,g}" if said.total is None else f"{said.done:,g} of {said.total:,g}"
    more = [
        far,
        f"{said.rate:,.3g}/s" if said.rate else "",
        f"{span(said.left)} left" if said.left else "",
        shown(said.note or ""),
    ]
    text = "  ".join(part for part in more if part)
    return Text.assemble((share(said.fraction, _BAR), palette["running"]), "  ", text)


def _timeline(log: Sequence[LogEntry], now: datetime, palette: Colours) -> RenderableType:
    """Return a bar with the share of each state, and the same in words."""
    found = stretches(log, now)
    total = sum((one.time for one in found), timedelta(0)) or timedelta(seconds=1)
    bar, words = Text(no_wrap=True, overflow="crop"), Text()
    for one in found:
        style = palette.get(one.state, palette["quiet"])
        if not one.state.final:
            cells = max(_SMALLEST, round(_BAR * (one.time / total)))
            bar.append(("█" if one.state is State.RUNNING else "░") * cells, style)
        words.append(" → " if words else "")
        words.append(one.state if one.state.final else f"{one.state} {span(one.time)}", style)
    return Group(bar, words)


def _attempts(found: Sequence[Attempt], now: datetime, palette: Colours) -> RenderableType:
    parts: list[RenderableType] = []
    for n, one in enumerate(found, 1):
        took = now - one.began_at if one.duration is None else timedelta(seconds=one.duration)
        parts.append(
            Text.assemble(
                f"{n}. ",
                word(str(one.outcome or "running"), palette),
                (shown(f"  {span(took)} on {one.worker}, {when(one.began_at, now)}"), ""),
            )
        )
        if one.error:
            parts.append(Padding(Text(_cut(one.error), style=palette["failed"]), (0, 0, 0, 3)))
    return Group(*parts)


def _contents(whole: Details, palette: Colours) -> Iterator[RenderableType]:
    job = whole.job
    for title, value in (
        ("Arguments", decoded(job.payload)),
        ("Checkpoint", without_secrets(whole.checkpoint)),
        ("Result", decoded(job.result_json)),
    ):
        if value is not None:
            text = json.dumps(value, indent=2, ensure_ascii=False)
            yield from _section(title, Text(_cut(text)), palette)


def _cut(text: str) -> str:
    text = shown(text.rstrip())
    if len(text) <= _TEXT_SHOWN:
        return text
    return f"{text[:_TEXT_SHOWN]}\n… {len(text):,} characters in all"


def _lines(whole: Details, now: datetime, palette: Colours) -> Table:
    table = Table.grid(padding=(0, 2))
    for one in whole.lines:
        table.add_row(
            Text(when(one.at, now), style=palette["quiet"]),
            _safe(one.level),
            _safe(one.text),
        )
    return table


def _safe(text: str) -> Text:
    return Text(shown(text))


def _log_table(log: Sequence[LogEntry], now: datetime, palette: Colours) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for entry in log:
        table.add_row(
            Text(when(entry.at, now), style=palette["quiet"]),
            word(str(entry.event), palette),
            _safe(entry.actor),
            Text("" if entry.duration is None else span(entry.duration), justify="right"),
            _safe(entry.reason or headline(entry.error)),
        )
    if len(log) < LOG_SHOWN:
        return table
    return Group(table, Text(f"Only the first {LOG_SHOWN:,} log entries are shown."))
