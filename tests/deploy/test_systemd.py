"""The units of systemd: what they say matches what the processes do.

`systemd-analyze` checks them. No systemd runs them here; what it would hear is shown by
`tests/cli/test_service_manager.py`.
"""

import shlex
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from penstock.config import Server
from tests.deploy.support import DEPLOY, LAST_BREATH, ROOT, WIND_DOWN, options, seconds

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
    if analyze is None:
        pytest.fail("systemd-analyze is missing: install the package systemd of the system")
    copy = tmp_path / unit.name
    # The program is not installed where the unit expects it.
    copy.write_text(unit.read_text("utf-8").replace("/opt/penstock/bin/penstock", "/bin/true"))
    for verb in (["verify", "--man=no"], ["security", "--offline=true", "--threshold=20"]):
        command = [analyze, *verb, str(copy)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_commands_of_the_guide_let_the_service_read_its_settings_and_nobody_read_secrets(
    tmp_path: Path, umask: int
) -> None:
    """The server is a user of its own; systemd reads the environment as root."""
    guide = (ROOT / "docs" / "how-to" / "fleet.md").read_text("utf-8")
    commands = [line[2:] for line in guide.splitlines() if line.startswith("# ")]
    about_settings = [line for line in commands if "/etc/penstock" in line]
    script = "\n".join(about_settings).replace("/etc/penstock", shlex.quote(str(tmp_path / "etc")))
    subprocess.run(["/bin/sh", "-euc", script], check=True, umask=umask)
    service = read(DEPLOY / "systemd" / "penstock-server.service")["Service"]
    read_by_service = options(shlex.split(service["ExecStart"][0])[1:])["file"]
    settings = tmp_path / "etc" / Path(read_by_service).name
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (settings.parent, settings)}
    assert modes == {settings.parent: 0o755, settings: 0o644}
    secrets = Path(service["EnvironmentFile"][0].lstrip("-")).name
    assert stat.S_IMODE((tmp_path / "etc" / secrets).stat().st_mode) == 0o600
