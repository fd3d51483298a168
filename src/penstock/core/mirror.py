"""Rows of an application that follow its jobs."""

import msgspec


class Mirror(msgspec.Struct, frozen=True, kw_only=True):
    """One SQL statement that the store runs with every change of a job of one queue.

    It runs inside the transaction of the change, whoever makes it, and finds the changed job as
    `NEW`: `NEW.id`, `NEW.stage` (0 ready, 1 scheduled, 2 blocked, 3 running, 4 done, 5 failed, 6
    cancelled, 7 superseded), `NEW.attempt`, `NEW.token`, `NEW.worker`, `NEW.priority`,
    `NEW.run_at`, `NEW.started_at`, `NEW.expires_at`, `NEW.finished_at` (microseconds since 1970),
    `NEW.error`. A statement that fails makes the change fail.

    `removed` runs when a job is removed, which is `OLD` then.
    """

    name: str
    queue: str
    sqlite: str
    postgres: str
    removed: str | None = None


WATCHED = (
    "stage", "version", "attempt", "token", "run_at", "started_at", "expires_at", "finished_at",
    "worker", "priority", "error",
)  # fmt: skip
"""The columns of a job whose change is a change of the job."""


def quoted(text: str) -> str:
    """A text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"
