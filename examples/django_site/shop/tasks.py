"""What happens after an order."""

from datetime import timedelta

from django.db import connection, transaction

from penstock import RetryPolicy, context

from .models import Order

try:
    from django.tasks import task
except ImportError:  # Django 5.2
    from django_tasks import task


@task
def confirm(order: int) -> None:
    """Confirm an order; its row and the end of the job are one transaction."""
    with transaction.atomic():
        Order.objects.filter(pk=order).update(confirmed=True)
        context().finish(connection=connection)


confirm = confirm.using(retry=RetryPolicy(attempts=5, delay=timedelta(seconds=2)))
