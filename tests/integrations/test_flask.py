"""The extension of Flask: whose transaction a job is in, and the context of its handler."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, abort, current_app, g
from sqlalchemy import create_engine, text
from sqlalchemy.orm import scoped_session, sessionmaker

from penstock import ConfigurationError, JobQuery, NewJob, Penstock, State, Worker, run_sync
from penstock.integrations.flask import FlaskJobs


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Penstock]:
    app = Penstock(f"sqlite:///{tmp_path}/shop.db")
    run_sync(app.count())
    yield app
    run_sync(app.close())


@pytest.fixture
def session(tmp_path: Path, queue: Penstock) -> Iterator[Any]:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (item TEXT)"))
    made = scoped_session(sessionmaker(engine))
    yield made
    made.remove()
    engine.dispose()


def found(queue: Penstock) -> list[int]:
    return [job.args["n"] for job in run_sync(queue.find(JobQuery(newest_first=False)))]


def test_job_is_in_the_transaction_of_the_request(queue: Penstock, session: Any) -> None:
    @queue.task
    def send(n: int) -> None: ...

    jobs = FlaskJobs(queue, session=session)
    app = Flask("shop")
    jobs.init_app(app)
    app.teardown_appcontext(lambda _: session.remove())

    @app.post("/<int:n>")
    def order(n: int) -> str:
        session.execute(text("INSERT INTO orders VALUES ('tea')"))
        jobs.enqueue(send, n)
        jobs.enqueue_many([NewJob(task="send", payload=f'{{"n":{n + 10}}}')])
        if n == 0:
            abort(409)
        session.commit()
        return ""

    assert app.extensions["penstock"] is jobs
    client = app.test_client()
    assert client.post("/0").status_code == 409
    assert found(queue) == []
    assert client.post("/1").status_code == 200
    assert found(queue) == [1, 11]


def test_first_request_creates_the_store_before_its_transaction(tmp_path: Path) -> None:
    """On SQLite the store would wait for the transaction that waits for it."""
    queue = Penstock(f"sqlite:///{tmp_path}/new.db")
    engine = create_engine(f"sqlite:///{tmp_path}/new.db")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (item TEXT)"))
    session: Any = scoped_session(sessionmaker(engine))
    app = Flask("shop")
    jobs = FlaskJobs(queue, app, session=session)

    @queue.task
    def send(n: int) -> None: ...

    @app.post("/")
    def order() -> str:
        session.execute(text("INSERT INTO orders VALUES ('tea')"))
        jobs.enqueue(send, 1)
        session.commit()
        return ""

    assert app.test_client().post("/").status_code == 200
    assert found(queue) == [1]
    session.remove()
    engine.dispose()
    run_sync(queue.close())


def test_request_that_enqueues_nothing_needs_no_store(tmp_path: Path) -> None:
    app = Flask("shop")
    FlaskJobs(Penstock(f"sqlite:///{tmp_path}/nowhere/new.db", create=False), app)
    app.get("/")(lambda: "fine")
    assert app.test_client().get("/").text == "fine"


def test_job_has_a_transaction_of_its_own_without_a_session(queue: Penstock) -> None:
    @queue.task
    def send(n: int) -> None: ...

    jobs = FlaskJobs(queue, Flask("shop"))
    jobs.enqueue(send.using(priority=9), n=1)
    assert found(queue) == [1]


async def test_handler_has_the_context_of_the_application(queue: Penstock) -> None:
    app = Flask("shop")
    jobs = FlaskJobs(queue, app)
    closed: list[str] = []
    app.teardown_appcontext(lambda error: closed.append(f"{current_app.name} {error!r}"))

    @queue.task
    @jobs.with_app_context
    def send(n: int) -> str:
        """Send one."""
        g.n = n
        return f"{current_app.name} {g.n}"

    assert send.name == "send"
    job = await send.enqueue(n=7)
    await Worker(queue).run(until_empty=True)
    assert (await queue.get(job.id)).returned == "shop 7"
    assert closed == ["shop None"]


async def test_handler_without_an_application_fails_and_says_why(queue: Penstock) -> None:
    jobs = FlaskJobs(queue)

    @queue.task(permanent=(ConfigurationError,))
    @jobs.with_app_context
    def send() -> None: ...

    job = await send.enqueue()
    await Worker(queue).run(until_empty=True)
    ended = await queue.get(job.id)
    assert ended.state is State.FAILED
    assert "call init_app" in (ended.error or "")


def test_coroutine_has_no_place_in_a_flask_application(queue: Penstock) -> None:
    async def send() -> None: ...

    with pytest.raises(ConfigurationError, match="write a plain function"):
        FlaskJobs(queue).with_app_context(send)


def test_task_of_another_queue_is_refused(queue: Penstock) -> None:
    other = Penstock("memory://").task("send", lambda: None)
    with pytest.raises(ConfigurationError, match="another Penstock"):
        FlaskJobs(queue).enqueue(other)
