import asyncio
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.db import connection, transaction
from django.db.models import F

from penstock import Cancel, RetryPolicy, Snooze, context
from penstock.django.framework import task_backends
from tests.django.project.shop.models import Order

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

ONCE = RetryPolicy(attempts=1)
AT_ONCE = RetryPolicy(attempts=3, delay=timedelta(0), jitter=0)


class OutOfTeaError(Exception):
    """An error of this project."""


@task
def add(a: int, b: int) -> int:
    return a + b


@task
async def add_async(a: int, b: int) -> int:
    return a + b


@task(takes_context=True)
def attempt(context: Any, *fail_until: int) -> list[Any]:
    if context.attempt < (fail_until or (0,))[0]:
        raise OutOfTeaError(f"attempt {context.attempt}")
    return [context.attempt, context.task_result.id, len(context.task_result.worker_ids)]


attempt = attempt.using(retry=AT_ONCE)


@task(takes_context=True)
async def attempt_async(context: Any) -> int:
    if context.attempt < 2:
        raise OutOfTeaError
    return int(context.attempt)


attempt_async = attempt_async.using(retry=AT_ONCE)


@task
def fail(message: str = "no tea") -> None:
    raise OutOfTeaError(message)


@task
async def fail_async() -> None:
    raise ValueError("no tea")


@task
def give_up() -> None:
    raise Cancel("not today")


@task
def rest() -> None:
    raise Snooze(timedelta(hours=1))


@task
def return_object() -> Any:
    return object()


@task(priority=7)
def note(path: str, text: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{text}\n")


@task
def handle(order: int) -> None:
    """Handle an order once, whatever happens to the worker: the job ends in its transaction."""
    with transaction.atomic():
        Order.objects.filter(pk=order).update(handled=F("handled") + 1)
        context().finish(connection=connection)


@task
def block(path: str) -> str:
    """Say that it runs, and end when a file is there, or when the worker is killed."""
    Path(path).touch()
    while not Path(f"{path}.go").exists():
        time.sleep(0.01)
    return "went on"


@task
def settings_of_connection() -> Any:
    Order.objects.count()
    return connection.connection is not None


@task
def enqueue_another() -> str:
    result = add.enqueue(3, 4)
    return str(result.id)


@task
def overrun() -> str:
    """Run until it is out of time, and a moment longer; a thread cannot be stopped."""
    while not context().cancelled:
        time.sleep(0.001)
    return "too late"


@task
async def overrun_async() -> None:
    await asyncio.Event().wait()


@task
def overrun_and_notice() -> None:
    while True:
        time.sleep(0.001)
        context().raise_if_cancelled()


await_cancel = overrun_and_notice
await_cancel_async = overrun_async


@task
def return_too_much() -> str:
    return "x" * 1_000_001


@task
def finish_then_fail() -> None:
    with transaction.atomic():
        context().finish("finished", connection=connection)
    raise OutOfTeaError


@task
def finish_and_roll_back() -> str:
    with transaction.atomic():
        context().finish("finished", connection=connection)
        transaction.set_rollback(True)
    return "returned"


@task
def raise_cancelled() -> None:
    raise asyncio.CancelledError


@task
async def raise_cancelled_async() -> None:
    raise asyncio.CancelledError


@task
def tick() -> str:
    return "tock"


tick = tick.using(every=timedelta(hours=1))


def backend() -> Any:
    return task_backends["default"]
