"""Sets of slots: bits of an integer, as arrays. Remembered, because the same sets come again and again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xds_control.routing.prefix_index import indices
from xds_control.routing.slot import Floats, Places

_KEPT = 2048


class Sets:
    """Arrays of sets among `size` slots; `resize` forgets them."""

    def __init__(self, size: int) -> None:
        self.resize(size)

    def resize(self, size: int) -> None:
        """Another number of slots."""
        self.size = size
        self._places: dict[int, Places] = {}
        self._masks: dict[int, npt.NDArray[np.bool_]] = {}
        self._inside: dict[int, Floats] = {}

    def places(self, bits: int) -> Places:
        """Slots of a set, as an index array."""
        found = self._places.get(bits)
        if found is None:
            if len(self._places) >= _KEPT:
                self._places.clear()
            if bits.bit_count() > 8:
                raw = np.frombuffer(bits.to_bytes(self.size // 8, "little"), dtype=np.uint8)
                found = np.unpackbits(raw, bitorder="little").nonzero()[0]
            else:
                found = np.array(indices(bits), dtype=np.intp)
            self._places[bits] = found
        return found

    def inside(self, bits: int) -> Floats:
        """1 for every slot of the set, 0 elsewhere."""
        found = self._inside.get(bits)
        if found is None:
            if len(self._inside) >= _KEPT // 4:
                self._inside.clear()
            found = self._inside[bits] = np.zeros(self.size)
            found[self.places(bits)] = 1.0
        return found

    def outside(self, bits: int) -> npt.NDArray[np.bool_]:
        """True for every slot that is not in the set."""
        found = self._masks.get(bits)
        if found is None:
            if len(self._masks) >= _KEPT // 8:
                self._masks.clear()
            found = self._masks[bits] = np.ones(self.size, dtype=np.bool_)
            found[self.places(bits)] = False
        return found
