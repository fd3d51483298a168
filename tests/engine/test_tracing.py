"""Traces lead from the producer through HTTP to the handler."""

import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock import InvalidJob, NewJob, Penstock, RetryPolicy, Worker
from penstock.apps import events
from penstock.server.app import Service

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What was traced; the provider is this test's alone."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    (found,) = [span for span in spans.get_finished_spans() if span.name == name]
    return found


def ids(span: ReadableSpan) -> tuple[str, str]:
    context = span.get_span_context()
    assert context is not None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


async def test_handler_continues_the_trace_of_the_producer(spans: InMemorySpanExporter) -> None:
    app = Penstock("memory://")
    inside: list[int] = []

    def note() -> None:
        inside.append(trace.get_current_span().get_span_context().span_id)

    app.task("in_thread", note)

    @app.task(retry=RetryPolicy(attempts=1))
    async def broken() -> None:
        note()
        raise ValueError("no such thing")

    async with app:
        with trace.get_tracer("test").start_as_current_span("produce"):
            await app.enqueue("in_thread")
            await broken.enqueue()
        await Worker(app).run(until_empty=True)
    producer = named(spans, "produce")
    for name in ("run in_thread", "run broken"):
        span = named(spans, name)
        assert ids(span)[0] == ids(producer)[0]
        assert span.parent is not None
        assert f"{span.parent.span_id:016x}" == ids(producer)[1]
        assert span.kind is trace.SpanKind.CONSUMER
        assert span.context.span_id in inside
    assert named(spans, "run in_thread").status.is_ok
    assert named(spans, "run broken").status.description == "ValueError: no such thing"


async def test_request_continues_the_trace_of_its_caller(spans: InMemorySpanExporter) -> None:
    app = Penstock("memory://")
    service = Service(app, [events.install(app, events.Settings())])
    transport = httpx.ASGITransport(service)
    async with app, httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        await http.post(
            "/events", json={"title": "x", "tags": "a"}, headers={"traceparent": PARENT}
        )
        server = named(spans, "POST /events")
        assert ids(server)[0] == TRACE_ID
        assert server.parent is not None
        assert f"{server.parent.span_id:016x}" == SPAN_ID
        picked = await http.get("/events/subscribe", params={"tags": "a", "worker_id": "w"})
        assert picked.headers["traceparent"] == f"00-{TRACE_ID}-{ids(server)[1]}-01"


@pytest.mark.parametrize("header", ["", "x", "00-1-2-3", PARENT.upper(), "é"])
async def test_wrong_header_begins_a_trace_of_its_own(
    header: str, spans: InMemorySpanExporter
) -> None:
    app = Penstock("memory://")
    service = Service(app, [events.install(app, events.Settings())])
    transport = httpx.ASGITransport(service)
    async with app, httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        answer = await http.get("/events", headers={b"traceparent": header.encode()})
    assert answer.status_code == 200
    assert named(spans, "GET /events").parent is None


async def test_without_a_span_there_is_no_trace() -> None:
    async with Penstock("memory://") as app:
        (job,) = await app.enqueue_many([NewJob(task="t", payload="{}")])
    assert job.trace is None


async def test_wrong_trace_is_refused() -> None:
    async with Penstock("memory://") as app:
        with pytest.raises(InvalidJob, match="traceparent"):
            await app.enqueue_many([NewJob(task="t", payload="{}", trace="x")])


def test_penstock_does_not_import_opentelemetry() -> None:
    program = "import sys, penstock; assert 'opentelemetry' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
