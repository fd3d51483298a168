import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigurationError, InvalidJob, Penstock, run_sync
from penstock.core.tokens import digest_of
from penstock.engine.validation import NAME_LIMIT
from penstock.errors import TokenExists, TokenNotFound
from penstock.tokens import Access, Token
from tests.contract.support import HOUR, ManualClock


async def test_secret_is_returned_and_its_digest_stored(app: Penstock, clock: ManualClock) -> None:
    secret = await app.tokens.create("ci", [Access.PUBLISH, "read"], HOUR)
    assert await app.tokens.list() == [
        Token(
            name="ci",
            digest=digest_of(secret),
            scopes=frozenset({Access.PUBLISH, Access.READ}),
            created_at=clock.now,
            expires_at=clock.now + HOUR,
        )
    ]


async def test_secrets_are_long_and_differ(app: Penstock) -> None:
    made = [await app.tokens.create(f"t{n}", ["work"]) for n in range(3)]
    assert len(set(made)) == 3
    assert all(secret.startswith("pst_") and len(secret) == 4 + 43 for secret in made)


def test_secret_is_nowhere_in_the_file(tmp_path: Path) -> None:
    app = Penstock(f"sqlite:///{tmp_path}/jobs.db")
    secret = run_sync(app.tokens.create("ci", ["admin"]))
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        dump = "\n".join(connection.iterdump())
    assert digest_of(secret) in dump
    assert secret not in dump
    assert secret.removeprefix("pst_") not in dump
    run_sync(app.close())


async def test_taken_name_is_refused_and_the_first_token_stays(app: Penstock) -> None:
    await app.tokens.create("ci", ["read"])
    before = await app.tokens.list()
    with pytest.raises(TokenExists, match="already a token 'ci'"):
        await app.tokens.create("ci", ["admin"])
    assert await app.tokens.list() == before


async def test_revoked_token_is_gone(app: Penstock) -> None:
    await app.tokens.create("ci", ["read"])
    await app.tokens.revoke("ci")
    assert await app.tokens.list() == []
    with pytest.raises(TokenNotFound, match="no token 'ci'"):
        await app.tokens.revoke("ci")


@pytest.mark.parametrize("name", ["", "a\nb", "x" * (NAME_LIMIT + 1), "\ud800", 7])
async def test_name_that_people_cannot_read_is_refused(app: Penstock, name: Any) -> None:
    with pytest.raises(InvalidJob, match="name of a token"):
        await app.tokens.create(name, ["read"])


@pytest.mark.parametrize("scopes", [[], "read", ["root"], [7], None, ["read", ""]])
async def test_scopes_that_are_none_are_refused(app: Penstock, scopes: Any) -> None:
    with pytest.raises(ConfigurationError, match="publish, work, read, admin"):
        await app.tokens.create("ci", scopes)
    assert await app.tokens.list() == []


@pytest.mark.parametrize("span", [timedelta(0), -HOUR, timedelta(days=4000), 30])
async def test_end_that_is_no_future_is_refused(app: Penstock, span: Any) -> None:
    with pytest.raises(ConfigurationError, match="expires_in"):
        await app.tokens.create("ci", ["read"], span)
    assert await app.tokens.list() == []
