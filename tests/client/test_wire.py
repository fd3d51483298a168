"""The client raises the error that the server had."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from penstock.client.wire import Reply, Request, error_of
from penstock.core.errors import (
    ConfigurationError,
    EmbedderUnavailable,
    EmbeddingRefused,
    IndexUnavailable,
    InvalidJob,
    JobFailed,
    JobNotFound,
    LeaseLost,
    Overtaken,
    PayloadTooLarge,
    PenstockError,
    QueueFull,
    QueueInUse,
    ScheduleNotFound,
    SchemaMismatch,
    ServerUnreachable,
    StoreError,
    StoreMoved,
    StoreUnavailable,
    TooManyQueues,
    TransitionRefused,
    UnknownTask,
    Unreadable,
)
from penstock.web.problems import STATUSES, Problem, problem_of

SERVER = "http://server"
POST = Request("POST", "/x")

# What the server had, and what the client raises: the same, or the nearest class it can know of.
ERRORS: list[tuple[PenstockError, type[PenstockError]]] = [
    (ConfigurationError("no such setting"), ConfigurationError),
    (InvalidJob("the key is too long"), ConfigurationError),
    (Unreadable("args.x", "is nested too deeply"), ConfigurationError),
    (PayloadTooLarge("the arguments are too large"), PayloadTooLarge),
    (UnknownTask("no task is called x"), JobNotFound),
    (JobNotFound("there is no job 7"), JobNotFound),
    (ScheduleNotFound("there is no schedule x"), JobNotFound),
    (QueueFull("it's 'mail'", 3, timedelta(seconds=1)), QueueFull),
    (TooManyQueues(12), TooManyQueues),
    (QueueInUse("mail", 4), QueueInUse),
    (TransitionRefused("the job is done"), TransitionRefused),
    (Overtaken("it has changed"), TransitionRefused),
    (LeaseLost(7, 9), TransitionRefused),
    (EmbeddingRefused("too many texts"), ConfigurationError),
    (EmbedderUnavailable("it is busy"), StoreUnavailable),
    (IndexUnavailable("it is locked"), StoreUnavailable),
    (StoreError("the file is damaged"), StoreError),
    (StoreUnavailable("it is locked"), StoreUnavailable),
    (SchemaMismatch("it has to be migrated"), StoreUnavailable),
    (StoreMoved("it has moved"), StoreUnavailable),
    (PenstockError("something else"), StoreError),
]


def rebuilt(problem: Problem, request: Request = POST) -> PenstockError:
    content = msgspec.json.encode(problem.body)
    reply = Reply(problem.status, content, problem.headers.get("Retry-After"))
    return error_of(request, reply, SERVER)


@pytest.mark.parametrize(("error", "kind"), ERRORS, ids=lambda value: type(value).__name__)
def test_every_error_of_the_engine_arrives(error: PenstockError, kind: type[PenstockError]) -> None:
    found = rebuilt(problem_of(error))
    assert type(found) is kind
    assert str(error) in str(found)
    if kind is type(error):
        assert vars(found) == vars(error)


def test_every_error_with_a_status_is_tried() -> None:
    assert {type(error) for error, _ in ERRORS} >= STATUSES.keys() - {JobFailed}  # it has a job


@pytest.mark.parametrize(
    ("request_", "status", "kind"),
    [
        (Request("POST", "/x", invalid=InvalidJob), 422, InvalidJob),
        (Request("POST", "/x", invalid=InvalidJob), 400, InvalidJob),
        (Request("POST", "/x", conflict=lambda _: LeaseLost(7, 9)), 409, LeaseLost),
        (POST, 429, StoreUnavailable),  # too many requests, not a full queue
        (POST, 501, ConfigurationError),
        (POST, 502, ServerUnreachable),
        (POST, 418, StoreError),
    ],
)
def test_a_request_says_what_its_statuses_mean(
    request_: Request, status: int, kind: type[PenstockError]
) -> None:
    assert type(rebuilt(Problem(status, "no"), request_)) is kind


@pytest.mark.parametrize(
    "body",
    [
        {"detail": "Not Found"},  # of another framework
        {"detail": "there is no route GET /x; …", "routes": "/openapi.json"},
        {"error": "no"},
        ["no"],
    ],
)
def test_a_server_without_the_route_is_not_one_without_the_job(body: Any) -> None:
    found = error_of(Request("GET", "/x"), Reply(404, msgspec.json.encode(body)), SERVER)
    assert type(found) is StoreError
    assert "is that its address?" in str(found)
