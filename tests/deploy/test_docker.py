"""The Dockerfile: clean, unprivileged, and with a health check that tells the truth.

There is no Docker engine in the tests: the image is not built here.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

from penstock.config import Server
from tests.deploy.support import DEPLOY, ROOT, options, tool
from tests.environment import SOON
from tests.server.support import served

FILE = DEPLOY / "docker" / "Dockerfile"
TEXT = FILE.read_text("utf-8")


def test_linter_finds_nothing() -> None:
    ended = subprocess.run([tool("hadolint"), FILE], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")


def test_image_runs_as_somebody_who_is_not_root_and_is_known_by_a_number() -> None:
    last = TEXT.rpartition("FROM ")[2]
    assert re.findall(r"^USER (.*)$", last, re.MULTILINE) == ["10001:10001"]


def test_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    chosen = re.findall(r"EXTRAS=(\S+)", TEXT)
    assert chosen
    for extras in chosen:
        assert set(extras.split(",")) <= project["optional-dependencies"].keys()


def test_what_is_copied_is_not_ignored() -> None:
    ignored = FILE.with_name("Dockerfile.dockerignore").read_text("utf-8").splitlines()
    kept = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = {
        Path(name).parts[0]
        for line in re.findall(r"^COPY (?!--from)(.*)$", TEXT, re.MULTILINE)
        for name in line.split()[:-1]
    }
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)


def test_variables_are_settings_and_the_command_exists() -> None:
    names = {name.lower() for name in re.findall(r"\bPENSTOCK_(\w+)=", TEXT)}
    assert names <= set(Server.__struct_fields__)
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", TEXT, re.MULTILINE)
    (command,) = re.findall(r"^CMD (.*)$", TEXT, re.MULTILINE)
    assert json.loads(entry) == ["penstock"]
    options(json.loads(command))


def test_health_check_passes_while_the_server_is_ready(tmp_path: Path) -> None:
    (text,) = re.findall(r"HEALTHCHECK .*\\\n\s+CMD (.*)$", TEXT, re.MULTILINE)
    python, *arguments = json.loads(text)
    assert python == "python"

    def check(url: str) -> int:
        environment = {**os.environ, "PENSTOCK_PORT": url.rpartition(":")[2]}
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, env=environment, capture_output=True, timeout=SOON, check=False
        ).returncode

    with served(tmp_path, "--drain-delay", "600") as (server, url):
        assert check(url) == 0
        server.send(signal.SIGTERM)
        server.wait_for("stopping")
        assert check(url) == 1
        server.send(signal.SIGTERM)
        server.wait()
        assert check(url) == 1
