"""Verification and repair of a store in a database: the facts for `core.verification`."""

from collections.abc import Collection, Iterator, Sequence
from functools import cache

from penstock.core.job import JobId
from penstock.core.key_line import Queued
from penstock.core.lifecycle import State
from penstock.core.query import JobQuery
from penstock.core.recovery import BackupProgress
from penstock.core.tables import Cursor
from penstock.core.verification import (
    MOST_PROBLEMS,
    Findings,
    Problem,
    Rule,
    Verification,
    check_dedupe,
    check_line,
    check_needs,
    check_waiting,
)
from penstock.stores.sql import jobs, load_queries
from penstock.stores.sql.database import Reader, Transaction
from penstock.stores.sql.dedupe import holdings_of
from penstock.stores.sql.key_lines import rearrange
from penstock.stores.sql.rows import RUNNING, STAGE_OF_WAITING, STAGES, encoded
from penstock.stores.sql.transitions import Transitions

_PORTION = 500
_KEYS_AT_ONCE = 1_000
_WAITING = [*STAGE_OF_WAITING]  # by stage


@cache
def _sql(dialect: str) -> dict[str, str]:
    folder = {"postgresql": "postgres"}.get(dialect, dialect)
    return load_queries(f"penstock.stores.{folder}", "verify.sql")


def verify(reader: Reader, progress: BackupProgress) -> Verification:
    """See `Store.verify`; everything is read at one moment."""
    with reader.snapshot():
        return _Verifier(reader, progress).run()


class _Verifier:
    """Reads a store in portions."""

    def __init__(self, reader: Reader, progress: BackupProgress) -> None:
        self._reader = reader
        self._progress = progress
        self._findings = Findings()
        self._queries = _sql(reader.dialect)

    def run(self) -> Verification:
        """Check everything."""
        total, entries = self._ask("numbers").fetchone()
        self._progress("checking", 0, total)
        broken = self._check_links()
        self._check_strays()
        expected = {row[0] for row in self._ask("expected")}
        last = self._reader.execute("last_ids").fetchone()
        after, done = JobId(0), 0
        while ids := self._page(after):
            after, done = ids[-1], done + len(ids)
            self._check_jobs([one for one in ids if one not in broken], last, expected)
            for job in self._reader.jobs([one for one in ids if one in broken]):
                self._findings.count(job)
            self._progress("checking", min(done, total), total)
        if not broken and self._findings.entries != entries:
            text = f"{entries - self._findings.entries} log entries belong to no chain"
            self._findings.add([Problem(rule=Rule.LOG, text=text)])
        self._check_lines()
        return self._findings.result(jobs.count(self._reader, None))

    def _ask(self, name: str, *parameters: int) -> Cursor:
        return self._reader.execute_sql(self._queries[name], parameters)

    def _page(self, after: JobId) -> list[JobId]:
        query = JobQuery(after=after, newest_first=False, limit=_PORTION)
        return jobs.find_ids(self._reader, query)

    def _check_links(self) -> set[int]:
        """Return the jobs whose logs are broken: following them might never end."""
        broken: set[int] = set()
        for name, text in (
            ("broken_links", "log entry {1} of job {0} does not follow an earlier one"),
            ("wrong_versions", "job {0} has version {1}, which is not in its log"),
        ):
            for job_id, entry in self._ask(name, MOST_PROBLEMS).fetchall():
                broken.add(job_id)
                problem = Problem(rule=Rule.LOG, text=text.format(job_id, entry), job_id=job_id)
                self._findings.add([problem])
        return broken

    def _check_strays(self) -> None:
        for what, job_id in self._ask("strays", MOST_PROBLEMS).fetchall():
            rule = Rule.LOG if what.startswith("log entry") else Rule.ORPHAN
            text = f"{what!s:.80} belongs to job {job_id}, which is gone"
            self._findings.add([Problem(rule=rule, text=text, job_id=job_id)])
        for (job_id,) in self._ask("wrong_tags", MOST_PROBLEMS).fetchall():
            text = f"the tags of job {job_id} are indexed otherwise"
            self._findings.add([Problem(rule=Rule.TAG, text=text, job_id=job_id)])

    def _check_jobs(
        self, ids: Sequence[JobId], last: tuple[int, int], expected: Collection[int]
    ) -> None:
        records = jobs.records_within(self._reader, ids)
        if len(records) < len(ids):
            for missing in sorted(set(ids) - {record.job.id for record in records}):
                text = f"job {missing} cannot be read; its payload is gone"
                self._findings.add([Problem(rule=Rule.LOG, text=text, job_id=missing)])
        needed = sorted({edge.needed for record in records for edge in record.edges})
        states: dict[int, State] = {
            job_id: STAGES[stage][0]
            for job_id, stage in self._reader.execute("stages", (encoded(needed),))
        }
        for record in records:
            self._findings.read(record, last)
            self._findings.add(check_needs(record.job, record.edges, states, expected))
            self._findings.add(check_waiting(record.job, expected))
            if record.job.dedupe is not None and record.job.state is State.PENDING:
                holdings = holdings_of(self._reader, record.job.dedupe)
                self._findings.add(check_dedupe(record.job, holdings))

    def _check_lines(self) -> None:
        now = self._reader.clock()
        for keys in _pages_of_keys(self._reader):
            lines: dict[str, list[Queued[int]]] = {}
            running: dict[str, set[int]] = {}
            found = self._reader.execute("key_lines", (encoded(keys),)).fetchall()
            for key, job_id, stage, needs, run_at in found:
                if stage == RUNNING:
                    running.setdefault(key, set()).add(job_id)
                else:
                    pending = Queued(job_id, _WAITING[stage], needs, run_at)
                    lines.setdefault(key, []).append(pending)
            for key, line in lines.items():
                self._findings.add(check_line(key, line, running.get(key, ()), now))


def _pages_of_keys(reader: Reader) -> Iterator[list[str]]:
    after = None
    while page := jobs.keys(reader, after, _KEYS_AT_ONCE):
        after = page[-1].key
        yield [line.key for line in page]


def repair(tx: Transaction, calls: Sequence[str]) -> list[None]:
    """See `Store.repair`; each call has the actor."""
    for actor in calls:
        _repair_one(tx, actor)
    return [None] * len(calls)


def _repair_one(tx: Transaction, actor: str) -> None:
    tx.require_exclusive()
    queries = _sql(tx.dialect)
    tx.keep_ids()
    tx.run_script(queries["clean"])
    ended = tx.execute_sql(queries["ended_needed"]).fetchall()
    if ended:
        transitions = Transitions(tx)
        transitions.add_external((), {one: (State(state), actor) for one, state in ended}, ())
        transitions.write([])
    blocked = [row[0] for row in tx.execute_sql(queries["blocked_by_nothing"]).fetchall()]
    rearrange(tx, (), blocked)
    for keys in _pages_of_keys(tx):
        rearrange(tx, keys)
    tx.run_script(queries["recount"])
    tx.written = tx.notify = tx.notify_others = True
