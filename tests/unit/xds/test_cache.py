"""The snapshot cache: atomic, versioned by content, cheap where nothing changed."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.config.endpoint.v3 import endpoint_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.xds_world import make
from xds_control.xds import CDS, EDS, LDS, Change, InvalidResource, SnapshotCache, Wrapped, content_version
from xds_control.xds.view import EMPTY, LOG_LENGTH, GroupView


def eds(**revisions: int) -> dict[str, dict[str, Any]]:
    return {EDS.type_url: {n: make(EDS, n, r) for n, r in revisions.items()}}


def names(change: Change, rtype: Any = EDS) -> tuple[set[str], set[str]]:
    found = change.types.get(rtype.type_url)
    return (set(found.updated), set(found.removed)) if found is not None else (set(), set())


def test_set_replaces_the_named_types_and_tells_what_changed() -> None:
    cache = SnapshotCache()
    assert names(cache.set("", eds(a=1, b=1))) == ({"a", "b"}, set())
    assert names(cache.set("", eds(a=2, c=1))) == ({"a", "c"}, {"b"})
    assert not cache.set("", eds(a=2, c=1))
    cache.set("", {CDS.type_url: {"a": make(CDS, "a", 1)}})
    assert set(cache.view_of("", EDS.type_url).resources) == {"a", "c"}, "a type that is not named stays"
    assert names(cache.set("", {EDS.type_url: {}})) == (set(), {"a", "c"})


def test_update_edits_single_resources() -> None:
    cache = SnapshotCache()
    cache.set("", eds(a=1, b=1))
    assert names(cache.update("", eds(c=1), {EDS.type_url: ["a", "never"]})) == ({"c"}, {"a"})
    assert set(cache.view_of("", EDS.type_url).resources) == {"b", "c"}
    assert names(cache.update("", eds(b=2), {EDS.type_url: ["b"]})) == ({"b"}, set()), "put wins over remove"


def test_an_invalid_resource_is_named_and_nothing_changes() -> None:
    cache = SnapshotCache()
    cache.set("", eds(a=1, b=1))
    before = cache.group("")
    bad = make(EDS, "b", 2)
    bad.endpoints[0].lb_endpoints[0].load_balancing_weight.value = 0
    world = {EDS.type_url: {"a": make(EDS, "a", 2), "b": bad}, CDS.type_url: {"a": make(CDS, "a", 1)}}
    with pytest.raises(InvalidResource, match=r"'b'.*weight 0") as refused:
        cache.set("", world)
    assert (refused.value.name, refused.value.type_url) == ("b", EDS.type_url)
    assert refused.value.code == "xds-resource-invalid"
    assert cache.group("") is before
    # Not strict: the good ones pass, the bad one keeps its last good version.
    change = cache.set("", world, strict=False)
    assert names(change) == ({"a"}, set())
    assert [p.name for p in change.invalid] == ["b"]
    assert cache.view_of("", EDS.type_url).resources["b"].body == make(EDS, "b", 1).SerializeToString()


def test_an_invalid_first_version_is_simply_not_there() -> None:
    cache = SnapshotCache()
    with pytest.raises(InvalidResource):
        cache.set("", {EDS.type_url: {"": make(EDS, "", 1)}})
    assert cache.group("") is None, "a refused first snapshot is none"
    cache.set("", {EDS.type_url: {"a": b"\xff\xff", "b": make(EDS, "b", 1)}}, strict=False)
    assert set(cache.view_of("", EDS.type_url).resources) == {"b"}


def test_every_form_of_a_resource_is_the_same_resource() -> None:
    message = make(EDS, "a", 1)
    raw: bytes = message.SerializeToString(deterministic=True)
    cache = SnapshotCache()
    cache.set("", {EDS.type_url: {"a": message}})
    for form in (raw, bytearray(raw), memoryview(raw), Wrapped(raw), Wrapped(message)):
        assert not cache.set("", {EDS.type_url: {"a": form}})
    assert cache.set("", {EDS.type_url: {"a": Wrapped(raw, ttl=5.0)}})
    assert cache.set("", {EDS.type_url: {"a": Wrapped(raw, ttl=6.0)}})
    assert not cache.set("", {EDS.type_url: {"a": Wrapped(raw, ttl=6.0)}})

    class Other:
        def __bytes__(self) -> bytes:
            return raw

    assert cache.set("", {EDS.type_url: {"a": Other()}}), "the TTL has gone"
    for wrong in (None, 3, "text"):
        with pytest.raises(TypeError):
            cache.set("", {EDS.type_url: {"a": wrong}})
    for ttl in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="ttl"):
            Wrapped(raw, ttl=ttl)


def test_maps_serialise_the_same_in_any_order() -> None:
    def with_metadata(keys: list[str]) -> Any:
        made = make(EDS, "a", 1)
        for key in keys:
            made.endpoints[0].lb_endpoints[0].metadata.filter_metadata[key].update({"x": 1, "y": 2})
        return made

    cache = SnapshotCache()
    keys = [f"k{i}" for i in range(20)]
    cache.set("", {EDS.type_url: {"a": with_metadata(keys)}})
    assert not cache.set("", {EDS.type_url: {"a": with_metadata(keys[::-1])}})


def test_only_what_changed_is_hashed_and_bytes_are_not_serialised() -> None:
    cache = SnapshotCache()
    world = {f"c{i}": make(EDS, f"c{i}", 1).SerializeToString() for i in range(500)}
    cache.set("", {EDS.type_url: world})
    hashed = cache.stats.hashed
    world["c7"] = make(EDS, "c7", 2).SerializeToString()
    change = cache.set("", {EDS.type_url: world})
    assert names(change) == ({"c7"}, set())
    assert cache.stats.hashed == hashed + 1
    assert cache.stats.serialisations == 0


def test_groups_are_apart_and_can_be_cleared() -> None:
    cache = SnapshotCache()
    heard: list[tuple[str, bool]] = []
    stop = cache.listen(lambda group, view: heard.append((group, view is not None)))
    cache.set("a", eds(x=1))
    cache.set("b", eds(x=2))
    cache.set("b", eds(x=2))
    cache.clear("a")
    cache.clear("a")
    assert heard == [("a", True), ("b", True), ("a", False)]
    assert list(cache.groups()) == ["b"]
    stop()
    stop()
    cache.clear("b")
    assert len(heard) == 3


def test_an_empty_first_snapshot_is_a_snapshot() -> None:
    cache = SnapshotCache()
    assert not cache.set("", {})
    assert isinstance(cache.group(""), GroupView)


def test_changes_are_told_in_push_order() -> None:
    cache = SnapshotCache()
    change = cache.set("", {LDS.type_url: {"l": make(LDS, "l", 1)}, **eds(a=1), CDS.type_url: {"a": make(CDS, "a", 1)}})
    assert list(change.types) == [CDS.type_url, EDS.type_url, LDS.type_url]


def test_without_validation_anything_passes_but_references_are_still_found() -> None:
    cache = SnapshotCache(validate=False)
    cache.set("", {EDS.type_url: {"a": b"\xff"}, CDS.type_url: {"a": make(CDS, "a", 1), "b": b"\xff"}})
    assert cache.view_of("", CDS.type_url).resources["a"].refs == ("a",)
    assert cache.view_of("", CDS.type_url).resources["b"].refs == ()


def test_a_message_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidResource, match=r"Cluster, not a envoy.*ClusterLoadAssignment"):
        SnapshotCache().set("", {EDS.type_url: {"a": make(CDS, "a", 1)}})


def test_versions_depend_on_content_alone() -> None:
    body = endpoint_pb2.ClusterLoadAssignment(cluster_name="a").SerializeToString()
    assert content_version(body) == content_version(bytes(body))
    assert content_version(body) != content_version(body, ttl=1.0) != content_version(body, ttl=2.0)
    assert content_version(body, aliases=("x",)) != content_version(body)
    first, second = SnapshotCache(), SnapshotCache()
    first.set("", eds(a=1, b=1))
    for step in (eds(b=7, c=1), eds(a=9), eds(b=1, a=1)):
        second.set("other", step)
    assert first.view_of("", EDS.type_url).version == second.view_of("other", EDS.type_url).version


_worlds = st.lists(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 3), max_size=6), min_size=1, max_size=LOG_LENGTH + 10
)


@settings(max_examples=60, deadline=None)
@given(worlds=_worlds)
def test_a_view_knows_what_changed_since_any_generation_that_it_remembers(worlds: list[dict[str, int]]) -> None:
    cache = SnapshotCache(validate=False)
    views = [EMPTY]
    for world in worlds:
        cache.set("", {EDS.type_url: {n: bytes([r]) for n, r in world.items()}})
        view = cache.view_of("", EDS.type_url)
        if view is not views[-1]:
            assert view.generation == views[-1].generation + 1
            views.append(view)
    newest = views[-1]
    fresh = SnapshotCache(validate=False)
    fresh.set("", {EDS.type_url: {n: r.body for n, r in newest.resources.items()}})
    assert fresh.view_of("", EDS.type_url).version == newest.version
    for view in views:
        changed = newest.changed_since(view.generation)
        different = {n for n in {*view.resources, *newest.resources} if view.versions.get(n) != newest.versions.get(n)}
        if changed is None:
            assert newest.generation - view.generation > LOG_LENGTH
        else:
            assert different <= set(changed)
        for name in set(view.resources) - set(newest.resources):
            if changed is not None:
                assert newest.removed(name) is not None
