"""The tasks of notebooks: thin, over `Runner`. Why running one twice is safe stands there."""

from datetime import timedelta

from penstock import Penstock, RetryPolicy
from penstock.apps.notebooks.errors import Permanent
from penstock.apps.notebooks.operations import KINDS, QUEUE, Kind
from penstock.apps.notebooks.running import Handler, Runner
from penstock.apps.notebooks.settings import Settings


def register(penstock: Penstock, settings: Settings, runner: Runner) -> None:
    """Make the tasks known: one for each kind of operation."""
    handlers: dict[Kind, Handler] = {
        "create": runner.write,
        "update": runner.write,
        "move": runner.move,
        "delete": runner.delete,
        "sync": runner.sync,
        "commit": runner.commit,
    }
    for kind in KINDS:
        penstock.task(
            f"{QUEUE}.{kind}",
            runner.ending(kind, handlers[kind]),
            queue=QUEUE,
            lease=timedelta(seconds=settings.lease),
            retry=RetryPolicy(
                attempts=settings.max_retries, delay=timedelta(seconds=settings.retry_delay)
            ),
            permanent=(Permanent,),
        )
