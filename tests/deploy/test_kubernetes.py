"""The manifests: valid, with probes that are served and time to drain. No cluster runs them."""

import os
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from penstock import Penstock
from penstock.cli.errors import Exit
from penstock.config import Server
from penstock.server.app import Service
from tests.deploy.support import LAST_BREATH, WIND_DOWN, documents, options

FILES = ("server", "worker")
PODS = (*FILES, "migrate")
VERSIONS = ("1.29", "1.33", kubernetes_validate.latest_version())


def deployment(name: str) -> Any:
    kinds = ("Deployment", "Job")
    (found,) = (one for one in documents(f"kubernetes/{name}.yaml") if one["kind"] in kinds)
    return found["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", PODS)
def test_manifests_are_valid(name: str, version: str) -> None:
    for document in documents(f"kubernetes/{name}.yaml"):
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("name", FILES)
def test_there_is_time_to_drain(name: str) -> None:
    pod = deployment(name)
    (container,) = pod["containers"]
    given = options(container["args"])
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert {one.removeprefix("PENSTOCK_").lower() for one in variables} <= set(
        Server.__struct_fields__
    )
    if name == "server":
        time = float(variables["PENSTOCK_GRACE"]) + float(variables["PENSTOCK_DRAIN_DELAY"])
        probe = container["readinessProbe"]
        noticed = probe["periodSeconds"] * probe["failureThreshold"]
        assert float(variables["PENSTOCK_DRAIN_DELAY"]) > noticed
    else:
        time = given["grace"].total_seconds()
    assert pod["terminationGracePeriodSeconds"] > time + WIND_DOWN + LAST_BREATH


def test_probes_of_the_server_are_routes_that_need_no_token() -> None:
    routes = {one.declared.path: one.declared for one in Service(Penstock("memory://"), []).routes}
    (container,) = deployment("server")["containers"]
    ports = {one["name"] for one in container["ports"]}
    for kind in ("live", "ready", "startup"):
        probe = container[
            {"live": "livenessProbe", "ready": "readinessProbe"}.get(kind, "startupProbe")
        ]
        assert probe["httpGet"]["path"] == f"/health/{kind}"
        assert probe["httpGet"]["port"] in ports
        assert routes[f"/health/{kind}"].access is None


def test_probes_of_the_worker_look_at_the_file_that_it_touches() -> None:
    (container,) = deployment("worker")["containers"]
    file = str(options(container["args"])["health_file"])
    for kind in ("startupProbe", "livenessProbe"):
        assert file in " ".join(container[kind]["exec"]["command"])


def test_job_migrates() -> None:
    (container,) = deployment("migrate")["containers"]
    *_, script = container["command"]
    given = options(script.partition(" || ")[0].split()[1:])
    assert (given["apply_"], given["check"], given["force"]) == (True, False, False)
    assert deployment("migrate")["restartPolicy"] == "Never"


@pytest.mark.parametrize("code", list(Exit))
def test_job_succeeds_when_others_hold_up_a_switch(tmp_path: Path, code: Exit) -> None:
    """Its script runs with a `penstock` that exits with this code."""
    (container,) = deployment("migrate")["containers"]
    assert "args" not in container
    program = tmp_path / "penstock"
    program.write_text(f"#!/bin/sh\nexit {int(code)}\n")
    program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    ran = subprocess.run(container["command"], env={"PATH": path}, check=False)
    assert (ran.returncode == 0) == (code in (Exit.OK, Exit.TO_MIGRATE))


@pytest.mark.parametrize("name", PODS)
def test_pods_are_restricted(name: str) -> None:
    pod = deployment(name)
    # Variables of a Service named penstock would be taken for settings: PENSTOCK_PORT=tcp://…
    assert pod["enableServiceLinks"] is False
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"]
    (container,) = pod["containers"]
    context = container["securityContext"]
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}
