"""The snapshot cache: per group of clients, an immutable set of resources that is replaced atomically (pure)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from google.protobuf.message import Message

from xds_control.xds.errors import Invalid, InvalidResource
from xds_control.xds.refs import Inspection, inspect_resource
from xds_control.xds.resource import Resource, content_version
from xds_control.xds.types import resource_type
from xds_control.xds.view import EMPTY, GroupView, TypeView

Given = Any
"""What `set` accepts as a resource: bytes, a protobuf message, anything `bytes()` serialises, or a `Wrapped`."""


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A resource with more than a body: `ttl` seconds after which clients drop it, `aliases` for delta clients."""

    body: Given
    ttl: float | None = None
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.ttl is not None and not 0 < self.ttl <= 315_576_000_000:
            raise ValueError("ttl must be a positive number of seconds")


@dataclass(frozen=True, slots=True)
class TypeChange:
    """Names of one type that were put (new or changed) and that went."""

    updated: tuple[str, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """What one `set` or `update` changed. False when it changed nothing.

    invalid: with `strict=False`, what was refused; the last good version of each stays.
    """

    group: str
    sequence: int
    types: Mapping[str, TypeChange]
    invalid: tuple[Invalid, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.types)


@dataclass(slots=True)
class CacheStats:
    """Counts since start. serialisations: messages turned into bytes. hashed: resources whose content was hashed."""

    sets: int = 0
    changes: int = 0
    serialisations: int = 0
    hashed: int = 0
    rejected: int = 0


Listener = Callable[[str, GroupView | None], None]
Validator = Callable[[str, str, bytes, Message | None], Inspection]


@dataclass(slots=True)
class _Edit:
    updated: dict[str, Resource] = field(default_factory=dict)
    removed: tuple[str, ...] = ()


class SnapshotCache:
    """Resources per group. Not thread-safe: use it from the thread of the event loop that serves.

    validate: check content against what clients reject before it is accepted.
    validator: replaces the built-in check (see `refs.inspect_resource`).
    """

    def __init__(self, *, validate: bool = True, validator: Validator | None = None) -> None:
        self._groups: dict[str, GroupView] = {}
        self._listeners: list[Listener] = []
        self._inspect: Validator = validator or (inspect_resource if validate else _trusting)
        # Groups that hold the same content share it, and the bytes that are sent.
        self._known: WeakValueDictionary[tuple[str, str, str], Resource] = WeakValueDictionary()
        self.stats = CacheStats()

    def set(self, group: str, world: Mapping[str, Mapping[str, Given]], *, strict: bool = True) -> Change:
        """Replaces, in one atomic step, all resources of each type that `world` names; other types stay as they are.

        world: {type_url: {name: resource}}. A resource is serialised `bytes` (cheapest: an unchanged one costs one
        comparison), a protobuf message (serialised deterministically) or `Wrapped`.
        Raises InvalidResource, naming the resource, and changes nothing when a client would reject one. With
        strict=False the bad ones keep their last good version (or stay absent), are listed in `Change.invalid`,
        and the rest is applied.
        """
        edits = {}
        problems: list[Invalid] = []
        for type_url, resources in world.items():
            view = self.view_of(group, type_url)
            edit = self._edit(view, type_url, resources, problems)
            edit.removed = tuple(n for n in view.resources if n not in resources)
            edits[type_url] = edit
        return self._apply(group, edits, problems, strict)

    def update(
        self,
        group: str,
        put: Mapping[str, Mapping[str, Given]] | None = None,
        remove: Mapping[str, Iterable[str]] | None = None,
        *,
        strict: bool = True,
    ) -> Change:
        """Puts and removes single resources in one atomic step; everything else stays. Otherwise like `set`.

        Removing a name that is not there is no error.
        """
        edits: dict[str, _Edit] = {}
        problems: list[Invalid] = []
        for type_url, resources in (put or {}).items():
            edits[type_url] = self._edit(self.view_of(group, type_url), type_url, resources, problems)
        for type_url, names in (remove or {}).items():
            edit = edits.setdefault(type_url, _Edit())
            present = self.view_of(group, type_url).resources
            put_here = (put or {}).get(type_url, {})
            edit.removed = tuple(n for n in dict.fromkeys(names) if n in present and n not in put_here)
        return self._apply(group, edits, problems, strict)

    def clear(self, group: str) -> None:
        """Forgets a group. Its streams end with UNAVAILABLE; clients keep what they have."""
        if self._groups.pop(group, None) is not None:
            for listener in tuple(self._listeners):
                listener(group, None)

    def group(self, group: str) -> GroupView | None:
        """The state of a group, None before its first `set`."""
        return self._groups.get(group)

    def groups(self) -> Collection[str]:
        """Names of the groups that have a state."""
        return self._groups.keys()

    def view_of(self, group: str, type_url: str) -> TypeView:
        """The state of one type of a group, empty when there is none."""
        found = self._groups.get(group)
        return EMPTY if found is None else found[type_url]

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener(group, view)` after every change (view None = cleared). Returns what undoes it."""
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop

    def _edit(self, view: TypeView, type_url: str, resources: Mapping[str, Given], problems: list[Invalid]) -> _Edit:
        edit = _Edit()
        for name, given in resources.items():
            ttl: float | None = None
            aliases: tuple[str, ...] = ()
            if isinstance(given, Wrapped):
                given, ttl, aliases = given.body, given.ttl, given.aliases
            body, message = self._serialised(given)
            old = view.resources.get(name)
            if old is not None and old.body == body and old.ttl == ttl and old.aliases == aliases:
                continue
            self.stats.hashed += 1
            version = content_version(body, ttl, aliases)
            key = (type_url, name, version)
            resource = self._known.get(key)
            if resource is None or resource.body != body:
                found = self._inspect(type_url, name, body, message)
                if found.problems:
                    problems.extend(Invalid(type_url, name, text) for text in found.problems)
                    continue
                resource = Resource(type_url, name, body, ttl=ttl, aliases=aliases, refs=found.refs, version=version)
                self._known[key] = resource
            edit.updated[name] = resource
        return edit

    def _serialised(self, given: Given) -> tuple[bytes, Message | None]:
        if isinstance(given, bytes):
            return given, None
        if isinstance(given, (bytearray, memoryview)):
            return bytes(given), None
        self.stats.serialisations += 1
        if isinstance(given, Message):
            return given.SerializeToString(deterministic=True), given
        if isinstance(given, (str, int)) or given is None:
            raise TypeError(f"a resource is bytes or a message, not {type(given).__name__}")
        return bytes(given), None

    def _apply(self, group: str, edits: Mapping[str, _Edit], problems: list[Invalid], strict: bool) -> Change:
        self.stats.sets += 1
        if problems:
            self.stats.rejected += 1
            if strict:
                raise InvalidResource(problems)
        before = self._groups.get(group)
        types = dict(before.types) if before is not None else {}
        changes: dict[str, TypeChange] = {}
        for type_url, edit in edits.items():
            if edit.updated or edit.removed:
                types[type_url] = types.get(type_url, EMPTY).replaced(edit.updated, edit.removed)
                changes[type_url] = TypeChange(tuple(edit.updated), edit.removed)
        sequence = before.sequence if before is not None else 0
        if changes or before is None:
            sequence += 1
            view = self._groups[group] = GroupView(types, sequence)
            self.stats.changes += 1
            for listener in tuple(self._listeners):
                listener(group, view)
        ordered = dict(sorted(changes.items(), key=lambda item: resource_type(item[0]).rank))
        return Change(group, sequence, ordered, tuple(problems))


def _trusting(type_url: str, name: str, body: bytes, message: Message | None) -> Inspection:
    return Inspection((), inspect_resource(type_url, name, body, message, check=False).refs)
