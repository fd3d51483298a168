"""The units of systemd: what they say matches what the processes do.

`systemd-analyze` checks them where it is installed. No systemd runs them here; what it would hear
is shown by `tests/cli/test_service_manager.py`.
"""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.config import Server
from tests.deploy.support import DEPLOY, LAST_BREATH, WIND_DOWN, options, seconds

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def read(unit: Path) -> dict[str, dict[str, list[str]]]:
    """The values of a unit by section and name; a name may occur several times."""
    found: dict[str, dict[str, list[str]]] = {}
    for line in unit.read_text("utf-8").splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            section.setdefault(name, []).append(value)
    return found


def test_there_are_units_for_a_server_and_for_workers() -> None:
    names = [unit.name for unit in UNITS]
    assert names == ["penstock-server.service", "penstock-worker@.service"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_unit_notifies_is_watched_and_has_time_to_drain(unit: Path) -> None:
    service = read(unit)["Service"]
    assert service["Type"] == ["notify"]
    assert seconds(service["WatchdogSec"][0]) > 60  # see the comment there
    # A second SIGTERM, from the control group, would end the children of a server at once.
    assert service["KillMode"] == ["mixed"]
    (command,) = service["ExecStart"]
    program, *arguments = shlex.split(command)
    assert program == "/opt/penstock/bin/penstock"
    given = options(arguments)
    variables = dict(one.split("=") for one in shlex.split(service.get("Environment", [""])[0]))
    names = {name.removeprefix("PENSTOCK_").lower() for name in variables}
    assert names <= set(Server.__struct_fields__)
    worker = given["grace"]  # that of a server is a variable
    grace = worker.total_seconds() if worker else float(variables["PENSTOCK_GRACE"])
    assert seconds(service["TimeoutStopSec"][0]) > grace + WIND_DOWN + LAST_BREATH


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_unit_is_in_a_sandbox(unit: Path) -> None:
    service = read(unit)["Service"]
    for name in ("NoNewPrivileges", "PrivateDevices", "PrivateTmp", "ProtectHome", "DynamicUser"):
        assert service[name] == ["yes"]
    assert service["ProtectSystem"] == ["strict"]
    assert service["CapabilityBoundingSet"] == [""]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_analyze_finds_nothing(unit: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    copy = tmp_path / unit.name
    # The program is not installed where the unit expects it.
    copy.write_text(unit.read_text("utf-8").replace("/opt/penstock/bin/penstock", "/bin/true"))
    for verb in (["verify", "--man=no"], ["security", "--offline=true", "--threshold=20"]):
        command = [analyze or "true", *verb, str(copy)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
