"""What the processors learned about token counts: merged here, and given back to each as the sum of the others."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from xds_control.inspect import TokenEstimator
from xds_control.policy.inspect import TokensPolicy


class Estimates:
    """The newest state of each processor, as bytes. log: where unreadable ones are told, ever more seldom."""

    def __init__(self, log: Any) -> None:
        self._states: dict[str, bytes] = {}
        self._bad: dict[str, int] = {}
        self._log = log

    def take(self, source: str, state: bytes) -> None:
        """What a processor knows, in place of what it said before."""
        self._states[source] = state

    def shared(self, sources: Collection[str], policy: TokensPolicy) -> dict[str, bytes]:
        """What each of the processors should hear; nothing while nobody has learned anything."""
        for gone in [name for name in self._states if name not in sources]:
            del self._states[gone]
            self._bad.pop(gone, None)
        if not self._states:
            return {}
        merged = TokenEstimator(policy)
        for source, state in self._states.items():
            try:
                merged.merge(msgspec.json.decode(state, type=dict), source)
            except (msgspec.DecodeError, RecursionError) as error:
                self._refuse(source, error)
        return {source: msgspec.json.encode(merged.export(without=source)) for source in sources}

    def _refuse(self, source: str, error: Exception) -> None:
        count = self._bad[source] = self._bad.get(source, 0) + 1
        if count & (count - 1) == 0:  # the 1st, 2nd, 4th, 8th: a sender that is wrong is so each time
            self._log.warning("estimates-refused", source=source, error=str(error), count=count)
