"""Redaction: addresses of stores and servers without their secrets, for messages and logs.

Only this module decides which parts of an address may be shown. It reads an address the way a
person writes it, not the way a parser accepts it: a password with an unescaped `/`, `@` or `?` is
still a password. Where the two interpretations differ, it hides more.
"""

import re
from string import ascii_letters, digits

HIDDEN = "***"

# Parameters whose values only say how to connect. All others are hidden, including unknown ones
# and the second half of a password that contains an `&`.
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
# Parameters whose names are shown, so that a reader sees what was given.
_NAMED = frozenset(
    {"dbname", "options", "passfile", "password", "sslcert", "sslkey", "sslpassword"}
)

_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.\-]*):")
_USER = re.compile(r"(?:[\w.~+\-]|%40)*")
_HOST = re.compile(r"(?:\[[^\]\[@]*\]|[^:@\[\]#;=\s]*)(?::\d*)?")
# The end of a path, where something starts that was meant as a parameter.
_PARAMETER = re.compile(r"[#;=]")
_PLAIN = re.compile(r"[^=#\s]*")
_PIECE = re.compile(r"\S+")
_QUOTE = re.compile(r"['\"<>]|\Z")
_IN_SCHEME = ascii_letters + digits + "+.-"
_WITH_TOKEN = ("http", "https", "ws", "wss")


def redacted(url: str) -> str:
    """Return an address with `***` in place of everything that may be a secret.

    Accepts any text that was given as an address, whether it is valid or not.
    """
    found = _SCHEME.match(url)
    if found is None:
        return HIDDEN if re.search(r"[@=:]", url) else url
    scheme, rest = found[1], url[found.end() :]
    if not rest.startswith("//"):
        return f"{scheme}:{HIDDEN}" if re.search(r"[@=]|:\S*:", rest) else url
    head, question, query = rest[2:].partition("?")
    if "@" in query:  # in a parameter, or after a password that contains a question mark
        return f"{scheme}://{HIDDEN}"
    place = _place(scheme.lower(), head)
    return f"{scheme}://{place}" + (f"?{_parameters(query)}" if question else "")


def redacted_within(text: str) -> str:
    """Return a text in which every address is shown as `redacted` shows it.

    For texts from elsewhere, such as the error of a library. An address ends at a quote or a
    space, without the punctuation before it; a quote that an `@` follows belongs to a password.
    """
    return _PIECE.sub(lambda found: _redacted_piece(found[0]), text)


def _redacted_piece(piece: str) -> str:
    """Return a text without spaces with its addresses redacted.

    It scans from left to right and never back: patterns that find both ends of an address try each
    start with each end, and a long text from elsewhere must not block whoever shows it.
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
        # Without a scheme, it is not an address.
        done = max(start + len(address), mark + 3)
        shown.append(redacted(piece[start:done]) if start < mark else piece[start:done])
    return "".join(shown) + piece[done:]


def _place(scheme: str, head: str) -> str:
    """Return what precedes the parameters: user, hosts and path."""
    userinfo, at, place = head.rpartition("@")
    # An `@` in a path: without a colon there is no password, except for a token.
    if at and ":" not in userinfo and "/" in userinfo and scheme not in _WITH_TOKEN:
        userinfo, at, place = "", "", head
    hosts, slash, path = place.partition("/")
    if not all(_HOST.fullmatch(host) for host in hosts.split(",")):
        hosts = HIDDEN  # an invalid port may be a password whose `@` is missing
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
