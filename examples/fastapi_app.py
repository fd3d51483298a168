"""A shop on FastAPI: an order and its job are one transaction, and the dashboard is part of it.

Needs `penstock[server]`, `sqlalchemy` and `aiosqlite`. In this folder:

    uvicorn fastapi_app:app --timeout-graceful-shutdown 5
    curl -X POST 'http://127.0.0.1:8000/orders?item=tea'

The dashboard is at http://127.0.0.1:8000/ops/queue/, for `ada` with the password `tea`. Jobs run in
the same process; with SHOP_WORKER=no, a process of its own runs them:

    penstock worker fastapi_app:queue
"""

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.security import HTTPBasic
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from penstock import Penstock, Worker, context
from penstock.integrations.asgi import Caller, MountedServer, lifespan
from penstock.integrations.sqlalchemy import AsyncSessionJobs

# The jobs and the orders are in the same database.
queue = Penstock(os.environ.get("SHOP_QUEUE", "sqlite:///shop.db"))
engine = create_async_engine(os.environ.get("SHOP_DATABASE", "sqlite+aiosqlite:///shop.db"))
sessions = async_sessionmaker(engine, expire_on_commit=False)
PASSWORD = os.environ.get("SHOP_PASSWORD", "tea")


class Base(DeclarativeBase):
    """The tables of the shop."""


class Order(Base):
    """An order, and how often it was delivered."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    delivered: Mapped[int] = mapped_column(default=0)


async def deliver(item: str) -> None:
    """Hand over the item."""
    print(f"delivers {item}")


@queue.task(lease=timedelta(seconds=5))
async def send(order_id: int) -> None:
    """Deliver an order. It counts once, although a killed worker's job runs again."""
    async with sessions() as session:
        order = await session.get_one(Order, order_id)
    await deliver(order.item)
    async with sessions.begin() as session:
        await context().finish(connection=session)  # done if and only if this is committed
        (await session.get_one(Order, order_id)).delivered += 1


async def get_session() -> AsyncIterator[AsyncSession]:
    """Give a request a session, which is rolled back unless the request commits it."""
    async with sessions() as session:
        yield session


Database = Annotated[AsyncSession, Depends(get_session)]
Jobs = Annotated[AsyncSessionJobs, Depends(AsyncSessionJobs.dependency(queue, Database))]


async def who(request: Request) -> Caller | None:
    """Return who looks at the queue; a real shop asks its own sign-in."""
    found = await HTTPBasic()(request)  # asks for a password if there is none
    if not found or not secrets.compare_digest(found.password, PASSWORD):
        raise HTTPException(401, headers={"WWW-Authenticate": "Basic"})
    return Caller(found.username, ["read", "admin"] if found.username == "ada" else ["read"])


server = MountedServer(queue, authenticate=who)


@asynccontextmanager
async def life(app: FastAPI) -> AsyncIterator[None]:
    """Open the queue, run its jobs, and create the tables of the shop."""
    works = os.environ.get("SHOP_WORKER", "yes") == "yes"
    async with lifespan(server, worker=(lambda: Worker(queue)) if works else None)(app):
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        yield
    await engine.dispose()


app = FastAPI(lifespan=life)
app.mount("/ops/queue", server)


@app.post("/orders")
async def order(item: str, session: Database, jobs: Jobs) -> dict[str, int]:
    """Store an order and the job that sends it: both, or neither."""
    new = Order(item=item)
    session.add(new)
    await session.flush()  # gives it a number
    job = await jobs.enqueue(send, new.id)
    if item == "gold":
        raise HTTPException(409, "sold out")  # nothing is stored
    await session.commit()
    return {"order": new.id, "job": job.id}


@app.get("/orders")
async def orders(session: Database) -> dict[int, int]:
    """Return how often each order was delivered."""
    return {one.id: one.delivered for one in await session.scalars(select(Order))}
