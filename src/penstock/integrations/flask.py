"""An extension of Flask: jobs in the transaction of a request, and handlers with the application.

jobs = FlaskJobs(queue, session=db.session)
jobs.init_app(app)
"""

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from penstock.core.errors import ConfigurationError, PenstockError
from penstock.core.job import Job, NewJob
from penstock.engine.penstock import Penstock, run_sync
from penstock.engine.task import Task, check_owner

if TYPE_CHECKING:
    from flask import Flask
    from sqlalchemy.orm import scoped_session

P = ParamSpec("P")
V = TypeVar("V")
R = TypeVar("R")

NAME = "penstock"
"""The name in `app.extensions`."""


class FlaskJobs:
    """Enqueues jobs for the requests of a Flask application.

    With `session`, the `scoped_session` of the application, a job is stored in the transaction of
    the request, and exists once that is committed; otherwise, in a transaction of its own.
    """

    def __init__(
        self,
        penstock: Penstock,
        app: "Flask | None" = None,
        *,
        session: "scoped_session[Any] | None" = None,
    ) -> None:
        self.penstock = penstock
        self._session = session
        self._app: Flask | None = None
        self._opened_in = 0
        if app is not None:
            self.init_app(app)

    def init_app(self, app: "Flask") -> None:
        """Add this to an application, as `app.extensions["penstock"]`."""
        app.extensions[NAME] = self
        app.before_request(self._open)
        self._app = app

    def _open(self) -> None:
        """Open the store before the first request of this process has a transaction.

        To create or migrate it, the store has to write, and on SQLite it would wait for that very
        transaction. If it does not answer, the request may not need it.
        """
        if self._opened_in != os.getpid():
            with suppress(PenstockError):
                run_sync(self.penstock.newest_log())
            self._opened_in = os.getpid()

    def enqueue(self, task: Task[P, Any, V], /, *args: P.args, **kwargs: P.kwargs) -> Job[V]:
        """Store a job; for options, pass `task.using(…)`."""
        check_owner(task, self.penstock)
        joined = task if self._session is None else task.using(connection=self._session)
        return run_sync(joined.enqueue(*args, **kwargs))

    def enqueue_many(self, jobs: Sequence[NewJob]) -> list[Job]:
        """Store these jobs, all or none, and return them in this order."""
        return run_sync(self.penstock.enqueue_many(jobs, connection=self._session))

    def with_app_context(self, handler: Callable[P, R]) -> Callable[P, R]:
        """Run a handler inside the context of the application: below `@queue.task`.

        `current_app` and extensions such as Flask-SQLAlchemy work in it, and what they opened is
        closed when it ends.
        """
        if inspect.iscoroutinefunction(handler):
            raise ConfigurationError(
                f"{handler.__name__} is a coroutine function: extensions of Flask would block the "
                "event loop; write a plain function, which runs in a thread"
            )

        @functools.wraps(handler)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            if self._app is None:
                raise ConfigurationError(
                    "there is no Flask application in this process: the module that the worker "
                    "imports has to create it and call init_app"
                )
            with self._app.app_context():
                return handler(*args, **kwargs)

        return run
