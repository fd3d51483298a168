"""The command `./dev simulate`."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.__main__ import main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("options", "played"),
    [
        ("--seeds 2", 2),
        ("--seed 7", 1),
        ("--seed 7 --seeds 2", 2),
        ("--seeds=2 --seed=7", 2),
        ("--seeds=2 --until-failure", 2),
    ],
)
def test_as_many_seeds_are_played_as_requested(
    options: str, played: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--scenario", "memory", *options.split()])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"{played} seeds played, 0 failed")


def simulate(*options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.simulation", "--scenario", "memory", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_failing_seed_is_named_and_its_story_told() -> None:
    with simulate("--seed", "15", "--broken", "renews_no_lease", "--trace") as process:
        story, errors = process.communicate()
    assert (process.returncode, errors) == (1, "")
    assert story.startswith("memory seed 15: promise ")
    assert "worker0.1: claimed runs" in story
    assert "  violates promise " in story


def test_reader_of_a_story_may_stop_early() -> None:
    with simulate("--seed", "1", "--trace") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
