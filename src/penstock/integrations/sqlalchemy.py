"""Jobs that are enqueued in the transaction of a SQLAlchemy session, and committed with it.

FastAPI makes them for each request:

    Database = Annotated[AsyncSession, Depends(get_session)]
    Jobs = Annotated[AsyncSessionJobs, Depends(AsyncSessionJobs.dependency(queue, Database))]
"""

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from penstock.core.job import Job, NewJob
from penstock.engine.penstock import Penstock, run_sync
from penstock.engine.task import Task, check_owner

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

P = ParamSpec("P")
V = TypeVar("V")


class SessionJobs:
    """Enqueues in the transaction of a session: the jobs exist once the session is committed.

    The session must be to the database of the store. For synchronous code; in a coroutine, use
    an `AsyncSession` and `AsyncSessionJobs`.
    """

    def __init__(self, penstock: Penstock, session: "Session | scoped_session[Any]") -> None:
        self.penstock = penstock
        self.session = session

    def enqueue(self, task: Task[P, Any, V], /, *args: P.args, **kwargs: P.kwargs) -> Job[V]:
        """Store a job; for options, pass `task.using(…)`."""
        check_owner(task, self.penstock)
        return run_sync(task.using(connection=self.session).enqueue(*args, **kwargs))

    def enqueue_many(self, jobs: Sequence[NewJob]) -> list[Job]:
        """Store these jobs, all or none, and return them in this order."""
        return run_sync(self.penstock.enqueue_many(jobs, connection=self.session))

    @classmethod
    def dependency(cls, penstock: Penstock, session: Any) -> Callable[..., Self]:
        """Return a dependency of FastAPI; `session` is the annotation of the request's session.

        It must be the same that the rest of the request uses, or FastAPI makes another session.
        """
        return _dependency(lambda found: cls(penstock, found), session)


class AsyncSessionJobs:
    """Enqueues in the transaction of an `AsyncSession`: see `SessionJobs`."""

    def __init__(
        self, penstock: Penstock, session: "AsyncSession | async_scoped_session[Any]"
    ) -> None:
        self.penstock = penstock
        self.session = session

    async def enqueue(self, task: Task[P, Any, V], /, *args: P.args, **kwargs: P.kwargs) -> Job[V]:
        """Store a job; for options, pass `task.using(…)`."""
        check_owner(task, self.penstock)
        return await task.using(connection=self.session).enqueue(*args, **kwargs)

    async def enqueue_many(self, jobs: Sequence[NewJob]) -> list[Job]:
        """Store these jobs, all or none, and return them in this order."""
        return await self.penstock.enqueue_many(jobs, connection=self.session)

    @classmethod
    def dependency(cls, penstock: Penstock, session: Any) -> Callable[..., Self]:
        """Return a dependency of FastAPI: see `SessionJobs.dependency`."""
        return _dependency(lambda found: cls(penstock, found), session)


def _dependency(make: Callable[[Any], Any], session: Any) -> Callable[..., Any]:
    """Return a function with the parameter `session`, as its signature says to FastAPI.

    A coroutine function: FastAPI runs others in a thread, for nothing.
    """

    async def dependency(session: Any) -> Any:
        return make(session)

    kind = inspect.Parameter.KEYWORD_ONLY
    parameter = inspect.Parameter("session", kind, annotation=session)
    dependency.__signature__ = inspect.Signature([parameter])  # type: ignore[attr-defined]
    return dependency
