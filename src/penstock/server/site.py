"""Which web pages may call a server that asks for no token.

A browser sends requests of any page to any address, this machine's included. A page of another
site is told apart by what the browser says of it (`Sec-Fetch-Site`, `Origin`), and one that had
its own name point to this machine meanwhile (DNS rebinding) by the name it calls (`Host`).
Programs say nothing of the kind, and are let in.
"""

import ipaddress
from collections.abc import Collection

from penstock.http.bodies import Scope, header
from penstock.http.problems import Problem

_LOOPBACK = "localhost"
_REMEMBERED = 1_000

PAGE_HEADER, PAGE = b"x-requested-with", b"penstock"
"""What the dashboard sends along, and a page of another site cannot."""


def is_loopback(host: str) -> bool:
    """Whether a name or an address means this machine, and nothing else."""
    if host == _LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Site:
    """What counts as the server's own: its host, loopback, and the origins that are allowed."""

    def __init__(self, host: str = _LOOPBACK, origins: Collection[str] = ()) -> None:
        self._host = host.lower()
        self._origins = frozenset(origin.lower() for origin in origins)
        self._own: set[bytes] = set()  # hosts that were looked at

    def check(self, scope: Scope) -> None:
        """Raise the `Problem` why a request is not served."""
        host = origin = relation = None
        for name, value in scope["headers"]:
            if name == b"host":
                host = value
                if value not in self._own:
                    self._check_host(value)
            elif name == b"origin":
                origin = value
            elif name == b"sec-fetch-site":
                relation = value
        if origin is not None:
            self._check_origin(origin.decode("latin-1").lower(), host or b"")
        elif relation is not None and relation.strip().lower() in (b"cross-site", b"same-site"):
            raise _foreign("a page of another site")

    def _check_host(self, host: bytes) -> None:
        name = _name_of(host.decode("latin-1").strip().lower())
        if name != self._host and not is_loopback(name):
            raise _foreign(f"a caller who takes this server for {name!r:.80}")
        if len(self._own) < _REMEMBERED:
            self._own.add(host)

    def _check_origin(self, origin: str, host: bytes) -> None:
        if origin in self._origins:
            return
        _, _, place = origin.partition("://")
        if not place or place != host.decode("latin-1").strip().lower():
            raise _foreign(f"the page {origin!r:.80}")


def check_own_page(scope: Scope) -> None:
    """Raise the `Problem` why a request with a cookie is not one of the server's own page.

    What changes something has to carry a header that no page of another site can send, since
    browsers ask for leave first, which is not given.
    """
    relation = (header(scope, b"sec-fetch-site") or b"none").strip().lower()
    if relation not in (b"same-origin", b"none"):
        raise Problem(403, "a page of another site cannot use the cookie of this one")
    origin = (header(scope, b"origin") or b"").decode("latin-1").lower()
    host = (header(scope, b"host") or b"").decode("latin-1").strip().lower()
    if origin and relation == b"none" and origin.partition("://")[2] != host:
        raise Problem(403, "a page of another site cannot use the cookie of this one")
    if scope["method"] not in ("GET", "HEAD") and header(scope, PAGE_HEADER) != PAGE:
        raise Problem(403, "with a cookie, this needs the header X-Requested-With: penstock")


def _name_of(host: str) -> str:
    """A host without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


def _foreign(who: str) -> Problem:
    return Problem(
        403,
        f"without tokens only this machine is served, not {who}; "
        "make a token: penstock token create NAME --scope ...",
    )
