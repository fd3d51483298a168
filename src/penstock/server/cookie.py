"""The cookie that keeps a token in a browser, out of the reach of scripts."""

from http.cookies import CookieError, SimpleCookie

from penstock.http.bodies import Scope, header


def cookie_of(scope: Scope) -> str | None:
    """The secret that a browser keeps for this server."""
    try:
        found = SimpleCookie((header(scope, b"cookie") or b"").decode("latin-1"))
    except CookieError:
        return None
    kept = found.get(_name(scope))
    return kept.value if kept is not None and kept.value else None


def keep(scope: Scope, secret: str) -> tuple[bytes, bytes]:
    """The header that has a browser keep a secret until it is closed; an empty one forgets it."""
    origin = header(scope, b"origin") or b""
    secure = scope.get("scheme") == "https" or origin.lower().startswith(b"https://")
    text = f"{_name(scope)}={secret}; Path=/; HttpOnly; SameSite=Strict"
    if secure:
        text += "; Secure"
    if not secret:
        text += "; Max-Age=0"
    return b"set-cookie", text.encode("ascii")


def _name(scope: Scope) -> str:
    """With the port: browsers hand the cookies of one port to all others of the same host."""
    host = (header(scope, b"host") or b"").decode("latin-1")
    _, _, port = host.rpartition(":")
    return f"penstock_{port}" if port.isascii() and port.isdigit() else "penstock"
