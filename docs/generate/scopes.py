"""Which routes each scope of a token opens, from the declarations of the server."""

from collections import defaultdict

from penstock.tokens import Access
from tests.applications import all_routes


def routes_by_scope() -> str:
    """Return a foldable list for each scope."""
    by_scope: dict[str, list[str]] = defaultdict(list)
    for name, route in sorted(all_routes().items(), key=lambda one: one[0].split()[::-1]):
        by_scope[str(route.declared.access or "none")].append(name)
    parts = [
        _listing(scope, by_scope[scope])
        for scope in ("none", *(str(access) for access in Access))
        if by_scope[scope]
    ]
    return "\n" + "\n".join(parts)


def _listing(scope: str, names: list[str]) -> str:
    title = "No token needed" if scope == "none" else f"Scope {scope}"
    lines = "\n".join(f"    - `{name}`" for name in names)
    return f'??? note "{title}: {len(names)} routes"\n\n{lines}\n'
