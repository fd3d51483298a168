import pytest

from penstock import ConfigurationError
from penstock.apps.ingest import Settings
from penstock.config import Server, Sources
from penstock.server.applications import effective_settings


def test_lists_are_separated_by_commas() -> None:
    environment = {
        "PENSTOCK_INGEST_ROOTS": "/a, /b",
        "PENSTOCK_INGEST_LEASES": "folder=900,library=1800",
        "PENSTOCK_INGEST_URLS": "https://docs.example.org/",
    }
    settings = Sources(environment).section("ingest", Settings).settings
    settings.check()
    assert settings.roots == ("/a", "/b")
    assert settings.leases_by_type() == {"folder": 900.0, "library": 1800.0}


def test_a_server_that_runs_no_jobs_has_no_processes_for_items() -> None:
    assert effective_settings(Server(workers=0), Settings(workers=3)).workers == 0
    assert effective_settings(Server(workers=1), Settings(workers=3)).workers == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"leases": ("folder",)},
        {"leases": ("nonsense=3",)},
        {"leases": ("file=-1",)},
        {"urls": ("example.org",)},
        {"urls": ("https://example.org",)},
        {"vectors": "chroma"},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        Settings(**wrong).check()  # type: ignore[arg-type] # some of each
