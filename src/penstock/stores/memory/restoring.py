"""Takes over jobs of other stores: decides what each becomes here, before anything is changed."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from penstock.core.job import Edge, JobId, LogEntry, LogId, OnFailure, Origin, Record
from penstock.core.lifecycle import Event, State
from penstock.core.note import Notes
from penstock.stores.memory.batch import Batch
from penstock.stores.memory.content import Content
from penstock.stores.memory.draft import Draft


class Restoring:
    """Records on their way into the store."""

    def __init__(self, content: Content, now: datetime, origin: Origin, actor: str) -> None:
        self._content = content
        self._draft = Draft(content, now, actor)
        self._draft.last_log = max(content.last_log, origin.last_log)
        self._now = now
        self._origin = origin
        self._actor = actor
        self._last_job = content.last_job
        self._places: dict[JobId, JobId] = {}
        # Who has to hear that a job it waits for has ended here: itself, that job, how, what then.
        self._lost: list[tuple[JobId, JobId, State, OnFailure]] = []

    def batch(self, notes: Mapping[JobId, Notes]) -> Batch:
        """All that was taken, with what those jobs have said."""
        for news in self._lost:
            self._draft.tell(*news)
        return replace(
            self._draft.batch(),
            origins=[(self._origin.source, *place) for place in self._places.items()],
            last_job=self._origin.last_job,
            last_log=self._draft.last_log,
            kept={
                place: notes[original]
                for original, place in self._places.items()
                if original in notes
            },
        )

    def take(self, record: Record) -> JobId | None:
        """The id that a job gets here; None if it is not taken."""
        job = record.job
        held = job.state is State.PENDING and self._draft.is_held(job)
        if held or self._place(job.id) is not None:
            return None
        self._last_job = max(self._last_job + 1, job.id)
        place = JobId(self._last_job)
        self._places[job.id] = place
        numbers: dict[int, int] = {entry.id: self._next_log() for entry in record.log}
        version = LogId(self._next_log())
        self._draft.entries += [
            replace(
                entry,
                id=LogId(numbers[entry.id]),
                job_id=place,
                token=None if entry.token is None else numbers.get(entry.token),
            )
            for entry in record.log
        ]
        self._draft.entries.append(
            LogEntry(
                id=version,
                job_id=place,
                at=self._now,
                event=Event.RESTORED,
                state=job.state,
                actor=self._actor,
                reason=f"job {job.id} of store {self._origin.source}",
            )
        )
        self._draft.put(
            replace(
                job,
                id=place,
                version=version,
                token=numbers.get(job.token, 0),
                parent=None if job.parent is None else self._place(job.parent),
                duplicate=False,
            ),
        )
        return place

    def link(self, records: Sequence[Record], places: Sequence[JobId | None]) -> None:
        """Let those that were taken wait for what they waited for."""
        for record, place in zip(records, places, strict=True):
            if place is not None and record.edges:
                self._draft.put(self._draft.jobs[place], self._edges(record, place))

    def _edges(self, record: Record, place: JobId) -> list[Edge]:
        """What the job waits for here: of the jobs it waited for, those that came along."""
        edges: list[Edge] = []
        for edge in record.edges:
            needed = self._place(edge.needed)
            job = None if needed is None else self._draft.get(needed)
            if job is not None and not edge.resolved:
                over = job.state.final
                edges.append(replace(edge, needed=job.id, job_id=place, resolved=over))
                if over:
                    self._lost.append((place, job.id, job.state, edge.on_failure))
        return edges

    def _place(self, original: JobId) -> JobId | None:
        """Where a job of that source has gone to."""
        if original in self._places:
            return self._places[original]
        source = (self._origin.source, original)
        if source in self._content.origins:
            return self._content.origins[source]
        own = self._origin.source == self._content.source
        return original if own and self._draft.get(original) is not None else None

    def _next_log(self) -> int:
        self._draft.last_log += 1
        return self._draft.last_log
