"""Tasks in transactions of Django: enqueued if and only if the transaction commits."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.test import Client

from penstock import run_sync
from penstock.django.framework import TaskResultDoesNotExist
from tests.django.project.shop.models import Order
from tests.django.project.shop.tasks import add, backend, handle

pytestmark = pytest.mark.every_store


def jobs() -> list[int]:
    """The ids of all jobs that others can see."""
    return sorted(job.id for job in run_sync(backend().penstock.find()))


@contextmanager
def rolled_back() -> Iterator[None]:
    """A transaction, or a savepoint in one, that an error ends."""
    with suppress(ZeroDivisionError), transaction.atomic():
        yield
        raise ZeroDivisionError


def test_task_exists_when_the_transaction_commits(site: Any) -> None:
    with transaction.atomic():
        result = add.enqueue(1, 2)
        assert jobs() == []
    assert jobs() == [int(result.id)]
    site.work()
    result.refresh()
    assert result.return_value == 3


def test_task_is_gone_when_the_transaction_rolls_back(site: Any) -> None:
    with rolled_back():
        Order.objects.create(item="tea")
        result = add.enqueue(1, 2)
    assert jobs() == []
    assert Order.objects.count() == 0
    with pytest.raises(TaskResultDoesNotExist):
        add.get_result(result.id)


def test_task_without_a_transaction_exists_at_once(site: Any) -> None:
    result = add.enqueue(1, 2)
    assert jobs() == [int(result.id)]


def test_savepoint_that_rolls_back_takes_its_tasks_with_it(site: Any) -> None:
    with transaction.atomic():
        kept = add.enqueue(1, 2)
        with rolled_back():
            add.enqueue(3, 4)
            with transaction.atomic():
                add.enqueue(5, 6)
        with transaction.atomic():
            nested = add.enqueue(7, 8)
    assert jobs() == [int(kept.id), int(nested.id)]


def test_result_can_be_read_inside_the_transaction_until_a_savepoint_rolls_back(site: Any) -> None:
    with transaction.atomic():
        with rolled_back():
            lost = add.enqueue(1, 2)
            assert add.get_result(lost.id).args == [1, 2]
        with pytest.raises(TaskResultDoesNotExist):
            add.get_result(lost.id)
        kept = add.enqueue(3, 4)
        kept.refresh()
        assert kept.status == "READY"


@pytest.mark.parametrize("fails", [False, True])
def test_request_with_its_task_is_all_or_nothing(site: Any, fails: bool) -> None:
    connections.settings["default"]["ATOMIC_REQUESTS"] = True
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    client = Client(raise_request_exception=False)
    answer = client.get("/buy/", {"fail": "1"} if fails else {})
    assert answer.status_code == (500 if fails else 200)
    assert (Order.objects.count(), len(jobs())) == ((0, 0) if fails else (1, 1))
    site.work()
    assert [order.handled for order in Order.objects.all()] == ([] if fails else [1])


def test_broken_transaction_takes_no_task(site: Any) -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(TransactionManagementError):
            add.enqueue(1, 2)
    assert jobs() == []


def test_transaction_without_atomic_is_joined(site: Any) -> None:
    transaction.set_autocommit(False)
    try:
        add.enqueue(1, 2)
        assert jobs() == []
        transaction.rollback()
        kept = add.enqueue(3, 4)
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert jobs() == [int(kept.id)]


async def test_enqueue_in_an_event_loop_is_refused_as_any_query(site: Any) -> None:
    with pytest.raises(SynchronousOnlyOperation):
        add.enqueue(1, 2)


def test_job_ends_in_the_transaction_of_its_task(site: Any) -> None:
    order = Order.objects.create(item="tea")
    result = handle.enqueue(order.pk)
    site.work()
    result.refresh()
    order.refresh_from_db()
    assert (result.status, order.handled) == ("SUCCESSFUL", 1)
