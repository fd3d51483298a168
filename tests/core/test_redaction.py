"""No form in which a password can be written into an address lets it through."""

import traceback
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.core.errors import ConfigurationError, StoreError
from penstock.core.redaction import redacted, redacted_within
from penstock.stores import open_store
from penstock.stores.postgres.connection import address as read

MARK = "Qx7"
"""Stands in every password, between all special characters: not even a part may be shown."""

passwords = st.lists(st.sampled_from("/@%#?: &;=+'\"\\[],\n\tä…{}|^~!$*()-_."), max_size=5).map(
    lambda separators: MARK + "".join(one + MARK for one in separators)
)
users = st.sampled_from(["me", "", "me%40example.org", "first.last", "ME"])
hosts = st.sampled_from(["db", "db:5432", "[::1]:5432", "a:1,b:2,c", "", "%2Fvar%2Frun", "DB.Org"])
schemes = st.sampled_from(
    [
        *("postgresql", "postgres", "postgresql+psycopg", "PostgreSQL", "postgresq", "mysql"),
        *("http", "https", "sqlite", "journal", "memory"),
    ]
)
ways: st.SearchStrategy[Callable[[str], str]] = st.sampled_from(
    [str, lambda text: quote(text, safe=""), lambda text: quote(text, safe="@/")]
)


@st.composite
def addresses(draw: st.DrawFn) -> str:
    """An address with a password in it, wherever one can stand."""
    scheme, host, secret = draw(schemes), draw(hosts), draw(ways)(draw(passwords))
    in_query = "".join(one for one in secret if one not in "&;") + "&schema=x"
    name = draw(st.sampled_from(["password", "sslpassword", "PASSWORD", "token", "api_key"]))
    return draw(
        st.sampled_from(
            [
                f"{scheme}://{draw(users)}:{secret}@{host}/jobs",
                f"{scheme}://{draw(users)}:{secret}@{host}/jobs?sslmode=require",
                f"{scheme}://{draw(users)}:{secret}@{host}/jobs?passfile={secret}",
                f"{scheme}://{host}/jobs?{name}={in_query}",
                f"{scheme}://me@{host}/jobs?sslmode=require&{name}={in_query}",
                f"{scheme}:{draw(users)}:{secret}@{host}/jobs",
                f"host={host} user=me {name}={secret}",
                f"me:{secret}@{host}",
            ]
        )
    )


@given(addresses())
@example(f"postgresql://me:{MARK}/{MARK}@db/jobs")
@example(f"postgresql://me:{MARK}@{MARK}?{MARK}@db:5432/jobs?x=a@b")
@example(f"postgresql://me:{MARK}")
def test_no_part_of_a_password_is_shown(address: str) -> None:
    assert MARK not in redacted(address)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://Qx7/Qx7@127.0.0.1:1/", "https://***@127.0.0.1:1/"),
        ("postgresql://h/jobs#password=Qx7", "postgresql://h/jobs#***"),
        ("postgresql://h/jobs;password=Qx7", "postgresql://h/jobs;***"),
        ("postgresql://h/password=Qx7", "postgresql://h/password=***"),
        ("postgresql://h#Qx7/jobs", "postgresql://***/jobs"),
        ("postgresql://h;password=Qx7", "postgresql://***"),
        ("postgresql://h password=Qx7", "postgresql://***"),
        ("postgresql://h/jobs?host=h password=Qx7", "postgresql://h/jobs?host=***"),
        ("postgresql://h/jobs?host=h#Qx7&port=1", "postgresql://h/jobs?host=***&port=1"),
    ],
)
def test_secret_in_an_odd_place_is_hidden(address: str, shown: str) -> None:
    assert redacted(address) == shown
    assert MARK not in redacted(f"{address}&x")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no postgresql://me:a'Qx7@h", "no postgresql://me:***@h"),
        ('at "postgresql://me:a"Qx7<Qx7@h/jobs".', 'at "postgresql://me:***@h/jobs".'),
        ("'http://a','http://Qx7@b' x", "'http://***@b' x"),
        ("'http://a','http://b' 1://", "'http://a','http://b' 1://"),
    ],
)
def test_quote_before_an_at_belongs_to_the_password(text: str, shown: str) -> None:
    assert redacted_within(text) == shown


@given(schemes, users, passwords, hosts)
def test_address_in_a_text_of_others_is_hidden(
    scheme: str, user: str, password: str, host: str
) -> None:
    text = f"cannot reach {scheme}://{user}:{quote(password, safe='')}@{host}/jobs, giving up"
    assert MARK not in redacted_within(text)
    assert redacted_within(text).endswith("giving up")


