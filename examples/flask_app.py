"""A shop on Flask: an order and its job are one transaction, and a worker runs beside it.

Needs `penstock`, `flask`, `gunicorn` and `sqlalchemy`. In this folder:

    flask --app flask_app create-tables
    gunicorn flask_app:app --workers 2
    penstock worker flask_app:queue
    curl -X POST 'http://127.0.0.1:8000/orders?item=tea'

The dashboard is a server beside it, for which Penstock needs the extra `server`:

    penstock serve --store sqlite:///shop.db --workers 0 --port 8001
"""

import os
from datetime import timedelta

from flask import Flask, Response, abort, current_app, jsonify, request
from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, scoped_session, sessionmaker

from penstock import Penstock, context
from penstock.integrations.flask import FlaskJobs

# The jobs and the orders are in the same database.
queue = Penstock(os.environ.get("SHOP_QUEUE", "sqlite:///shop.db"))
engine = create_engine(os.environ.get("SHOP_DATABASE", "sqlite:///shop.db"))
session = scoped_session(sessionmaker(engine))
app = Flask(__name__)
jobs = FlaskJobs(queue, app, session=session)


class Base(DeclarativeBase):
    """The tables of the shop."""


class Order(Base):
    """An order, and how often it was delivered."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    delivered: Mapped[int] = mapped_column(default=0)


@app.cli.command("create-tables")
def create_tables() -> None:
    """Create the tables of the shop."""
    Base.metadata.create_all(engine)


@app.teardown_appcontext
def close_session(_: BaseException | None) -> None:
    """Roll back what a request, or a handler, has not committed."""
    session.remove()


def deliver(item: str) -> None:
    """Hand over the item."""
    print(f"{current_app.name} delivers {item}")


@queue.task(lease=timedelta(seconds=5))
@jobs.with_app_context
def send(order_id: int) -> None:
    """Deliver an order. It counts once, although a killed worker's job runs again."""
    item = session.get_one(Order, order_id).item
    session.rollback()  # holds no transaction while it delivers
    deliver(item)
    context().finish(connection=session)  # done if and only if this is committed
    session.get_one(Order, order_id).delivered += 1
    session.commit()


@app.post("/orders")
def order() -> Response:
    """Store an order and the job that sends it: both, or neither."""
    new = Order(item=request.args["item"])
    session.add(new)
    session.flush()  # gives it a number
    job = jobs.enqueue(send, new.id)
    if new.item == "gold":
        abort(409, "sold out")  # nothing is stored
    session.commit()
    return jsonify(order=new.id, job=job.id)


@app.get("/orders")
def orders() -> Response:
    """Return how often each order was delivered."""
    return jsonify({one.id: one.delivered for one in session.scalars(select(Order))})
