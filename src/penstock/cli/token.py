"""Commands on access tokens: `token create`, `token list`, `token revoke`."""

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from penstock.cli.connection import connected, suggest
from penstock.cli.options import on_store, parse_age, refuse_options_before
from penstock.cli.output import Column, emit, show_table, shown, when
from penstock.core.tokens import Access, Token
from penstock.engine.penstock import run_sync

name_argument = click.argument("name")


@click.group("token", invoke_without_command=True)
@on_store
@click.pass_context
def token(context: click.Context, *, store: str, as_json: bool) -> None:
    """Create, list and revoke access tokens for the server.

    Without a command, lists the tokens.
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
    help="What the token allows. Can be repeated.",
)
@click.option(
    "--expires",
    metavar="TIME",
    callback=parse_age,
    help="How long the token is valid: 90s, 30m, 12h, 30d.  [default: until it is revoked]",
)
@on_store
def create_token(
    *, name: str, scopes: tuple[str, ...], expires: timedelta | None, store: str, as_json: bool
) -> None:
    """Create an access token and print its secret.

    Only the secret goes to stdout. It is shown once: the store keeps a digest of it.
    """
    with connected(store) as app:
        secret = run_sync(app.tokens.create(name, scopes, expires))
    if as_json:
        emit({"name": name, "secret": secret})
        return
    click.echo(secret)
    step = suggest(f"token revoke {shlex.quote(name)}")
    click.echo(
        shown(f"The secret is shown only once: keep it now. To revoke the token: {step}"), err=True
    )


@token.command("list")
@on_store
def list_tokens(*, store: str, as_json: bool) -> None:
    """List the access tokens with their scopes, without their secrets."""
    _list(store, as_json=as_json)


def _list(store: str, *, as_json: bool) -> None:
    with connected(store) as app:
        tokens = run_sync(app.tokens.list())
    if as_json:
        emit({"tokens": [_fields(one) for one in tokens]})
    elif tokens:
        _print_tokens(tokens)
    else:
        step = suggest("token create NAME --scope publish")
        click.echo(f"There are no access tokens; to create one: {step}")


@token.command("revoke")
@name_argument
@on_store
def revoke_token(*, name: str, store: str, as_json: bool) -> None:
    """Revoke an access token, in all processes."""
    with connected(store) as app:
        run_sync(app.tokens.revoke(name))
    if as_json:
        emit({"name": name, "revoked": True})
    else:
        click.echo(shown(f"Revoked token {name}."))


def _fields(one: Token) -> dict[str, Any]:
    """Return the fields to show, without the digest."""
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
