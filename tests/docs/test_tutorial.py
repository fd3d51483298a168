"""The tutorial is followed as a reader would: its files are written, its commands are run."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"
SOON = 300
PROGRAMS = {
    "python": [sys.executable, "-W", "error"],
    "penstock": [sys.executable, "-m", "penstock"],
}
DONE_ALREADY = {"mkdir", ".", "pip", "cd"}
"""Commands of a reader's preparations."""


class Reader:
    """Does what the page says, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # A reader has pytest, and none of the plugins that are installed here.
        alone = {"PYTEST_ADDOPTS": "-p no:asyncio -p no:xdist -p no:timeout"}
        self._environment = {**os.environ, **alone, "NO_COLOR": "1"}
        self._worker: subprocess.Popen[bytes] | None = None

    def write(self, text: str) -> None:
        """Write a file, or add to it, as its first line names it."""
        name = text.splitlines()[0].removeprefix("# ")
        assert name.endswith(".py"), f"whose text is this? {name}"
        with (self._folder / name).open("a", encoding="utf-8") as file:
            file.write("\n\n" + text)

    def run(self, line: str) -> str | None:
        """Run a command; what it printed, None if it goes on or was left out."""
        program, *arguments = shlex.split(line, comments=True)
        if program in DONE_ALREADY:
            return None
        if program == "export":
            name, _, value = arguments[0].partition("=")
            self._environment[name] = value
            return None
        command = [*PROGRAMS.get(program, [program]), *arguments]
        if arguments[:1] == ["worker"]:
            self.stop()
            self._worker = subprocess.Popen(
                command, cwd=self._folder, env=self._environment, stdout=subprocess.PIPE
            )
            assert self._worker.stdout is not None
            self._worker.stdout.readline()  # it says that it works
            return None
        ran = subprocess.run(
            command,
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=SOON,
            check=False,
        )
        assert ran.returncode == 0, f"{line}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def stop(self) -> None:
        """Ctrl-C in the second terminal."""
        if self._worker is not None:
            self._worker.terminate()
            assert self._worker.wait(SOON) == 0
            assert self._worker.stdout is not None
            self._worker.stdout.close()
            self._worker = None


@contextmanager
def reading(folder: Path) -> Iterator[Reader]:
    reader = Reader(folder)
    try:
        yield reader
    finally:
        reader.stop()


def blocks() -> list[tuple[str, str]]:
    found = re.findall(
        r"^```(\w+)\n(.*?)^```$", TUTORIAL.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert {kind for kind, _ in found} == {"python", "console"}
    return found


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Each command of a console, with what stands below it."""
    for part in text.removeprefix("$ ").split("\n$ "):
        line, _, below = part.partition("\n")
        yield line, below


def plain(text: str) -> list[str]:
    """Lines without what differs from run to run: spaces, and how long ago it was."""
    text = re.sub(r"\b(now|\d+ (s|ms|min) ago|in \d+ (s|min))\b", "then", text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


@pytest.mark.timeout(1200)
def test_tutorial_can_be_followed(tmp_path: Path) -> None:
    with reading(tmp_path) as reader:
        for kind, text in blocks():
            if kind == "python":
                reader.write(text)
                continue
            for line, below in commands(text):
                printed = reader.run(line)
                if printed is not None and below.strip():
                    assert plain(printed) == plain(below), line
    assert (tmp_path / "index.html").read_text().startswith("<h1>Holiday</h1>")
