"""The checker is worth its name: it catches every broken variant, by the promise it breaks."""

from pathlib import Path

import pytest

from tests.crash.processes import Zygote
from tests.crash.support import SCENES, play
from tests.crash.variants import VARIANTS

CAUGHT = [
    ("acknowledges_before_commit", "dies while enqueueing", 1),
    ("deletes_what_it_gives_out", "dies in the handler", 1),
    ("settles_by_any_token", "stale settle", 2),
    ("moves_any_version", "stale settle", 2),
    ("gives_tokens_again", "two by turns", 2),
    ("gives_out_more_than_heads", "a key", 3),
    ("promotes_the_newest", "a key", 3),
    ("promotes_by_priority", "a key", 3),
    ("forgets_the_key_of_a_retry", "a key", 3),
    ("does_not_count_attempts", "silent worker", 4),
    ("takes_nothing_back", "silent worker", 4),
    ("checks_then_acts", "race for a dedupe key", 5),
    ("checks_then_acts", "race for the last place", 5),
    ("stores_a_batch_in_pieces", "dies while enqueueing batches", 5),
    ("forgets_to_log_expiry", "silent worker", 6),
    ("counts_only_what_comes", "two by turns", 6),
    ("is_deaf_to_pauses", "pause", 7),
    ("settles_what_it_gives_out", "dies in the handler", 8),
]


@pytest.mark.parametrize("scene", SCENES)
def test_nothing_is_reported_without_a_variant(scene: str, zygote: Zygote, folder: Path) -> None:
    assert play(zygote, folder, SCENES[scene], None) == []


@pytest.mark.parametrize(("variant", "scene", "promise"), CAUGHT)
def test_variant_is_caught(
    variant: str, scene: str, promise: int, zygote: Zygote, folder: Path
) -> None:
    violations = play(zygote, folder, SCENES[scene], variant)
    assert promise in {violation.promise for violation in violations}, violations


def test_every_variant_and_every_promise_is_tried() -> None:
    assert {variant for variant, _, _ in CAUGHT} == set(VARIANTS)
    assert {promise for _, _, promise in CAUGHT} == set(range(1, 9))
