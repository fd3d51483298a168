"""Store and server addresses without their secrets, for messages, lists and logs.

This is the only place that decides what of an address may be shown. It reads an address the way a
person writes it, not the way a parser accepts it: a password with an unescaped `/`, `@` or `?` in
it is still a password. Where the two readings differ, it hides more.
"""

import re
from string import ascii_letters, digits

HIDDEN = "***"

# Parameters whose values say how to connect and nothing else. All others are hidden: also those
# that nobody thought of, and the second half of a password with an `&` in it.
_SHOWN = frozenset(
    {
        "application_name",
        "channel_binding",
        "client_encoding",
        "connect_timeout",
        "durability",
        "gssencmode",
        "host",
        "hostaddr",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "load_balance_hosts",
        "notify",
        "pooler",
        "port",
        "schema",
        "sslmode",
        "sslnegotiation",
        "target_session_attrs",
        "tcp_user_timeout",
        "user",
    }
)
# Parameters whose names may stay, so that a reader sees what was given.
_NAMED = frozenset(
    {"dbname", "options", "passfile", "password", "sslcert", "sslkey", "sslpassword"}
)

_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.\-]*):")
_USER = re.compile(r"(?:[\w.~+\-]|%40)*")
_HOST = re.compile(r"(?:\[[^\]\[@]*\]|[^:@\[\]#;=\s]*)(?::\d*)?")
# Where a path ends and something else begins, that was meant as a parameter.
_PARAMETER = re.compile(r"[#;=]")
_PLAIN = re.compile(r"[^=#\s]*")
_PIECE = re.compile(r"\S+")
_QUOTE = re.compile(r"['\"<>]|\Z")
_IN_SCHEME = ascii_letters + digits + "+.-"
_WITH_TOKEN = ("http", "https", "ws", "wss")


def redacted(url: str) -> str:
    """Return an address as it may be shown: with `***` in place of whatever may be a secret.

    Takes any text that somebody gave as an address, whether it can be used as one or not.
    """
    found = _SCHEME.match(url)
    if found is None:
        return HIDDEN if re.search(r"[@=:]", url) else url
    scheme, rest = found[1], url[found.end() :]
    if not rest.startswith("//"):
        return f"{scheme}:{HIDDEN}" if re.search(r"[@=]|:\S*:", rest) else url
    head, question, query = rest[2:].partition("?")
    if "@" in query:  # in a parameter, or behind a password that has a question mark in it
        return f"{scheme}://{HIDDEN}"
    place = _place(scheme.lower(), head)
    return f"{scheme}://{place}" + (f"?{_parameters(query)}" if question else "")


def redacted_within(text: str) -> str:
    """Return a text in which every address is shown as `redacted` shows it.

    For texts that somebody else wrote, such as the error of a library. An address ends where the
    text has a quote or a space in it, and before the punctuation that comes before those; a quote
    with an `@` behind it belongs to a password.
    """
    return _PIECE.sub(lambda found: _redacted_piece(found[0]), text)


def _redacted_piece(piece: str) -> str:
    """Return a text without spaces with its addresses redacted.

    It goes from left to right and never back, because patterns that find both ends of an address
    try each beginning with each end: a long text of others must not hold up whoever shows it.
    """
    shown: list[str] = []
    done, at = 0, piece.rfind("@")
    while (mark := piece.find("://", done)) >= 0:
        start = done + len(piece[done:mark].rstrip(_IN_SCHEME))
        start = mark - len(piece[start:mark].lstrip(digits + "+.-"))
        shown.append(piece[done:start])
        quote = _QUOTE.search(piece, max(mark, at + 1))
        until = len(piece) if quote is None else quote.start()
        address = piece[start:until].rstrip(").,;:!")
        # Without a scheme it is none.
        done = max(start + len(address), mark + 3)
        shown.append(redacted(piece[start:done]) if start < mark else piece[start:done])
    return "".join(shown) + piece[done:]


def _place(scheme: str, head: str) -> str:
    """Return what stands before the parameters: user, hosts and path."""
    userinfo, at, place = head.rpartition("@")
    # In a path: no password without a colon, except for a token.
    if at and ":" not in userinfo and "/" in userinfo and scheme not in _WITH_TOKEN:
        userinfo, at, place = "", "", head
    hosts, slash, path = place.partition("/")
    if not all(_HOST.fullmatch(host) for host in hosts.split(",")):
        hosts = HIDDEN  # a port that is none may be a password whose `@` was forgotten
    if found := _PARAMETER.search(path):
        path = f"{path[: found.end()]}{HIDDEN}"
    return f"{_user(scheme, userinfo)}{at}{hosts}{slash}{path}"


def _user(scheme: str, userinfo: str) -> str:
    user, colon, _ = userinfo.partition(":")
    if userinfo and (scheme in _WITH_TOKEN or not _USER.fullmatch(user)):
        return HIDDEN
    return f"{user}:{HIDDEN}" if colon else user


def _parameters(query: str) -> str:
    return "&".join(map(_parameter, re.split("[&;]", query)))


def _parameter(text: str) -> str:
    name, _, value = text.partition("=")
    if not text or (name in _SHOWN and _PLAIN.fullmatch(value)):
        return text
    return f"{name}={HIDDEN}" if name in _NAMED | _SHOWN else HIDDEN
