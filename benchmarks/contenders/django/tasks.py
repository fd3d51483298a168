"""The one task of the project."""

from benchmarks.contenders import Handle, Payload

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

handle: Handle = lambda _: True  # noqa: E731 - replaced by whoever works


@task
def noop(payload: Payload) -> None:
    """Do nothing."""
    handle(payload)
