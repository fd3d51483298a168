import io
import json
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from penstock.cli import output
from penstock.cli.output import Column, plain, show_table, shown, span, when
from penstock.core.job import Job, JobId, LogId
from penstock.core.lifecycle import State, Waiting
from penstock.core.retry import RetryPolicy

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


def job(**fields: Any) -> Job:
    known = {
        "id": JobId(7),
        "version": LogId(9),
        "task": "greet",
        "payload": '{"name":"Ada"}',
        "queue": "default",
        "priority": 5,
        "state": State.PENDING,
        "waiting": Waiting.READY,
        "attempt": 0,
        "enqueued_at": NOW,
        "run_at": NOW,
    }
    return Job(**{**known, **fields})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "250 ms"),
        (3, "3 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7_199, "120 min"),
        (7_200, "2 h"),
        (172_800, "2 d"),
        (8_640_000, "100 d"),
    ],
)
def test_durations_read_at_a_glance(seconds: float, text: str) -> None:
    assert span(timedelta(seconds=seconds)) == text


def test_instants_are_seen_from_now() -> None:
    assert when(NOW - timedelta(seconds=3), NOW) == "3 s ago"
    assert when(NOW + timedelta(minutes=5), NOW) == "in 5 min"
    assert when(NOW + timedelta(milliseconds=20), NOW) == "now"
    assert when(None, NOW) == ""


def test_instants_become_utc_with_a_z() -> None:
    elsewhere = NOW.astimezone(timezone(timedelta(hours=5)))
    assert plain(elsewhere) == "2030-01-01T12:00:00.000000Z"


def test_durations_become_seconds() -> None:
    assert plain(timedelta(minutes=1.5)) == 90.0


def test_defaults_are_spelled_out() -> None:
    assert plain(RetryPolicy()) == {
        "attempts": 3,
        "delay": 5.0,
        "factor": 2.0,
        "max_delay": 3600.0,
        "jitter": 0.2,
    }


def test_job_has_decoded_arguments_and_result() -> None:
    fields = plain(job(result_json="[1,2]", tags=("a", "b")))
    assert fields["args"] == {"name": "Ada"}
    assert fields["result"] == [1, 2]
    assert fields["tags"] == ["a", "b"]
    assert fields["state"] == "pending"
    assert not {"payload", "result_json", "duplicate"} & fields.keys()


def test_payload_that_is_no_json_is_shown_as_what_is_wrong_with_it() -> None:
    assert plain(job(payload="{oops"))["args"].startswith("unreadable: is not JSON")


def test_numbers_of_any_size_survive() -> None:
    assert json.dumps(plain(job(payload='{"n":123456789012345678901234567890}'))["args"]) == (
        '{"n": 123456789012345678901234567890}'
    )


def test_control_characters_cannot_reach_the_terminal() -> None:
    assert shown("a\x1b[31m\rb\tc\nd\u202e") == "a\\x1b[31m\\rb   c\nd\\u202e"


def test_table_in_a_pipe_is_plain_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 300
    show_table([Column("id", right=True), Column("text", bends=True)], [["1", long], ["10", "b"]])
    assert capsys.readouterr().out == f"id  text\n 1  {long}\n10  b\n"


def test_text_is_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    show_table([Column("error")], [["[bold]x[/bold] :smile:"]])
    assert "[bold]x[/bold] :smile:" in capsys.readouterr().out


def test_empty_column_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    show_table([Column("id"), Column("key")], [["1", ""], ["2", ""]])
    assert capsys.readouterr().out == "id\n1\n2\n"


def on_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return terminal


def test_terminal_gets_colour_and_cut_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(30, monkeypatch)
    columns = [Column("id"), Column("state"), Column("error", bends=True)]
    show_table(columns, [["12345678", "failed", "x" * 50]])
    printed = terminal.getvalue()
    assert "\x1b[1;31mfailed\x1b[0m" in printed
    assert "12345678" in printed
    assert "x" * 11 + "…" in printed
    assert "x" * 12 not in printed


def test_column_without_room_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(12, monkeypatch)
    show_table([Column("id"), Column("task"), Column("when")], [["1", "greet", "3 s ago"]])
    *_, last = terminal.getvalue().splitlines()
    assert last == "(no room for: when)"


def test_json_is_one_line_in_a_pipe_and_indented_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output.emit({"a": 1})
    assert capsys.readouterr().out == '{"a": 1}\n'
    terminal = on_terminal(80, monkeypatch)
    output.emit({"a": 1})
    assert terminal.getvalue() == '{\n  "a": 1\n}\n'
