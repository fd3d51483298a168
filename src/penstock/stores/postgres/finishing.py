"""Ends jobs that run here and that no other job depends on, beside whatever else is written."""

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from penstock.core.job import Change, Job, kept_error, moved_fields
from penstock.core.lifecycle import Event, State
from penstock.core.times import from_micros
from penstock.stores.postgres.arrays import Int8s, Texts
from penstock.stores.postgres.transaction import PostgresTransaction
from penstock.stores.sql.rows import STAGE_OF

_FINISHING = {Event.DONE, Event.FAILED, Event.CANCELLED}


def finishes(change: Change) -> bool:
    """Whether a move ends a job that runs, as far as the job itself can tell."""
    job, move = change.job, change.move
    return (
        move.event in _FINISHING
        and move.state.final
        and not move.stays
        and move.successor is None
        and job.state is State.RUNNING
        and job.key is None
        and not job.needs
    )


def finish(
    tx: PostgresTransaction, calls: Sequence[tuple[Sequence[Change], str]]
) -> list[list[Job | None]]:
    """End those jobs; None for each that has moved, or that others wait for.

    Of several calls that end the same run, the first does.
    """
    ended = [(change, actor) for changes, actor in calls for change in changes]
    versions: list[int | None] = []
    for _, group in groupby(ended, key=_way):
        versions += _finish_alike(tx, list(group))
    tx.written = tx.ring = True
    at = from_micros(tx.now())
    given = iter(versions)
    return [[_ended(change, next(given), at) for change in changes] for changes, _ in calls]


def _finish_alike(tx: PostgresTransaction, ended: Sequence[tuple[Change, str]]) -> list[int | None]:
    """End jobs that end in the same way; the new version of each, None if it has moved."""
    moves = [change.move for change, _ in ended]
    move, actor = moves[0], ended[0][1]
    found = tx.execute(
        "finish",
        (
            Int8s([change.job.id for change, _ in ended]),
            Int8s([change.job.version for change, _ in ended]),
            Texts([move.result for move in moves]),
            Texts([move.error for move in moves]),
            Texts([kept_error(change.job, change.move) for change, _ in ended]),
            Texts([move.reason for move in moves]),
            Texts([move.detail for move in moves]),
            tx.now(),
            move.event,
            move.state,
            actor,
            STAGE_OF[move.state],
            move.attempt,
        ),
    ).fetchall()
    if found and found[0][2]:
        tx.freed.update(
            (change.job.queue, change.job.task, change.job.throttle) for change, _ in ended
        )
    versions = {n: number for n, number, _ in found}
    return [versions.get(n) for n in range(1, len(ended) + 1)]


def _way(ended: tuple[Change, str]) -> tuple[Any, ...]:
    """What ends that are written together have in common."""
    change, actor = ended
    move = change.move
    return move.event, move.state, move.attempt, actor


def _ended(change: Change, version: int | None, at: datetime) -> Job | None:
    if version is None:
        return None
    fields = moved_fields(change.move, kept_error(change.job, change.move), at=at, waiting=None)
    return replace(change.job, version=version, **fields)
