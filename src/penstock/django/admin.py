"""The admin: jobs, queues and schedules, by the permissions of Django.

Everything is read and changed through the API of Penstock, so that the rules of the queue hold,
and its log names the user.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from penstock.core.errors import JobNotFound, PenstockError
from penstock.core.job import Job as StoredJob
from penstock.core.job import headline
from penstock.core.lifecycle import State, Waiting
from penstock.core.query import JobQuery
from penstock.core.queue import QueueQuery, QueueStatus
from penstock.django import results
from penstock.django.backend import PenstockBackend, backends
from penstock.django.models import Job, Queue, Schedule
from penstock.engine.connection import acting_as
from penstock.engine.penstock import Penstock, run_sync

PAGE = 100
"""How many jobs or queues a page shows."""
_TEXT_LIMIT = 200
_STAGES = (
    (State.PENDING, Waiting.READY),
    (State.PENDING, Waiting.SCHEDULED),
    (State.PENDING, Waiting.BLOCKED),
    (State.RUNNING, None),
    (State.FAILED, None),
)

Act = Callable[[Penstock, str], Coroutine[Any, Any, Any]]
"""Does something with what an id or a name stands for."""


class PenstockAdmin(admin.ModelAdmin):
    """A list that comes from the queue, and actions on what is selected in it."""

    acts: Mapping[str, Act] = {}

    def get_urls(self) -> list[Any]:
        """Leave these views out of `ATOMIC_REQUESTS`.

        The queue writes on connections of its own: on SQLite it would wait for the transaction of
        the request, which waits for the queue.
        """
        urls: list[Any] = super().get_urls()
        for url in urls:
            for alias in connections:
                transaction.non_atomic_requests(using=alias)(url.callback)
        return urls

    def has_add_permission(self, request: Any) -> bool:  # noqa: ARG002 - Django's signature
        """Nothing is added here: programs enqueue jobs and declare schedules."""
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002
        """Nothing is deleted here: retention removes finished jobs."""
        return False

    def get_object(self, request: Any, object_id: str, from_field: Any = None) -> None:
        """Find nothing: Django's own views would read a table that PostgreSQL does not have."""

    def changelist_view(self, request: Any, extra_context: Any = None) -> HttpResponse:
        """Show the list, or do what was requested with the selected rows."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        backend = _backend(request)
        if request.method == "POST":
            return self._act(request, backend, request.POST.getlist("selected"))
        context = {
            **self._context(request, backend),
            "title": str(self.opts.verbose_name_plural).capitalize(),
            "backends": [one.alias for one in backends()],
            **self.listed(request, backend.penstock),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/penstock/list.html", context)

    def listed(self, request: Any, app: Penstock) -> dict[str, Any]:
        """Return what the page shows: `columns`, and `rows` with an `id` and `cells` each."""
        raise NotImplementedError

    def _context(self, request: Any, backend: PenstockBackend) -> dict[str, Any]:
        may_change = self.has_change_permission(request)
        return {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "backend": backend.alias,
            "acts": list(self.acts) if may_change else [],
        }

    def _act(self, request: Any, backend: PenstockBackend, selected: list[str]) -> HttpResponse:
        act = self.acts.get(request.POST.get("action", ""))
        if act is None or not self.has_change_permission(request):
            raise PermissionDenied
        done = 0
        with acting_as(f"{request.user.get_username()} in the admin"):
            for one in selected[:PAGE]:
                try:
                    run_sync(act(backend.penstock, one))
                    done += 1
                except (PenstockError, ValueError) as error:
                    messages.error(request, f"{one}: {error}"[:_TEXT_LIMIT])
        if done:
            messages.success(request, f"{request.POST['action'].capitalize()}: {done}")
        return HttpResponseRedirect(request.get_full_path())


def _backend(request: Any) -> PenstockBackend:
    """Return the backend that the address names, or the first one."""
    known = {backend.alias: backend for backend in backends()}
    found = known.get(request.GET.get("backend") or next(iter(known), ""))
    if found is None:
        raise Http404("TASKS has no such backend of Penstock")
    return found


@admin.register(Job)
class JobAdmin(PenstockAdmin):
    """Jobs: the newest first, by state, queue and task."""

    acts: Mapping[str, Act] = {
        "retry": lambda app, job: app.retry(_job_id(job), "retried in the admin"),
        "cancel": lambda app, job: app.cancel(_job_id(job), "cancelled in the admin"),
    }

    def listed(self, request: Any, app: Penstock) -> dict[str, Any]:
        """List the jobs that the query of the address selects."""
        given = {name: request.GET.get(name, "") for name in ("state", "queue", "task")}
        after = request.GET.get("after", "")
        states = {State(given["state"])} if given["state"] in list(State) else None
        found = run_sync(
            app.find(
                JobQuery(
                    states=states,
                    queue=given["queue"] or None,
                    task=given["task"] or None,
                    after=results.job_id(after),
                    limit=PAGE,
                )
            )
        )
        more = {**given, **_kept(request), "after": found[-1].id if found else ""}
        return {
            "columns": ["Job", "Task", "Queue", "State", "Attempt", "Enqueued", "Error"],
            "rows": [
                {
                    "id": job.id,
                    "url": _address(job.id, request),
                    "cells": [
                        job.id,
                        job.task,
                        job.queue,
                        job.state.value,
                        f"{job.attempt} of {job.retry.attempts}",
                        job.enqueued_at,
                        headline(job.error)[:_TEXT_LIMIT],
                    ],
                }
                for job in found
            ],
            "filters": given,
            "states": [state.value for state in State],
            "more": urlencode(more) if len(found) == PAGE else "",
        }

    def change_view(
        self, request: Any, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show one job with its log, or do what was requested with it."""
        del form_url
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        backend = _backend(request)
        if request.method == "POST":
            return self._act(request, backend, [object_id])
        job = _found(backend.penstock, object_id)
        context = {
            **self._context(request, backend),
            "title": f"Job {job.id}",
            "job": job,
            "fields": _fields(backend.penstock, job),
            "log": run_sync(backend.penstock.log(job.id)),
            "lines": run_sync(backend.penstock.lines(job.id)),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/penstock/job.html", context)


def _kept(request: Any) -> dict[str, str]:
    """Return what further addresses keep of this one."""
    return {"backend": request.GET["backend"]} if request.GET.get("backend") else {}


def _address(job_id: int, request: Any) -> str:
    query = f"?{urlencode(kept)}" if (kept := _kept(request)) else ""
    return f"{reverse('admin:penstock_job_change', args=[job_id])}{query}"


def _found(app: Penstock, object_id: str) -> StoredJob:
    try:
        return app.secrets.shown(run_sync(app.get(_job_id(object_id))))
    except JobNotFound:
        raise Http404(f"there is no job {object_id}") from None


def _job_id(text: str) -> int:
    found = results.job_id(text)
    if found is None:
        raise JobNotFound(f"there is no job {text}")
    return found


def _fields(app: Penstock, job: StoredJob) -> dict[str, Any]:
    """Return what a page shows of a job, by its title."""
    shown = {
        "Task": job.task,
        "Queue": job.queue,
        "State": job.state.value,
        "Why": run_sync(app.explain(job.id)).text,
        "Attempt": f"{job.attempt} of {job.retry.attempts}",
        "Arguments": job.payload,
        "Result": job.result_json,
        "Enqueued": job.enqueued_at,
        "Due": job.run_at,
        "Started": job.started_at,
        "Finished": job.finished_at,
        "Worker": job.worker,
        "Key": job.key,
        "Dedupe": job.dedupe,
        "Tags": ", ".join(job.tags),
        "Error": job.error,
    }
    return {title: value for title, value in shown.items() if value not in (None, "")}


def _counts(status: QueueStatus) -> list[int]:
    """Return how many jobs a queue has in each of the stages that its page shows."""
    return [status.counts.get(stage, 0) for stage in _STAGES]


@admin.register(Queue)
class QueueAdmin(PenstockAdmin):
    """Queues: how many jobs each has, and whether it is paused."""

    acts: Mapping[str, Act] = {
        "pause": lambda app, queue: app.queues.pause(queue),
        "resume": lambda app, queue: app.queues.resume(queue),
    }

    def listed(self, request: Any, app: Penstock) -> dict[str, Any]:
        """List the queues by name."""
        query = QueueQuery(after=request.GET.get("after") or None, limit=PAGE)
        found = run_sync(app.queues.statuses(query))
        more = {**_kept(request), "after": found[-1].queue.name if found else ""}
        return {
            "columns": ["Queue", "Paused", "Ready", "Scheduled", "Blocked", "Running", "Failed"],
            "rows": [
                {"id": one.queue.name, "cells": [one.queue.name, one.queue.paused, *_counts(one)]}
                for one in found
            ],
            "more": urlencode(more) if len(found) == PAGE else "",
        }


@admin.register(Schedule)
class ScheduleAdmin(PenstockAdmin):
    """Schedules: when each runs next."""

    acts: Mapping[str, Act] = {
        "pause": lambda app, schedule: app.schedules.pause(schedule),
        "resume": lambda app, schedule: app.schedules.resume(schedule),
        "run now": lambda app, schedule: app.schedules.run_now(schedule),
    }

    def listed(self, request: Any, app: Penstock) -> dict[str, Any]:
        """List the schedules by name."""
        del request
        return {
            "columns": ["Schedule", "Runs", "Paused", "Next", "Last", "Task"],
            "rows": [
                {
                    "id": one.name,
                    "cells": [one.name, one.spec, one.paused, one.next, one.last, one.task],
                }
                for one in run_sync(app.schedules.list())
            ],
        }
