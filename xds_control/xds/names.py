"""Resource names of the form xdstp://authority/type/id?params: one spelling for each, and globs (pure)."""

from __future__ import annotations

SCHEME = "xdstp:"


def canonical(name: str) -> str:
    """The name with its context parameters sorted, so that their order does not matter. Other names are unchanged."""
    if not name.startswith(SCHEME) or "?" not in name:
        return name
    path, _, rest = name.partition("?")
    query, mark, fragment = rest.partition("#")
    return f"{path}?{'&'.join(sorted(query.split('&')))}{mark}{fragment}"


def glob_prefix(name: str) -> str | None:
    """What every member of a glob collection (`xdstp://.../*`) begins with; None when the name is no glob."""
    if name.startswith(SCHEME) and name.endswith("/*"):
        return name[:-1]
    return None
