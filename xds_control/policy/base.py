"""How a section of the policy is written: frozen structs whose fields document themselves.

Every field of a section is `Annotated[type, meta(...)]`: description, unit and range live
there, and the reference page, the JSON Schema and the error texts are made from them.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every policy section: immutable, keyword-only, unknown fields are errors."""


bound = msgspec.Meta
"""Range of an optional field, next to its type: `Annotated[Annotated[float, bound(gt=0)] | None, meta("...")]`."""


def meta(
    description: str,
    *,
    unit: str | None = None,
    example: Any = None,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
    pattern: str | None = None,
) -> msgspec.Meta:
    """Constraints and documentation of one field, for use inside `Annotated`."""
    extra: dict[str, Any] = {}
    if unit is not None:
        extra["unit"] = unit
    options: dict[str, Any] = {
        "gt": gt,
        "ge": ge,
        "lt": lt,
        "le": le,
        "min_length": min_length,
        "max_length": max_length,
        "pattern": pattern,
    }
    return msgspec.Meta(
        description=description,
        examples=None if example is None else [example],
        extra=extra or None,
        **{name: value for name, value in options.items() if value is not None},
    )
