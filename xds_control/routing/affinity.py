"""Rendezvous hashing over the pool's slots: the same key finds the same endpoint in every process, without a table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

_MULTIPLY_1 = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY_2 = np.uint64(0xD6E8FEB86659FD93)
_SHIFT = np.uint64(32)
_MASK = 0xFFFFFFFFFFFFFFFF


def ranks(seeds: Words, key: int) -> Words:
    """A pseudo-random rank per endpoint for this key; the highest is the key's home. seeds: one hash per address."""
    mixed = seeds ^ np.uint64(key & 0xFFFFFFFFFFFFFFFF)
    mixed *= _MULTIPLY_1
    mixed ^= mixed >> _SHIFT
    mixed *= _MULTIPLY_2
    mixed ^= mixed >> _SHIFT
    return mixed


def rank(seed: int, key: int) -> int:
    """The same for one endpoint."""
    mixed = ((seed ^ key) * 0x9E3779B97F4A7C15) & _MASK
    mixed ^= mixed >> 32
    mixed = (mixed * 0xD6E8FEB86659FD93) & _MASK
    return mixed ^ mixed >> 32


def order(seeds: Words, key: int, capacities: npt.NDArray[np.float64] | None = None) -> list[int]:
    """Positions in `seeds` from the key's home down. With capacities an endpoint is home to its share of the keys."""
    found = ranks(seeds, key)
    if capacities is None:
        return [int(i) for i in np.argsort(found)[::-1]]
    unit = (found >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54
    return [int(i) for i in np.argsort(np.log(unit) / capacities)[::-1]]
