"""A web app that sends mail: the user and the job are stored in one transaction.

A sign-up answers at once; the mail is sent by a worker, again and again until the mail server takes
it. If the app dies between the two writes, there is neither a user nor a mail.

    uvicorn mail_app:web                      # the web app
    penstock worker mail_app                  # the worker, in another terminal
    curl -d '{"email": "ada@example.org"}' http://127.0.0.1:8000/users

The mail server is SMTP_HOST:SMTP_PORT, by default localhost:1025.
"""

import os
import smtplib
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from email.message import EmailMessage

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from penstock import Penstock, RetryPolicy

FILE = "shop.db"
app = Penstock(f"sqlite:///{FILE}")


@app.task(queue="mail", retry=RetryPolicy(attempts=10, delay=timedelta(seconds=1)))
def welcome(email: str) -> None:
    """Send the mail; if this runs twice, somebody is welcome twice."""
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "shop@example.org", email, "Welcome!"
    mail.set_content("Good to have you here.")
    host, port = os.environ.get("SMTP_HOST", "localhost"), os.environ.get("SMTP_PORT", "1025")
    with smtplib.SMTP(host, int(port), timeout=10) as server:
        server.send_message(mail)


async def sign_up(request: Request) -> JSONResponse:
    """Store the user and enqueue the mail: both or neither."""
    email = (await request.json())["email"]
    try:
        with closing(sqlite3.connect(FILE)) as connection, connection:  # commits, or rolls back
            job = await welcome.using(connection=connection).enqueue(email)
            connection.execute("INSERT INTO users VALUES (?)", (email,))
    except sqlite3.IntegrityError:  # the job is gone with the user
        return JSONResponse({"error": f"{email} has signed up already"}, status_code=409)
    return JSONResponse({"job": job.id}, status_code=202)


async def list_users(_: Request) -> JSONResponse:
    """Return the users, each with the state of the mail."""
    mails = {job.args["email"]: job.state for job in await app.find()}
    with closing(sqlite3.connect(FILE)) as connection:
        emails = [email for (email,) in connection.execute("SELECT email FROM users")]
    return JSONResponse({email: mails.get(email) for email in emails})


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    """Open the store as long as the app runs."""
    async with app:
        await app.count()  # creates the file
        with closing(sqlite3.connect(FILE)) as connection, connection:
            connection.execute("CREATE TABLE IF NOT EXISTS users (email TEXT PRIMARY KEY)")
        yield


web = Starlette(
    routes=[
        Route("/users", sign_up, methods=["POST"]),
        Route("/users", list_users),
    ],
    lifespan=lifespan,
)
