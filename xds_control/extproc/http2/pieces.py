"""Pieces of a body or message that is not whole yet: kept so that they take about the memory that they hold."""

from __future__ import annotations

from typing import Final

Kept = bytes | memoryview | bytearray

_SMALL_BYTES: Final = 512
_JOINED_BYTES: Final = 1 << 16
_MOST_PINNED: Final = 4


def keep(pieces: list[Kept], piece: bytes | memoryview, *, long: bool = False) -> None:
    """Appends a piece. Tiny ones are joined: each is an object.

    long: the rest may be long in coming. Then a view of a much larger read is copied, as it would keep all of that in
    memory; otherwise the other pieces of that read are mostly of the same message.
    """
    size = len(piece)
    if size >= _SMALL_BYTES:
        if long and isinstance(piece, memoryview) and len(piece.obj) > _MOST_PINNED * size:  # type: ignore[arg-type]
            piece = bytes(piece)
        pieces.append(piece)
        return
    last = pieces[-1] if pieces else None
    if isinstance(last, bytearray) and len(last) < _JOINED_BYTES:
        last += piece
    else:
        pieces.append(bytearray(piece))


def handed_over(pieces: list[Kept]) -> list[bytes | memoryview]:
    """The pieces as they are given away: nobody changes them any more."""
    return [bytes(one) if isinstance(one, bytearray) else one for one in pieces]
