"""A FastAPI application as its documentation writes one; nothing is stored. Run as a program."""

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()


class NewEvent(BaseModel):
    """What is sent."""

    title: str
    tags: str
    description: str | None = None
    payload: dict[str, Any]


class Event(NewEvent):
    """What is answered."""

    id: int
    status: str
    retry_count: int = 0
    max_retries: int = 3


@app.post("/events", status_code=201)
async def publish(event: NewEvent) -> Event:
    """Answer as if it had been stored."""
    return Event(**event.model_dump(), id=1, status="PENDING")


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
