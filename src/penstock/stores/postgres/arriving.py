"""Links what came or ended inside transactions of somebody else to the other jobs.

Whoever has the queue alone does so first: from then on, such jobs are as any others. Rows that
other programs have added get their jobs before that, and before anyone reads.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.core.job import Change, Job, OnFailure
from penstock.core.lifecycle import State, abandon, frees, supersede
from penstock.stores.sql.moving import Moving
from penstock.stores.sql.rows import STAGES, encoded
from penstock.stores.sql.transaction import Reading, Transaction

_needed = msgspec.json.Decoder(list[tuple[int, int]])


class Arrival(NamedTuple):
    """A job that came or ended so; see the table."""

    job_id: int
    ended: bool
    actor: str
    key: str | None
    needed: str | None
    on_failure: str | None
    state: str | None


def adopt(tx: Transaction) -> None:
    """Make the jobs of newcomers: rows that other programs have added to a table of ours."""
    if tx.execute("adopt").fetchone()[0]:
        tx.written = tx.ring = tx.ring_others = True


def adopt_beside(tx: Transaction, calls: Sequence[None]) -> list[None]:
    """Do that as a verb, which meets nobody."""
    adopt(tx)
    return list(calls)


def has_newcomers(reading: Reading) -> bool:
    """Whether there are any."""
    return bool(reading.execute("newcomers").fetchone()[0])


def link(tx: Transaction) -> None:
    """Write what these jobs mean for others, and others for them."""
    found = [Arrival(*row) for row in tx.execute("arrived").fetchall()]
    if found:
        _Linking(tx).link(
            [one for one in found if not one.ended], [one for one in found if one.ended]
        )


class _Linking:
    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._edges: list[tuple[int, int, OnFailure, bool]] = []
        self._linked: dict[int, int] = {}
        self._keys: set[str] = set()
        self._changes: list[tuple[Change, str]] = []

    def link(self, came: Sequence[Arrival], ended: Sequence[Arrival]) -> None:
        jobs: dict[int, Job] = {job.id: job for job in self._tx.jobs([one.job_id for one in came])}
        # Those of before have the first claim to a dedupe key, then whoever has the lower id.
        behind = set(jobs)
        states = self._states(came)
        for one in came:
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
        return self._tx.dedupe_holder(job.dedupe, job.scope, but=behind)

    def _states(self, came: Sequence[Arrival]) -> dict[int, State]:
        """The states of the jobs that these wait for; of one that is gone, the last known."""
        pairs = [pair for one in came if one.needed for pair in _needed.decode(one.needed)]
        if not pairs:
            return {}
        known = {needed: STAGES[stage][0] for needed, stage in pairs}
        found: list[Any] = self._tx.execute("stages", (encoded(list(known)),)).fetchall()
        now = {job_id: STAGES[stage][0] for job_id, stage in found}
        return {
            needed: now.get(needed, state if state.final else State.CANCELLED)
            for needed, state in known.items()
        }

    def _take(self, job: Job, one: Arrival, states: dict[int, State]) -> None:
        needed = [needed for needed, _ in _needed.decode(one.needed)] if one.needed else []
        on_failure = OnFailure(one.on_failure or OnFailure.CANCEL)
        self._edges += [(it, job.id, on_failure, states[it].final) for it in needed]
        self._linked[job.id] = sum(not states[it].final for it in needed)
        if job.key is not None:
            self._keys.add(job.key)
        for it in needed:
            run_anyway = on_failure is OnFailure.RUN
            if states[it].final and not frees(states[it], run_anyway=run_anyway):
                self._changes.append((Change(job, abandon(job, it, states[it])), one.actor))
                return

    def _write(self, ended: Sequence[Arrival]) -> None:
        tx = self._tx
        tx.execute("link", (encoded(list(self._linked.items())),))
        if self._edges:
            tx.execute("add_edges", (encoded(self._edges),))
            open_ends = {needed for needed, _, _, resolved in self._edges if not resolved}
            tx.execute("await", (encoded(open_ends),))
        done = [one.job_id for one in ended if one.state is None]
        if done:
            tx.execute("clear_checkpoints", (encoded(done),))
        moving = Moving(tx, tx.now())
        moving.look_up([change.job.id for change, _ in self._changes])
        for change, actor in self._changes:
            moving.call([change], actor)
        moving.arrive(
            self._linked,
            self._keys,
            {one.job_id: (State(one.state or State.DONE), one.actor) for one in ended},
            {one.key for one in ended if one.key is not None},
        )
        moving.write([])
        tx.written = tx.ring = tx.ring_others = True
