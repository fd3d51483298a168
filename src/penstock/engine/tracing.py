"""OpenTelemetry traces: from the producer of a job, through HTTP, to its handler.

Nothing here imports OpenTelemetry: a program that traces has imported it, and has set up a
provider. In others, all of this costs one look into a dictionary.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from penstock.core.job import Job, headline
from penstock.core.lifecycle import Failed, Outcome
from penstock.engine.validation import is_trace

_OFF: AbstractContextManager[Any] = nullcontext()
_NAME = "penstock"


def current_trace() -> str | None:
    """Return the W3C traceparent of the current span; None if there is none."""
    api = _api()
    if api is None:
        return None
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def tracing_request(
    method: str, route: str, headers: Iterable[tuple[bytes, bytes]]
) -> AbstractContextManager[Any]:
    """Return a span for serving a request, which continues the caller's trace."""
    api = _api()
    if api is None or current_trace() is not None:  # there is a span for it already
        return _OFF
    given = dict(headers).get(b"traceparent", b"").decode("latin-1")
    trace = given if is_trace(given) else None
    attributes = {"http.request.method": method, "http.route": route}
    return _span(api, f"{method} {route}", api.SpanKind.SERVER, trace, attributes)


def tracing_run(job: Job) -> AbstractContextManager[Any]:
    """Return a span for running a job, which continues the trace of its producer."""
    api = _api()
    if api is None:
        return _OFF
    attributes = {
        "messaging.system": _NAME,
        "messaging.destination.name": job.queue,
        "messaging.message.id": str(job.id),
        "penstock.task": job.task,
        "penstock.attempt": job.attempt,
    }
    return _span(api, f"run {job.task}", api.SpanKind.CONSUMER, job.trace, attributes)


def note_outcome(span: Any, outcome: Outcome) -> None:
    """Mark a span of `tracing_run` as failed if the run has failed."""
    if span is not None and isinstance(outcome, Failed):
        api = sys.modules["opentelemetry.trace"]
        span.set_status(api.Status(api.StatusCode.ERROR, headline(outcome.error)))


def _api() -> Any:
    """Return OpenTelemetry's module for traces, if a provider is set up."""
    api = sys.modules.get("opentelemetry.trace")
    # FastAPI imports it in every server: asking it for the provider would cost 4 µs a request.
    # If it keeps the provider elsewhere, spans have no effect, as without a provider.
    if api is None or getattr(api, "_TRACER_PROVIDER", api) is None:
        return None
    return api


@contextmanager
def _span(
    api: Any, name: str, kind: Any, trace: str | None, attributes: dict[str, Any]
) -> Iterator[Any]:
    parent = None if trace is None else _context_of(api, trace)
    tracer = api.get_tracer(_NAME)
    with tracer.start_as_current_span(
        name, context=parent, kind=kind, attributes=attributes
    ) as span:
        yield span


def _context_of(api: Any, trace: str) -> Any:
    """Return the context that a traceparent names."""
    _, trace_id, span_id, flags = trace.split("-")
    context = api.SpanContext(
        int(trace_id, 16),
        int(span_id, 16),
        is_remote=True,
        trace_flags=api.TraceFlags(int(flags, 16)),
    )
    return api.set_span_in_context(api.NonRecordingSpan(context))
