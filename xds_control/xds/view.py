"""What one group of clients should hold: immutable, with a short memory of what changed (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from xds_control.xds.resource import STATE_MODULUS, Resource

LOG_LENGTH: Final = 64
"""Generations that a view remembers. A stream further behind compares everything, which is only slower."""


class LogEntry(NamedTuple):
    """The names that changed in one generation, and the resources that went with it."""

    names: tuple[str, ...]
    removed: Mapping[str, Resource]


class TypeView:
    """The resources of one type for one group.

    generation: counts up by one with every change. version: names the state, equal for equal content.
    """

    __slots__ = ("_aliases", "_log", "_versions", "generation", "resources", "state", "version")

    def __init__(
        self,
        resources: Mapping[str, Resource],
        *,
        generation: int = 0,
        state: int | None = None,
        log: tuple[LogEntry, ...] = (),
    ) -> None:
        self.resources = resources
        self.generation = generation
        self.state = sum(r.state for r in resources.values()) % STATE_MODULUS if state is None else state
        self.version = state_version(self.state)
        self._log = log
        self._versions: dict[str, str] | None = None
        self._aliases: dict[str, str] | None = None

    @property
    def versions(self) -> dict[str, str]:
        """Name → version of everything here. Shared by all streams that hold exactly this: never mutate it."""
        if self._versions is None:
            self._versions = {name: r.version for name, r in self.resources.items()}
        return self._versions

    def get(self, name: str) -> Resource | None:
        return self.resources.get(name)

    def resolve(self, name: str) -> Resource | None:
        """The resource of this name or alias."""
        found = self.resources.get(name)
        if found is None:
            if self._aliases is None:
                self._aliases = {a: r.name for r in self.resources.values() for a in r.aliases}
            target = self._aliases.get(name)
            found = None if target is None else self.resources.get(target)
        return found

    def changed_since(self, generation: int) -> Collection[str] | None:
        """Names that changed after that generation; None when it is too long ago to know."""
        behind = self.generation - generation
        if behind <= 0:
            return () if behind == 0 else None
        if behind > len(self._log) or generation < 0:
            return None
        if behind == 1:
            return self._log[-1].names
        return {name for entry in self._log[-behind:] for name in entry.names}

    def removed(self, name: str) -> Resource | None:
        """The last form of a resource that went recently, None when forgotten or never there."""
        for entry in reversed(self._log):
            gone = entry.removed.get(name)
            if gone is not None:
                return gone
        return None

    def replaced(self, updated: Mapping[str, Resource], removed: Collection[str]) -> TypeView:
        """The next generation, with these resources put and those names gone."""
        resources = dict(self.resources)
        state = self.state
        for name, resource in updated.items():
            old = resources.get(name)
            state += resource.state - (old.state if old is not None else 0)
            resources[name] = resource
        gone = {}
        for name in removed:
            old = resources.pop(name)
            gone[name] = old
            state -= old.state
        entry = LogEntry((*updated, *gone), MappingProxyType(gone))
        return TypeView(
            resources,
            generation=self.generation + 1,
            state=state % STATE_MODULUS,
            log=(*self._log, entry)[-LOG_LENGTH:],
        )


def state_version(state: int) -> str:
    """Version text of a type's state, 32 hex digits."""
    return f"{state:032x}"


EMPTY: Final = TypeView(MappingProxyType({}))


class GroupView:
    """Everything that one group of clients should hold: one atomic state of all types."""

    __slots__ = ("sequence", "types")

    def __init__(self, types: Mapping[str, TypeView], sequence: int) -> None:
        self.types = types
        self.sequence = sequence

    def __getitem__(self, type_url: str) -> TypeView:
        return self.types.get(type_url, EMPTY)
