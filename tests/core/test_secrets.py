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
        *("stripe_apikey", "x-apikey", "my_authtoken", "userPassWord", "pass_word", "pass phrase"),
        *("PASSWORDs", "DBPASSWORDs", "userAPIKEYs", "SECRETs"),
        *("paßword", "PAẞWORD", "pa\u017fsword"),
    ],
)
def test_names_are_found_word_by_word(name: str) -> None:
    assert secrets.is_secret(name)
    for is_ascii in (True, False):
        text = json.dumps({"a": [{name: {"deep": "hunter2"}}]}, ensure_ascii=is_ascii)
        hidden = json.dumps({"a": [{name: HIDDEN}]}, ensure_ascii=False, separators=(",", ":"))
        assert secrets.hide(text) == secrets.hide_readable(text) == hidden


@pytest.mark.parametrize(
    "name",
    [
        *("token_count", "tokenCount", "max_tokens", "tokens", "token_type", "password_length"),
        *("password_expires", "tokenizer", "secretary", "key", "keyboard", "monkey", "author"),
        *("apiary", "name", "", "passenger", "compass", "api", "private", "accessible"),
        *("bypass_words", "APIs", "IDs", "keys_of_apis"),
    ],
)
def test_names_that_only_look_alike_are_shown(name: str) -> None:
    assert not secrets.is_secret(name)
    shown = {name: "hunter2", "a": [{name: {"deep": 1.5}}]}
    assert json.loads(secrets.hide(json.dumps(shown))) == shown


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
        '{"url":"https://me:hunter2@db/","url":"x","b":"@"}',
        '{"a":{"password":"hunter2"},"a":1}',
        '{"a":{"pass_word":"hunter2"},"a":1}',
        r'{"dsn":"postgres:\/\/u:hunter2@h\/db"}',
        r'{"dsn":"postgres\u003a//u:hunter2@h/db"}',
        r'{"dsn":"postgres://u:hunter2\u0040h/db"}',
        '{"https://u:hunter2/7@h/":1}',
        '{"https://u:a/hunter2@h/":1}',
        '{"https://hunter2@host":{"https://hunter2@host":2}}',
        '["https://hunter2@host","git+HTTPS://hunter2@host/x.git"]',
        '["x https://u:a/hunter2@h/ y","(postgres://u@corp:hunter2@h)","a://u:b://hunter2@h"]',
        '["https://a.org/@me,https://u:hunter2@h","postgres://u:a?b#hunter2@h"]',
        '["https://a.org:80/x:https://u:hunter2@h","ws://u:\\"hunter2\\"@h"]',
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
    text = '{"a": 1.10,  "note": "words of text", "a": ["https://example.org:80/"]}'
    assert secrets.hide(text) == text


@pytest.mark.parametrize(
    "text",
    [
        *("the pass, as text", "me@home", "https://me.org/@me", "https://x.org:80/ me@home"),
        *("postgresql://me@db:5432/jobs", "ssh://git@host/x", "https://x.org/a?at=1:2&mail=a@b"),
        *("mailto:me@home", "a:b@c", "://", "@", "ä@ö\n\u2028", "me@home https://x.org/"),
    ],
)
def test_text_that_only_looks_like_a_secret_is_shown(text: str) -> None:
    shown = {"text": text, "n": [2**70, -0.5, None, True, "password"], text: {}}
    assert json.loads(secrets.hide(json.dumps(shown))) == shown


def test_rest_of_an_address_says_what_it_is() -> None:
    shown = {"a": "see https://me:x@db:80/jobs, https://x/y@db/ or https://t@h"}
    assert secrets.hidden(shown) == {
        "a": f"see https://{HIDDEN}@db:80/jobs, https://x/y@db/ or https://{HIDDEN}@h"
    }


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
