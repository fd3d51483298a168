"""External changes: jobs that were added or ended outside of this package.

Callers' own transactions and other programs add and end jobs without looking at other jobs. Every
transaction with an exclusive lock first links them to the others; from then on they are like any
job. Rows that other programs inserted become jobs before that, and before anyone reads.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.core.dependencies import new_edges, orphans
from penstock.core.job import Job, OnFailure
from penstock.core.lifecycle import State, abandon, supersede
from penstock.core.transition import Change
from penstock.stores.sql import edges
from penstock.stores.sql.database import Reader, Transaction
from penstock.stores.sql.dedupe import holder_of
from penstock.stores.sql.rows import STAGES, EdgeRow, edge_row, encoded
from penstock.stores.sql.transitions import Transitions

_needed = msgspec.json.Decoder(list[tuple[int, int]])


class ExternalChange(NamedTuple):
    """A job that was added or ended so; a row of the table `arrival`."""

    job_id: int
    ended: bool
    actor: str
    key: str | None
    needed: str | None
    on_failure: str | None
    state: str | None


def import_rows(tx: Transaction, calls: Sequence[None] = ()) -> list[None]:
    """Make jobs of the rows that other programs inserted."""
    if tx.execute("import_external_rows").fetchone()[0]:
        tx.written = tx.notify = tx.notify_others = True
    return list(calls)


def any_rows(reader: Reader) -> bool:
    """Return whether other programs inserted rows that are no jobs yet."""
    return bool(reader.execute("external_rows").fetchone()[0])


def handle(tx: Transaction) -> None:
    """Write what such jobs mean for others, and others for them."""
    found = [ExternalChange(*row) for row in tx.execute("external_changes").fetchall()]
    if found:
        _Handling(tx).handle(
            [one for one in found if not one.ended], [one for one in found if one.ended]
        )


class _Handling:
    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._edges: list[EdgeRow] = []
        self._linked: dict[int, int] = {}
        self._keys: set[str] = set()
        self._changes: list[tuple[Change, str]] = []

    def handle(self, added: Sequence[ExternalChange], ended: Sequence[ExternalChange]) -> None:
        jobs: dict[int, Job] = {job.id: job for job in self._tx.jobs([one.job_id for one in added])}
        # Earlier jobs have the first claim to a dedupe key, then the one with the lower id.
        behind = set(jobs)
        states = self._states(added)
        for one in added:
            job = jobs.get(one.job_id)
            if job is None or job.state is not State.PENDING:
                continue
            rival = self._rival(job, behind)
            if rival is None:
                behind.discard(job.id)
                self._take(job, one, states)
            else:
                self._changes.append((Change(job, supersede(job, rival)), one.actor))
        self._write(ended)

    def _rival(self, job: Job, behind: Collection[int]) -> int | None:
        if job.dedupe is None:
            return None
        return holder_of(self._tx, job.dedupe, job.scope, behind)

    def _states(self, added: Sequence[ExternalChange]) -> dict[int, State]:
        """Return the states of the jobs that these wait for; of a removed one, the last known."""
        pairs = [pair for one in added if one.needed for pair in _needed.decode(one.needed)]
        if not pairs:
            return {}
        known = {needed: STAGES[stage][0] for needed, stage in pairs}
        found: list[Any] = self._tx.execute("stages", (encoded(list(known)),)).fetchall()
        now = {job_id: STAGES[stage][0] for job_id, stage in found}
        return {
            needed: now.get(needed, state if state.final else State.CANCELLED)
            for needed, state in known.items()
        }

    def _take(self, job: Job, one: ExternalChange, states: dict[int, State]) -> None:
        ids = [needed for needed, _ in _needed.decode(one.needed)] if one.needed else []
        needed = {needed: states[needed] for needed in ids}
        on_failure = OnFailure(one.on_failure or OnFailure.CANCEL)
        found = [edge_row(edge) for edge in new_edges(job.id, needed, on_failure)]
        self._edges += found
        self._linked[job.id] = sum(not resolved for *_, resolved in found)
        if job.key is not None:
            self._keys.add(job.key)
        for cause in orphans(
            dict[int, State](needed.items()), [edge[:3] for edge in found]
        ).values():
            self._changes.append((Change(job, abandon(job, *cause)), one.actor))

    def _write(self, ended: Sequence[ExternalChange]) -> None:
        tx = self._tx
        tx.execute("link_external_jobs", (encoded(list(self._linked.items())),))
        if self._edges:
            edges.write(tx, self._edges)
        done = [one.job_id for one in ended if one.state is None]
        if done:
            tx.execute("clear_checkpoints", (encoded(done),))
        transitions = Transitions(tx)
        transitions.look_up([change.job.id for change, _ in self._changes])
        for change, actor in self._changes:
            transitions.call([change], actor)
        transitions.add_external(
            self._linked,
            {one.job_id: (State(one.state or State.DONE), one.actor) for one in ended},
            self._keys | {one.key for one in ended if one.key is not None},
        )
        transitions.write([])
        tx.written = tx.notify = tx.notify_others = True
