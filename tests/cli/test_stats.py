import time
from datetime import datetime, timedelta

import pytest

from penstock import Penstock, run_sync
from penstock.cli.stats import sparkline
from penstock.leases import Done, Failed
from tests.cli.support import Shell, run_one


def fill(app: Penstock) -> None:
    """In `mail` three jobs: one that is done, one that failed, one that waits."""
    greet = app.tasks["greet"].using(queue="mail")
    for _ in range(3):
        run_sync(greet.enqueue("Ada"))
    run_one(app, Done())
    run_one(app, Failed("no"))
    run_sync(app.tasks["greet"].using(queue="other").enqueue("Ada"))


def test_stats_show_rates_times_and_a_line(app: Penstock, shell: Shell) -> None:
    fill(app)
    head, mail, other, _, title, line, _ = shell("stats").stdout.splitlines()
    assert head.split("  ")[0] == "queue"
    assert head.split()[1:4] == ["enqueued/s", "done/s", "failed/s"]
    assert mail.split()[:4] == ["mail", "<0.01", "<0.01", "<0.01"]
    assert other.split() == ["other", "<0.01", *"······"]
    assert "done per minute, the last 61 min" in title
    assert line.split()[:2] == ["mail", "1"]
    assert "█" in line.split()[2]
    assert len(line.split()[2]) == 61


def test_stats_as_json_have_counts_and_seconds(app: Penstock, shell: Shell) -> None:
    fill(app)
    found = shell.json("stats", "--queue", "mail", "--since", "10m")
    elapsed = datetime.fromisoformat(found["until"]) - datetime.fromisoformat(found["since"])
    assert timedelta(minutes=10) <= elapsed <= timedelta(minutes=11)
    (mail,) = found["queues"]
    assert mail["queue"] == "mail"
    assert mail["counts"] == {"enqueued": 3, "claimed": 2, "done": 1, "failed": 1}
    assert mail["per_second"]["enqueued"] == pytest.approx(3 / elapsed.total_seconds())
    assert mail["wait"]["count"] == mail["run"]["count"] == 2
    assert 0 <= mail["run"]["p50"] <= mail["run"]["p95"]
    assert sum(mail["done_per_minute"]) == 1


def test_time_before_is_not_counted(shell: Shell, url: str) -> None:
    ago = Penstock(url, clock=lambda: time.time_ns() // 1000 - 3 * 3_600_000_000)
    ago.task("greet", lambda name: None)
    fill(ago)
    run_sync(ago.close())
    assert shell("stats").stdout == "Nothing happened in the last 60 min.\n"
    assert shell.json("stats", "--since", "4h")["queues"][0]["counts"]["enqueued"] == 3


def test_time_that_is_not_kept_is_refused(app: Penstock, shell: Shell) -> None:
    assert "kept for 8 d" in shell.error("stats", "--since", "9d", code=2)


def test_unknown_queue_is_not_found(app: Penstock, shell: Shell) -> None:
    assert "there is no queue 'x'" in shell.error("stats", "--queue", "x", code=3)


def test_bars_are_as_high_as_their_numbers() -> None:
    assert sparkline([0, 1, 4, 8]) == "·▁▄█"
    assert sparkline([0, 0]) == "··"
    assert sparkline([1_000_000, 1]) == "█▁"
