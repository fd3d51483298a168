"""The wheel: what is in it, and that it works in environments that have nothing else."""

import hashlib
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import httpx
import pytest

from tests import pythons
from tests.cli.support import started
from tests.docs.support import program
from tests.environment import SOON
from tests.server.support import address

ROOT = Path(__file__).parents[1]
MOST = 1_250_000
"""Bytes of the wheel, the five applications and the dashboard included."""
MOST_OF_CORE = 1_000_000
"""Bytes of the wheel without the applications; docs/adr/0044 says what takes the room."""

PARTS = {
    "server": ("penstock.server.app", "uvicorn"),
    "client": ("penstock.client",),
    "otel": ("opentelemetry.sdk",),
    "postgres": ("penstock.stores.postgres", "psycopg"),
    "vectors": ("penstock.vectors", "faiss"),
    "notebooks": ("penstock.apps.notebooks", "watchfiles"),
    "indexing": ("penstock.apps.indexing",),
    "entries": ("penstock.apps.entries", "openpyxl"),
    "ingest": ("penstock.apps.ingest",),
    "top": ("penstock.cli.top.app", "textual"),
    "django": ("django",),
    "chroma": ("penstock.vectors", "chromadb"),
    "qdrant": ("penstock.vectors", "qdrant_client"),
    "all": ("penstock.server.app", "penstock.cli.top.app", "penstock.apps.ingest", "psycopg"),
}
"""What each extra makes possible to import."""

