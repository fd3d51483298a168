import hashlib
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from penstock.core.tokens import Access, Token, digest_of

NOW = datetime(2030, 1, 1, tzinfo=UTC)
TOKEN = Token(name="t", digest="d", scopes=frozenset({Access.READ}), created_at=NOW)


def test_digest_is_the_sha256_of_the_secret() -> None:
    assert digest_of("pst_abc") == hashlib.sha256(b"pst_abc").hexdigest()


def test_any_text_has_a_digest() -> None:
    texts = ["", "ö", "\0", "\ud800", "\udfff"]
    assert len(set(map(digest_of, texts))) == len(texts)


def test_token_expires_at_its_end_and_not_before() -> None:
    ending = replace(TOKEN, expires_at=NOW)
    assert ending.has_expired(NOW)
    assert not ending.has_expired(NOW - timedelta(microseconds=1))
    assert not TOKEN.has_expired(NOW)
