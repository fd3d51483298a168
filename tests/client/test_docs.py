"""The page about the client: its examples run, and the reference names all there is."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import penstock.client
from penstock.client import AsyncClient, Client
from tests.client.support import serving
from tests.docs.support import NOT_RUN, methods, own_docstring, program, words_in
from tests.environment import SOON

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "http-client.md"


def test_examples_run_against_a_server(tmp_path: Path) -> None:
    pytest.importorskip("penstock.server.jobs", reason="the server has no routes for jobs yet")
    with serving(tmp_path) as server:
        text = PAGE.read_text("utf-8").replace(NOT_RUN, "")
        script = tmp_path / "page.py"
        script.write_text(program(text).replace("http://127.0.0.1:8000", server.url))
        ran = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, timeout=SOON, check=False
        )
        assert ran.returncode == 0, ran.stderr
        with server.client() as client:
            assert client.list(status="COMPLETED").total == 4


@pytest.mark.parametrize("name", penstock.client.__all__)
def test_public_name_is_in_the_reference_with_what_it_has(name: str) -> None:
    value = getattr(penstock.client, name)
    fields = set(getattr(value, "__struct_fields__", ()))
    # What a part of the protocol refuses is not listed.
    own = [kind for kind in value.__mro__[:-1] if kind.__module__.startswith("penstock.client")]
    called = {one for kind in own for one in methods(kind)} if not fields else set()
    assert {name, *fields, *called} - words_in("penstock.client") == set()
    assert own_docstring(value)


@pytest.mark.parametrize("name", sorted({*vars(AsyncClient.__base__), *vars(AsyncClient)}))
def test_both_clients_have_the_same_calls(name: str) -> None:
    call = getattr(AsyncClient, name)
    if name.startswith("_") or not inspect.isfunction(call):
        return
    ours = getattr(Client, name)
    assert inspect.getdoc(ours)
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(call).parameters)
