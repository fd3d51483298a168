"""Puts two rankings together."""

from collections.abc import Mapping

SMOOTHING = 60
"""How little the first places count more than the next: the usual figure for reciprocal ranks."""
DIGITS = 6
"""Scores that differ by less are equal: that is as exact as 32-bit floats are."""


def fused(*rankings: Mapping[int, float]) -> dict[int, float]:
    """A score for each number that any ranking has: the sum of its reciprocal ranks.

    Rankings are scores by number, best first. Equal ones share a rank, so that the order in which
    items were written says nothing.
    """
    scores: dict[int, float] = {}
    for ranking in rankings:
        rank, last = 0, None
        for place, (number, score) in enumerate(ranking.items(), 1):
            rounded = round(score, DIGITS)
            if rounded != last:
                rank, last = place, rounded
            scores[number] = scores.get(number, 0.0) + 1 / (SMOOTHING + rank)
    return scores
