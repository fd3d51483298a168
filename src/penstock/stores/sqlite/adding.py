"""Adds the jobs of one transaction: decides for each caller, then writes them all at once."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from msgspec.structs import replace

from penstock.core.errors import QueueFull
from penstock.core.job import Job, NewJob
from penstock.core.times import from_micros
from penstock.stores.sqlite import rows
from penstock.stores.sqlite.rows import BLOCKED, READY, SCHEDULED, encoded
from penstock.stores.sqlite.transaction import SQL, Totals, Transaction


class Adding:
    """New jobs on their way into the file."""

    def __init__(self, tx: Transaction, now: int) -> None:
        self._tx = tx
        self._now = now
        self._at = from_micros(now)
        last_job, last_log = tx.execute(SQL["last_ids"]).fetchone()
        self._first, self._first_log = last_job + 1, last_log + 1
        self._n = 0
        # Runs of jobs that differ only in their arguments: the rest of them, and the arguments.
        self._groups: list[tuple[tuple[Any, ...], list[str]]] = []
        self._last: Job | None = None
        self._actors: list[tuple[str, int]] = []
        self._totals: Totals = {}
        self._rooms: dict[str, tuple[int, int] | None] = {}
        self._held_keys: set[str] = set()
        self._deduped: dict[str, Job] = {}

    def look_up_keys(self, keys: Iterable[str]) -> None:
        """Which of these keys already have an unfinished job."""
        if wanted := set(keys):
            found = self._tx.execute(SQL["held_keys"], (encoded(wanted),)).fetchone()[0]
            self._held_keys.update(rows.names.decode(found))

    def call(self, jobs: Sequence[NewJob], actor: str) -> list[Job] | Exception:
        """Take the jobs of one caller, all or none."""
        holders: list[Job | None] = []
        promised: set[str] = set()
        asked: dict[str, int] = {}
        for job in jobs:
            holder = None
            if job.dedupe is not None and job.dedupe not in promised:
                holder = self._holder(job)
                if holder is None:
                    promised.add(job.dedupe)
                    asked[job.queue] = asked.get(job.queue, 0) + 1
            elif job.dedupe is None:
                asked[job.queue] = asked.get(job.queue, 0) + 1
            holders.append(holder)
        for queue, n in asked.items():
            room = self._room(queue)
            if room is not None and n > room[0]:
                return QueueFull(queue, room[1])
        for queue, n in asked.items():
            room = self._rooms[queue]
            self._rooms[queue] = None if room is None else (room[0] - n, room[1])
        self._actors.append((actor, sum(asked.values())))
        return [
            self._take(job)
            if job.dedupe is None
            else self._take_once(job, holder or self._deduped.get(job.dedupe))
            for job, holder in zip(jobs, holders, strict=True)
        ]

    def write(self) -> None:
        """Write every job that was taken."""
        if not self._n:
            return
        n = 0
        for options, payloads in self._groups:
            ids = (self._first + n, self._first_log + n)
            if len(payloads) == 1:
                if options[rows.RARE] == rows.NONE_OF_THEM:
                    self._tx.execute(
                        SQL["add_plain_job"], (*ids, self._now, *options[: rows.RARE.start])
                    )
                else:
                    self._tx.execute(SQL["add_job"], (*ids, self._now, *options))
                self._tx.execute(SQL["add_payload"], (ids[0], payloads[0]))
            else:
                encoded_payloads = encoded(payloads)
                self._tx.execute(SQL["add_jobs"], (encoded_payloads, *ids, self._now, *options))
                self._tx.execute(SQL["add_payloads"], (encoded_payloads, ids[0]))
            n += len(payloads)
        first = self._first
        for actor, group in groupby(self._actors, key=itemgetter(0)):
            n = sum(taken for _, taken in group)
            self._tx.execute(SQL["log_added"], (actor, first, first + n - 1))
            first += n
        self._tx.add_totals(self._totals)
        self._tx.ring = self._tx.ring_others = True

    def _take(self, new: NewJob) -> Job:
        run_at, stage = self._now, READY
        if new.delay is not None or new.run_at is not None:
            run_at = rows.due(new, self._now)
            stage = READY if run_at <= self._now else SCHEDULED
        if new.key is not None:
            if new.key in self._held_keys:
                stage = BLOCKED
            self._held_keys.add(new.key)
        job_id, version = self._first + self._n, self._first_log + self._n
        self._n += 1
        options = rows.options(new, stage, run_at)
        if self._last is not None and options == self._groups[-1][0]:
            self._groups[-1][1].append(new.payload)
            job = replace(self._last, id=job_id, version=version, payload=new.payload)
        else:
            self._groups.append((options, [new.payload]))
            job = rows.new_job(new, job_id, version, stage, run_at, self._at)
        self._last = job
        total = (new.queue, stage)
        self._totals[total] = self._totals.get(total, 0) + 1
        if new.dedupe is not None:
            self._deduped[new.dedupe] = job
        return job

    def _take_once(self, job: NewJob, holder: Job | None) -> Job:
        if holder is None:
            return self._take(job)
        return replace(holder, duplicate=True)

    def _holder(self, job: NewJob) -> Job | None:
        if job.dedupe is None:
            return None
        if job.dedupe in self._deduped:
            return self._deduped[job.dedupe]
        holder = self._tx.dedupe_holder(job.dedupe, job.scope)
        return None if holder is None else self._tx.jobs([holder])[0]

    def _room(self, queue: str) -> tuple[int, int] | None:
        """How many more jobs a queue takes, and its limit; None without a limit."""
        if queue not in self._rooms:
            row = self._tx.execute(SQL["queue"], (queue,)).fetchone()
            if row is None:
                self._tx.execute(SQL["add_queue"], (queue,))
            limit = None if row is None else rows.queue(row).max_pending
            self._rooms[queue] = None
            if limit is not None:
                pending = self._tx.execute(SQL["pending_total"], (queue,)).fetchone()[0]
                self._rooms[queue] = (limit - pending, limit)
        return self._rooms[queue]
