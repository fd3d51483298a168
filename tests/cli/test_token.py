import json
from datetime import timedelta

import pytest

from penstock import Penstock, run_sync
from penstock.core.tokens import digest_of
from penstock.tokens import Access
from tests.cli.support import Shell


def test_create_prints_the_secret_alone_on_stdout(app: Penstock, shell: Shell) -> None:
    made = shell("token", "create", "ci", "--scope", "publish", "--scope", "read")
    [token] = run_sync(app.tokens.list())
    assert made.stdout.endswith("\n")
    assert digest_of(made.stdout.removesuffix("\n")) == token.digest
    assert made.stderr == (
        "The secret is shown only once: keep it now. "
        "To revoke the token: penstock token revoke ci\n"
    )
    assert (token.name, sorted(token.scopes)) == ("ci", [Access.PUBLISH, Access.READ])
    assert token.expires_at is None


def test_create_can_give_it_an_end(app: Penstock, shell: Shell) -> None:
    shell("token", "create", "ci", "--scope", "work", "--expires", "30d")
    [token] = run_sync(app.tokens.list())
    assert token.expires_at == token.created_at + timedelta(days=30)


def test_create_as_json(app: Penstock, shell: Shell) -> None:
    made = shell.json("token", "create", "ci", "--scope", "admin")
    [token] = run_sync(app.tokens.list())
    assert made.keys() == {"name", "secret"}
    assert (made["name"], digest_of(made["secret"])) == ("ci", token.digest)


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--scope", "root"],
        ["--scope", "read", "--expires", "soon"],
        ["--scope", "read", "--expires", "0"],
        ["--scope", "read", "--expires", "9999d"],
    ],
)
def test_create_refuses_what_makes_no_sense(shell: Shell, options: list[str]) -> None:
    shell.error("token", "create", "ci", *options, code=2)
    assert shell.json("token", "list") == {"tokens": []}


@pytest.mark.usefixtures("app")
def test_taken_name_is_code_4(shell: Shell) -> None:
    shell("token", "create", "ci", "--scope", "read")
    line = shell.error("token", "create", "ci", "--scope", "read", code=4)
    assert line == (
        "penstock: there is already a token 'ci'; revoke it or choose another name; "
        "try: penstock token list"
    )


@pytest.mark.parametrize("command", [["token", "list"], ["token"]])
def test_list_shows_scopes_and_times_but_no_digest(
    app: Penstock, shell: Shell, command: list[str]
) -> None:
    shell("token", "create", "ci", "--scope", "read", "--scope", "publish")
    shell("token", "create", "brief", "--scope", "work", "--expires", "30d")
    printed = shell(*command).stdout
    head, brief, ci = (line.split() for line in printed.splitlines())
    assert head == ["name", "scopes", "created", "expires"]
    assert (brief[:2], brief[-3:]) == (["brief", "work"], ["in", "30", "d"])
    assert (ci[:3], ci[-1]) == (["ci", "publish,", "read"], "never")
    everything = printed + json.dumps(shell.json(*command))
    assert not [token for token in run_sync(app.tokens.list()) if token.digest in everything]


def test_list_marks_what_has_expired(url: str, shell: Shell) -> None:
    past = Penstock(url, clock=lambda: 1_000_000)
    run_sync(past.tokens.create("old", ["read"], timedelta(days=1)))
    run_sync(past.close())
    _, row = shell("token", "list").stdout.splitlines()
    assert row.split()[:3] == ["old", "expired", "read"]


def test_list_as_json(app: Penstock, shell: Shell) -> None:
    shell("token", "create", "ci", "--scope", "read", "--scope", "publish", "--expires", "1h")
    [token] = run_sync(app.tokens.list())
    assert token.expires_at is not None
    assert shell.json("token", "list") == {
        "tokens": [
            {
                "name": "ci",
                "scopes": ["publish", "read"],
                "created_at": f"{token.created_at:%Y-%m-%dT%H:%M:%S.%f}Z",
                "expires_at": f"{token.expires_at:%Y-%m-%dT%H:%M:%S.%f}Z",
            }
        ]
    }
    assert shell.json("token") == shell.json("token", "list")


@pytest.mark.usefixtures("app")
def test_list_of_nothing_says_how_to_make_one(shell: Shell) -> None:
    assert shell("token", "list").stdout == (
        "There are no access tokens; to create one: penstock token create NAME --scope publish\n"
    )


def test_revoke(app: Penstock, shell: Shell) -> None:
    for name in ("one", "two"):
        shell("token", "create", name, "--scope", "read")
    assert shell("token", "revoke", "one").stdout == "Revoked token one.\n"
    assert shell.json("token", "revoke", "two") == {"name": "two", "revoked": True}
    assert run_sync(app.tokens.list()) == []


@pytest.mark.usefixtures("app")
def test_unknown_token_is_code_3(shell: Shell) -> None:
    line = shell.error("token", "revoke", "nope", code=3)
    assert line == "penstock: there is no token 'nope'; try: penstock token list"
    error = json.loads(shell.error("token", "revoke", "nope", "--json", code=3))
    assert error["type"] == "TokenNotFound"


def test_missing_store_is_not_made_for_a_token(shell: Shell) -> None:
    assert "there is no store" in shell.error("token", "create", "ci", "--scope", "read", code=5)


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize("option", [["--json"], ["--store", "sqlite:///another.db"]])
def test_option_before_the_command_is_refused(shell: Shell, option: list[str]) -> None:
    result = shell("token", *option, "revoke", "ci", code=2)
    assert "go after the command: token revoke" in result.stderr