HEAVY = ("fastapi", "faiss", "httpx", "numpy", "psycopg", "rich", "starlette", "textual", "uvicorn")


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist, made by what `./dev build` runs in its environment."""
    program, *options = shlex.split(runpy.run_path(str(ROOT / "dev"))["COMMANDS"]["build"].last)
    assert program == "python"
    command = [sys.executable, *options, "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=SOON)
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(built: tuple[Path, Path]) -> Path:
    return built[0]


def install(wheel: Path, folder: Path, extra: str = "", python: str = sys.executable) -> Path:
    """A fresh environment with the wheel and what it asks for; its interpreter."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True, timeout=SOON)
    found = folder / "bin" / "python"
    what = f"{wheel}[{extra}]" if extra else str(wheel)
    pins = str(ROOT / "constraints.txt")
    command = [str(found), "-m", "pip", "install", "--quiet", "--constraint", pins, what]
    ran = subprocess.run(command, check=False, timeout=5 * SOON, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return found


def run(python: Path, *arguments: str, folder: Path, code: int = 0) -> str:
    """What a program prints, in an environment without ours."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [str(python), *arguments],
        cwd=folder,
        env=clean,
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def test_build_is_reproducible(built: tuple[Path, Path], tmp_path: Path) -> None:
    again = build(tmp_path)
    digests = [
        [hashlib.sha256(path.read_bytes()).hexdigest() for path in (built, again)[n]]
        for n in (0, 1)
    ]
    assert digests[0] == digests[1]


def test_metadata_names_licence_python_and_extras(wheel: Path) -> None:
    found = metadata(wheel)
    assert found["Name"] == "penstock"
    assert re.fullmatch(r"\d+\.\d+\.\d+", found["Version"])
    assert found["License-Expression"] == "MIT"
    assert found["Requires-Python"] == ">=3.11"
    assert "Typing :: Typed" in found.get_all("Classifier", [])
    assert set(found.get_all("Provides-Extra", [])) == PARTS.keys()
    core = [one for one in found.get_all("Requires-Dist", []) if "extra ==" not in one]
    assert sorted(re.split(r"[<>=;]", one)[0] for one in core) == [
        "click",
        "cronsim",
        "msgspec",
        "rich",
    ]


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    assert wheel.stat().st_size < MOST
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    version = metadata(wheel)["Version"]
    assert tops == {"penstock", "_penstock_pytestplugin.py", f"penstock-{version}.dist-info"}
    assert "penstock/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def test_core_is_under_a_megabyte(wheel: Path, tmp_path: Path) -> None:
    applications = re.compile(r"penstock/apps/(entries|events|indexing|ingest|notebooks)/")
    core = tmp_path / wheel.name
    with (
        zipfile.ZipFile(wheel) as whole,
        zipfile.ZipFile(core, "w", zipfile.ZIP_DEFLATED) as part,
    ):
        for entry in whole.infolist():
            if not applications.match(entry.filename):
                part.writestr(entry, whole.read(entry))
    assert core.stat().st_size < MOST_OF_CORE


def test_sdist_can_be_built_from_alone(built: tuple[Path, Path], tmp_path: Path) -> None:
    with tarfile.open(built[1]) as archive:
        archive.extractall(tmp_path, filter="data")
    [tree] = tmp_path.iterdir()
    command = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-t",
        "wheel",
        "-d",
        str(tmp_path / "out"),
    ]
    subprocess.run(command, cwd=tree, check=True, capture_output=True, timeout=SOON)
    [again] = (tmp_path / "out").glob("*.whl")
    with zipfile.ZipFile(again) as one, zipfile.ZipFile(built[0]) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())


def test_core_alone_runs_the_fifteen_lines(wheel: Path, tmp_path: Path) -> None:
    python = install(wheel, tmp_path / "env")
    listed = run(python, "-m", "pip", "list", "--format", "freeze", folder=tmp_path)
    installed = {line.split("==")[0].lower() for line in listed.splitlines() if "==" in line}
    assert not installed & set(HEAVY) - {"rich"}
    _fifteen_lines(python, tmp_path)
    version = metadata(wheel)["Version"]
    assert run(python, "-m", "penstock", "--version", folder=tmp_path).strip().endswith(version)
    store = ("--store", "sqlite:///jobs.db")
    assert "mail" in run(python, "-m", "penstock", "status", *store, folder=tmp_path)
    refused = run(python, "-m", "penstock", "serve", folder=tmp_path, code=2)
    assert "penstock[server]" in refused


def _fifteen_lines(python: Path, folder: Path) -> None:
    (folder / "fifteen.py").write_text(program((ROOT / "README.md").read_text("utf-8")))
    # Python 3.12.0 to 3.12.3 take `?1` for a named parameter (issue 117995 of CPython).
    allowed = ("-W", "ignore:Binding:DeprecationWarning")
    printed = run(python, "-W", "error", *allowed, "fifteen.py", folder=folder)
    assert "sent 'Welcome' to ada@example.org" in printed


def test_server_serves_the_dashboard(wheel: Path, tmp_path: Path) -> None:
    python = install(wheel, tmp_path / "env", "server")
    command = (str(python), "-m", "penstock", "serve", "--port", "0")
    with started(command, tmp_path) as process, httpx.Client(base_url=address(process)) as client:
        front = client.get("/", headers={"Accept": "text/html"}, timeout=SOON)
        assert front.status_code == 200
        assert "<title>" in front.text
        assert client.get("/openapi.json", timeout=SOON).json()["info"]["title"]
        process.send(signal.SIGTERM)
        assert process.wait() == 0


@pytest.mark.repeats("that the wheel installs and imports, for every extra")
@pytest.mark.parametrize("extra", PARTS)
def test_extra_alone_brings_what_it_needs(extra: str, wheel: Path, tmp_path: Path) -> None:
    python = install(wheel, tmp_path / "env", extra)
    for module in ("penstock", *PARTS[extra]):
        run(python, "-c", f"import {module}", folder=tmp_path)
    _fifteen_lines(python, tmp_path)


OTHERS = [
    minor
    for minor in pythons.SUPPORTED
    if minor != sys.version_info.minor and pythons.interpreter(minor)
]

if OTHERS:  # otherwise nothing is collected: not every machine has several

    @pytest.mark.repeats("the fifteen lines, with every other Python of this machine")
    @pytest.mark.parametrize("minor", OTHERS)
    def test_other_version_of_python_runs_it(minor: int, wheel: Path, tmp_path: Path) -> None:
        python = str(pythons.interpreter(minor))
        _fifteen_lines(install(wheel, tmp_path / "env", python=python), tmp_path)


def test_supported_versions_are_those_of_the_metadata(wheel: Path) -> None:
    named = metadata(wheel).get_all("Classifier", [])
    assert [name for name in named if re.search(r":: 3\.\d+$", name)] == [
        f"Programming Language :: Python :: 3.{minor}" for minor in pythons.SUPPORTED
    ]


RARE = (
    "asyncio",
    "hashlib",
    "penstock.client",
    "penstock.engine.archive_file",
    "penstock.server",
    "penstock.stores.sql",
    "penstock.worker",
    "penstock.web",
    "sqlite3",
    "ssl",
    "subprocess",
    "tempfile",
    "zoneinfo",
)
"""What a program imports when it uses it, and not before."""


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import penstock", (*RARE, "msgspec", "penstock.core", "penstock.engine")),
        ("from penstock import Penstock", RARE),
        ("import penstock.cli.main", (*RARE, "msgspec", "penstock.engine")),
        ("import runpy; runpy.run_module('penstock')", (*RARE, "msgspec", "penstock.engine")),
        ("from penstock.cli.main import cli; cli.main(['jobs', '--help'])", RARE),
        ("from penstock.cli.main import cli; cli.main(['--help'])", ()),
    ],
)
def test_nothing_is_imported_before_it_is_used(code: str, absent: tuple[str, ...]) -> None:
    """Where every extra is installed."""
    program = (
        "import atexit, sys; before = {*sys.modules}\n"
        "atexit.register(lambda: print('loaded', *{*sys.modules} - before))\n"
        f"sys.argv[1:] = ['--version']; {code}"
    )
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SOON)
    _, *loaded = ran.stdout.splitlines()[-1].split()
    assert "penstock" in loaded
    unwanted = (*HEAVY, *absent)
    assert [one for one in loaded if any(f"{one}.".startswith(f"{no}.") for no in unwanted)] == []
