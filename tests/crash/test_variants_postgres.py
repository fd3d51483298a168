"""The checker catches broken variants of the PostgreSQL store, by the promise they break."""

from pathlib import Path

import psycopg
import pytest

from penstock.engine.penstock import run_sync
from penstock.stores.postgres.connection import address
from tests.crash.processes import Zygote
from tests.crash.support import SCENES as SHARED
from tests.crash.support import Scene, client, play, table
from tests.crash.variants_postgres import VARIANTS

SCENES = {
    **SHARED,
    "race for a job": Scene("takes", clients=2),
    "race for a key": Scene("takes", clients=2, options={"job": {"key": "k"}}),
}
CAUGHT = [
    ("claims_without_locks", "race for a job", 2),
    ("settles_any_version", "stale settle", 2),
    ("has_no_key_alone", "race for a key", 3),
    ("counts_only_what_comes", "two by turns", 6),
    ("forgets_to_log_claims", "two by turns", 6),
    ("is_deaf_to_pauses", "pause", 7),
]


@pytest.mark.parametrize("folder", ["postgres"], indirect=True)
@pytest.mark.parametrize("scene", SCENES)
def test_nothing_is_reported_without_a_variant(scene: str, zygote: Zygote, folder: Path) -> None:
    assert play(zygote, folder, SCENES[scene], None) == []


@pytest.mark.parametrize("caught", CAUGHT, ids=lambda caught: caught[0])
def test_variant_is_caught(
    caught: tuple[str, str, int], zygote: Zygote, postgres_url: str, folder: Path
) -> None:
    variant, scene, promise = caught
    (folder / "url").write_text(postgres_url)
    with client(folder) as app:  # the queue is known: nobody waits for who adds it
        run_sync(app.enqueue_many([app.new()]))
    if variant == "has_no_key_alone":  # the index that would notice
        with psycopg.connect(address(postgres_url).conninfo) as connection:
            connection.execute(f"DROP INDEX {table(folder, 'job_head')}".encode())
    violations = play(zygote, folder, SCENES[scene], variant)
    assert promise in {violation.promise for violation in violations}, violations


def test_every_variant_is_tried() -> None:
    assert {variant for variant, _, _ in CAUGHT} == set(VARIANTS)
