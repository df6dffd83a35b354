"""Keeps large request bodies from costing page faults: the C heap holds on to memory that is needed again at once."""

from __future__ import annotations

import ctypes
from typing import Final

# Parameters of glibc's mallopt(3).
_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
_MMAP_THRESHOLD: Final = -3


def keep_heap(keep_bytes: int = 64 << 20, largest_bytes: int = 16 << 20) -> bool:
    """Sets up the allocator of this process; False where it is not glibc's, which then stays as it is.

    By default glibc takes a block of 128 KiB or more from the kernel and gives it back when freed, so that a body of
    400 KB means some hundred page faults for each copy of it: a third of all CPU at that size. Here up to `keep_bytes`
    of free memory stay with the process, and blocks up to `largest_bytes` come from it.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_MMAP_THRESHOLD, largest_bytes), (_TRIM_THRESHOLD, keep_bytes), (_TOP_PAD, 1 << 20))
    return all(mallopt(name, value) == 1 for name, value in settings)
