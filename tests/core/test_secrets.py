"""Which fields are secret, and what is shown of them."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.secrets import DEFAULT_FIELDS, HIDDEN, Secrets

secrets = Secrets(DEFAULT_FIELDS)


@pytest.mark.parametrize(
    "name",
    [
        *("password", "Password", "PASSWORD", "db_password", "dbPassword", "DB-PASSWORD"),
        *("dbpassword", "password2", "password_hash", "passwords", "new password"),
        *("api_key", "api-key", "apiKey", "APIKey", "apikey", "X-Api-Key", "stripe.api.key"),
        *("API_KEY_2", "secret", "client_secret", "clientSecret", "secrets", "secretKey"),
        *("token", "auth-token", "accessToken", "access_token", "accesstoken", "csrfToken"),
        *("private_key", "Authorization", "credentials", "pwd", "passphrase"),
    ],
)
def test_names_are_found_word_by_word(name: str) -> None:
    assert secrets.is_secret(name)
    assert secrets.hide(json.dumps({"a": [{name: {"deep": "hunter2"}}]})) == json.dumps(
        {"a": [{name: HIDDEN}]}, ensure_ascii=False, separators=(",", ":")
    )


@pytest.mark.parametrize(
    "name",
    [
        *("token_count", "tokenCount", "max_tokens", "tokens", "token_type", "password_length"),
        *("password_expires", "tokenizer", "secretary", "key", "keyboard", "monkey", "author"),
        *("apiary", "name", "", "passenger", "compass", "api", "private", "accessible"),
    ],
)
def test_names_that_only_look_alike_are_shown(name: str) -> None:
    assert not secrets.is_secret(name)
    text = json.dumps({name: "hunter2"})
    assert secrets.hide(text) == text


def test_name_can_be_hidden_although_it_looks_harmless() -> None:
    assert Secrets(["token_count"]).is_secret("tokenCount")
    assert not Secrets(["token_count"]).is_secret("token")


def test_no_secret_fields_hide_nothing() -> None:
    text = '{"password": "x", "url": "postgresql://me:x@db"}'
    assert Secrets([]).hide(text) == text
    assert not Secrets([]).hides


@pytest.mark.parametrize(
    "text",
    [
        '{"pass\\u0077ord":"hunter2"}',
        '{"password":"hunter2","password":"•••"}',
        '{"password":{"a":"hunter2"},"password":null}',
        '{"url":"postgresql://me:hunter2@db/jobs"}',
        '{"url":"https://me:hunter2@db/","url":"x"}',
        '[[{"API-KEY":["hunter2"]}]]',
        '{"a":' + "[" * 900 + '{"password":"hunter2"}' + "]" * 900 + "}",
        '{"a":' + "[" * 3_000 + '"hunter2"' + "]" * 3_000 + "}",
        '{"password":"hunter2","n":1e999}',
        '{"password":"hunter2","n":' + "1" * 5_000 + "}",
        '{"password":"hunter2"',
    ],
)
def test_no_way_to_write_a_secret_shows_it(text: str) -> None:
    shown = secrets.hide(text)
    assert "hunter2" not in shown
    json.loads(shown)


def test_what_is_no_secret_stays_as_it_was_written() -> None:
    text = '{"a": 1.10,  "note": "the password, as text", "mail": "me@home"}'
    assert secrets.hide(text) == text


@pytest.mark.parametrize(
    "piece",
    [
        ":",
        "@",
        "://",
        "://:",
        "://a:",
        "http://",
        "@://a:",
        "a",
        "A",
        "Aa",
        "AAs",
        "\\\\u",
        "pass",
        ".",
    ],
)
def test_time_grows_no_faster_than_the_text(piece: str) -> None:
    """Where each character is looked at again for each other one, this takes minutes at best."""
    long = piece * (300_000 // len(piece))
    for text in (f'"{long}"', f'"@ {long}"', f'"{long} @"', f'{{"{long}":"@"}}'):
        secrets.hide(text)


@pytest.mark.parametrize("start", ["x", "password"])
def test_long_names_are_not_kept(start: str) -> None:
    """Whoever may publish would fill the memory with them."""
    name = start + "x" * 1_000
    before = sys.getrefcount(name)
    assert secrets.is_secret(name) == (start == "password")
    assert sys.getrefcount(name) == before


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(json_values, st.sampled_from(DEFAULT_FIELDS), st.booleans(), st.sampled_from("_-. "))
def test_planted_secret_is_never_shown(value: object, name: str, upper: bool, by: str) -> None:
    spelled = name.replace("_", by)
    spelled = f"my{by}{spelled.upper() if upper else spelled}"
    planted = {"a": value, "b": [{"c": {spelled: {"v": "hunter2", "w": value}}}]}
    assert "hunter2" not in secrets.hide(json.dumps(planted))