@given(addresses())
def test_no_error_of_a_store_shows_a_password(address: str) -> None:
    """Also where the driver would quote what it took for a host or a port."""
    is_postgres = address.lower().startswith(("postgresql://", "postgres://"))
    try:
        said = read(address).name if is_postgres else str(open_store(address))
    except ConfigurationError as error:
        said = "".join(traceback.format_exception(error))
    assert MARK not in said


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://me:secret@db:5432/jobs", "postgresql://me:***@db:5432/jobs"),
        ("postgresql://me@db/jobs?schema=x", "postgresql://me@db/jobs?schema=x"),
        (
            "postgresql://db/jobs?password=secret&schema=x",
            "postgresql://db/jobs?password=***&schema=x",
        ),
        ("postgresql://db/jobs?password=se&cret=x", "postgresql://db/jobs?password=***&***"),
        ("postgresql://me:a@b/c#d@db/jobs", "postgresql://me:***@db/jobs"),
        ("postgresql://me:a?b@db/jobs", "postgresql://***"),
        ("postgresql://me:forgotten/jobs", "postgresql://***/jobs"),
        ("postgresql://a:1,[::1]:2/jobs", "postgresql://a:1,[::1]:2/jobs"),
        (
            "postgresql://me:se,cret@a:1,b:2/jobs?target_session_attrs=read-write",
            "postgresql://me:***@a:1,b:2/jobs?target_session_attrs=read-write",
        ),
        ("postgresql://me:se@cret@a,b/jobs", "postgresql://me:***@a,b/jobs"),
        ("postgresql://me:secret,a:1,b:2/jobs", "postgresql://***/jobs"),
        ("postgresql:///jobs?host=/run/db&user=me", "postgresql:///jobs?host=/run/db&user=me"),
        ("http://token@server:8000", "http://***@server:8000"),
        ("http://server:8000/", "http://server:8000/"),
        ("https://server/?token=secret", "https://server/?***"),
        ("sqlite:////srv/me@home/jobs.db", "sqlite:////srv/me@home/jobs.db"),
        ("journal:///jobs?durability=process", "journal:///jobs?durability=process"),
        ("memory://", "memory://"),
        ("jobs.db", "jobs.db"),
        ("host=db password=secret", "***"),
        ("", ""),
    ],
)
def test_what_is_left_says_which_store_it_is(address: str, shown: str) -> None:
    assert redacted(address) == shown


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:Qx7/Qx7@127.0.0.1:1/jobs",
        "postgresql://me:Qx7@Qx7@127.0.0.1:1/jobs",
        "postgresql://me:Qx7%Qx7@127.0.0.1:1/jobs",
        "postgresql://me:Qx7?Qx7@127.0.0.1:1/jobs",
        "postgresql://me:Qx7 Qx7@127.0.0.1:1/jobs",
        "postgresql://me:[Qx7@127.0.0.1:1/jobs",
        "postgresql://me:Qx7/jobs",
    ],
)
def test_unescaped_password_is_explained(address: str) -> None:
    with pytest.raises(ConfigurationError, match="@ as %40") as refused:
        open_store(address)
    assert MARK not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:Qx7@127.0.0.1:1/jobs",
        "postgresql://me:Qx7#Qx7@127.0.0.1:1/jobs",
        "postgresql://me:Qx7%2FQx7@127.0.0.1:1/jobs",
        "postgresql://127.0.0.1:1/jobs?user=me&password=Qx7&sslpassword=Qx7",
    ],
)
def test_store_that_cannot_be_reached_keeps_its_password(address: str) -> None:
    with pytest.raises(StoreError, match="does not answer") as refused:
        open_store(address)
    assert MARK not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("behind", [")", ".", ",", ";", ": refused", ").", "!"])
def test_punctuation_behind_an_address_is_not_taken_for_a_part_of_it(behind: str) -> None:
    text = f"no server at http://127.0.0.1:8000{behind}"
    assert redacted_within(text) == text


@pytest.mark.parametrize(
    "piece", [".", "a", "a.", ":", "://", "a://", "a://'", "a://.", "@", "a://:@", ";", "x://?a=b&"]
)
def test_time_grows_no_faster_than_the_text(piece: str) -> None:
    """Where each character is looked at again for each other one, this takes minutes at best."""
    long = piece * (300_000 // len(piece))
    for text in (long, f"http://{long}", f"http://{long} x", f"{long}://x", f"http:{long}"):
        redacted_within(text)
        redacted(text)
