"""Commands on access tokens: `token create`, `token list`, `token revoke`."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from penstock.cli.admin import parse_age
from penstock.cli.output import Column, emit, show_table, shown, when
from penstock.cli.store import on_store, opened, refuse_options_before, suggest
from penstock.core.errors import TokenExists, TokenNotFound
from penstock.core.token import Access, Token
from penstock.engine import Penstock, run_sync

name_argument = click.argument("name")


@click.group("token", invoke_without_command=True)
@on_store
@click.pass_context
def token(context: click.Context, *, store: str, as_json: bool) -> None:
    """Make access tokens for the server, and revoke them.

    Alone, it lists them.
    """
    if context.invoked_subcommand is None:
        _list(store, as_json=as_json)
    else:
        refuse_options_before(context, as_json=as_json)


@token.command("create")
@name_argument
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    type=click.Choice([access.value for access in Access]),
    help="What its bearer may do; may be repeated.",
)
@click.option(
    "--expires",
    metavar="TIME",
    callback=parse_age,
    help="How long it is good for: 90s, 30m, 12h, 30d.  [default: until it is revoked]",
)
@on_store
def create_token(
    *, name: str, scopes: tuple[str, ...], expires: timedelta | None, store: str, as_json: bool
) -> None:
    """Make an access token, and print its secret.

    The secret alone goes to stdout. It is shown once: the store keeps no more than a digest.
    """
    with _opened(store) as app:
        secret = run_sync(app.create_token(name, scopes, expires))
    if as_json:
        emit({"name": name, "secret": secret})
        return
    click.echo(secret)
    step = suggest(f"token revoke {shlex.quote(name)}")
    click.echo(shown(f"This is shown once: keep it now. To take it back: {step}"), err=True)


@token.command("list")
@on_store
def list_tokens(*, store: str, as_json: bool) -> None:
    """List every access token with its scopes; secrets cannot be shown."""
    _list(store, as_json=as_json)


def _list(store: str, *, as_json: bool) -> None:
    with opened(store) as app:
        tokens = run_sync(app.tokens())
    if as_json:
        emit({"tokens": [_fields(one) for one in tokens]})
    elif tokens:
        _print_tokens(tokens)
    else:
        step = suggest("token create NAME --scope publish")
        click.echo(f"There is no access token; to make one: {step}")


@token.command("revoke")
@name_argument
@on_store
def revoke_token(*, name: str, store: str, as_json: bool) -> None:
    """Remove an access token: it opens nothing any more, in any process."""
    with _opened(store) as app:
        run_sync(app.revoke_token(name))
    if as_json:
        emit({"name": name, "revoked": True})
    else:
        click.echo(shown(f"Revoked token {name}."))


@contextmanager
def _opened(store: str) -> Iterator[Penstock]:
    try:
        with opened(store) as app:
            yield app
    except (TokenExists, TokenNotFound) as error:
        error.add_note(suggest("token list"))
        raise


def _fields(one: Token) -> dict[str, Any]:
    """What may be shown: not the digest."""
    return {
        "name": one.name,
        "scopes": _in_order(one),
        "created_at": one.created_at,
        "expires_at": one.expires_at,
    }


def _in_order(one: Token) -> list[str]:
    return [access.value for access in Access if access in one.scopes]


def _print_tokens(tokens: Sequence[Token]) -> None:
    now = datetime.now(UTC)
    columns = [
        Column("name", bends=True),
        Column(""),
        Column("scopes", bends=True),
        Column("created"),
        Column("expires"),
    ]
    rows = [
        [
            one.name,
            "expired" if one.has_expired(now) else "",
            ", ".join(_in_order(one)),
            when(one.created_at, now),
            "never" if one.expires_at is None else when(one.expires_at, now),
        ]
        for one in tokens
    ]
    show_table(columns, rows)


COMMANDS: Sequence[click.Command] = (token,)
