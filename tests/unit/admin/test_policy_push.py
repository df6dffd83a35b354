"""Pushes of policies over the real core and a real store: tried, refused, recorded, rolled back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from xds_control.admin.backend import BadRequest, Unknown
from xds_control.admin.checks import CHECKS
from xds_control.admin.core import ControlCore
from xds_control.admin.dry_run import Effect, changes, routes, try_policy
from xds_control.admin.first_policy import first_policy, mark_of
from xds_control.admin.policies import Policies, VersionConflict
from xds_control.admin.policy_file import PolicyFile
from xds_control.admin.switching import Switch
from xds_control.discovery.targets import endpoints
from xds_control.errors import ConfigError
from xds_control.policy.load import Files, load_files
from xds_control.policy.schema import Policy
from xds_control.policy.store import PolicyRecord, StoreError
from xds_control.policy.store.sqlite import SqliteStore
from xds_control.proto import admin_pb2 as pb
from xds_control.xds.resources.world import WorldBuilder

BASE = """\
version: xds-control/v1
pools:
- name: chat
  models: [m]
  endpoints:
  - {address: "10.0.0.1:80"}
  - {address: "10.0.0.2:80"}
"""
THIRD = BASE + '  - {address: "10.0.0.3:80"}\n'
ONE_LEFT = BASE.replace('  - {address: "10.0.0.2:80"}\n', "").replace("10.0.0.1", "10.0.0.9")


@dataclass
class FakeLive:
    """A core that is switched without any edges."""

    core: ControlCore
    now: float = 0.0
    fail: str = ""
    switched: list[str] = field(default_factory=list)
    abandoned: int = 0

    @property
    def policy(self) -> Policy:
        return self.core.policy

    async def try_policy(self, policy: Policy) -> Effect:
        return try_policy(self.core, policy, endpoints(policy.pools), self.now)

    async def prepare(self, policy: Policy, version: str) -> Switch:
        if self.fail:
            raise ConfigError(self.fail)
        return Switch(policy, version, WorldBuilder(), {}, ())

    def switch(self, prepared: Switch) -> None:
        self.now += 0.1
        self.core.use_policy(prepared.policy, prepared.version, self.now)
        self.core.set_endpoints(endpoints(prepared.policy.pools), self.now)
        self.core.tick(self.now)
        self.switched.append(prepared.version)

    def abandon(self, prepared: Switch) -> None:
        self.abandoned += 1


class World:
    def __init__(self, text: str = BASE, store: SqliteStore | None = None) -> None:
        self.store = store or SqliteStore(None)
        loaded, record = first_policy(self.store, load_files([("p.yaml", text)], CHECKS), 1.0)
        core = ControlCore(loaded.policy, loaded.version, "epoch")
        core.set_endpoints(endpoints(loaded.policy.pools), 0.0)
        core.tick(0.0)
        self.live = FakeLive(core)
        self.changed: list[tuple[str, PolicyRecord]] = []
        self.refused: list[tuple[str, str]] = []
        self.policies = Policies(
            self.live,
            self.store,
            loaded,
            record,
            on_change=lambda before, made: self.changed.append((before, made)),
            on_refused=lambda who, why: self.refused.append((who, why)),
            wall=lambda: 5.0,
        )

    async def push(self, text: str, **options: Any) -> pb.PushPolicyResponse:
        request = pb.PushPolicyRequest(files=[pb.PolicyFile(name="p.yaml", text=text)], **options)
        return await self.policies.push(request, "ann")


async def test_a_push_is_in_force_recorded_and_audited() -> None:
    world = World()
    base = world.policies.version
    answer = await world.push(THIRD, reason="more room")
    assert answer.accepted
    assert answer.info.version == world.policies.version == world.live.core.policy_version != base
    assert [one.endpoint.address for one in world.live.core.snapshot.pools["chat"].endpoints][-1] == "10.0.0.3:80"  # type: ignore[union-attr]
    assert (answer.info.number, answer.info.by, answer.info.reason, answer.info.active) == (2, "ann", "more room", True)
    assert [one.source for one in world.policies.versions(0).policies] == ["push", "start"]
    assert world.store.audit(1)[0].by == "ann"
    assert world.changed[0][0] == base
    assert world.policies.get("").files[0].text == THIRD
    assert world.policies.get(base).files[0].text == BASE


async def test_the_dry_run_shows_each_endpoint_and_touches_nothing() -> None:
    world = World()
    before = world.live.core.snapshot
    answer = await world.push(THIRD, dry_run=True)
    assert answer.accepted
    assert world.live.switched == []
    assert world.live.core.snapshot is before
    rows = {row.endpoint: row for row in answer.diff.weights}
    assert rows["10.0.0.1:80"].share_before == pytest.approx(0.5)
    assert rows["10.0.0.1:80"].share == pytest.approx(1 / 3)
    assert not rows["10.0.0.3:80"].HasField("weight_before")
    assert [one.path for one in answer.diff.fields] == ["pools[chat].endpoints[10.0.0.3:80]"]
    assert not answer.diff.needs_force


async def test_capacity_moves_the_weights_of_the_dry_run() -> None:
    world = World()
    text = BASE.replace('{address: "10.0.0.1:80"}', '{address: "10.0.0.1:80", capacity: 3}')
    answer = await world.push(text, dry_run=True)
    rows = {row.endpoint: row for row in answer.diff.weights}
    assert rows["10.0.0.1:80"].share == pytest.approx(0.75, abs=0.01)
    assert answer.diff.moved["chat"] == pytest.approx(0.25, abs=0.01)


async def test_a_bad_policy_changes_nothing_and_says_everything() -> None:
    world = World()
    answer = await world.push(THIRD.replace("models:", "modles:") + "x: 1\n")
    assert not answer.accepted
    assert [(one.line, one.path) for one in answer.problems] == [(4, "pools[0].modles"), (9, "x")]
    assert world.live.switched == []
    assert len(world.refused) == 1
    assert len(world.store.policies(9)) == 1


async def test_an_unexpected_version_is_a_conflict() -> None:
    world = World()
    base = world.policies.version
    await world.push(THIRD, expect_version=base)
    with pytest.raises(VersionConflict, match="put there by ann"):
        await world.push(BASE, expect_version=base)
    assert len(world.live.switched) == 1


async def test_what_takes_everything_away_has_to_be_forced() -> None:
    world = World()
    answer = await world.push(ONE_LEFT)
    assert not answer.accepted
    assert answer.diff.needs_force
    assert "100% of the traffic of pool chat would move" in answer.diff.why_force
    empty = await world.push(BASE.partition("  endpoints:")[0])
    assert "left without endpoints" in empty.diff.why_force
    assert list(empty.diff.emptied) == ["chat"]
    assert empty.diff.moved["chat"] == pytest.approx(1.0)
    assert world.live.switched == []
    assert (await world.push(ONE_LEFT, force=True)).accepted


async def test_adding_endpoints_needs_no_force() -> None:
    world = World()
    text = BASE + "".join(f'  - {{address: "10.0.1.{n}:80"}}\n' for n in range(1, 9))
    answer = await world.push(text)
    assert answer.accepted
    assert answer.diff.moved["chat"] == pytest.approx(0.8, abs=0.01)


async def test_ports_wait_for_a_restart_and_say_so() -> None:
    world = World()
    answer = await world.push(THIRD + "control: {http: '127.0.0.1:9'}\nprocessors: {count: 3}\n")
    assert answer.accepted
    assert {one.path for one in answer.warnings} == {"control.http", "processors.count"}
    assert world.live.policy.processors.count == 1


async def test_rollback_goes_back_and_can_be_rolled_back() -> None:
    world = World()
    base = world.policies.version
    await world.push(THIRD)
    third = world.policies.version
    answer = await world.policies.rollback(pb.RollbackPolicyRequest(reason="no"), "bob")
    assert (answer.info.version, answer.info.rolled_back_to, answer.info.source) == (base, base, "rollback")
    again = await world.policies.rollback(pb.RollbackPolicyRequest(version=third), "bob")
    assert again.info.version == third
    with pytest.raises(BadRequest, match="in force already"):
        await world.policies.rollback(pb.RollbackPolicyRequest(version=third), "bob")
    with pytest.raises(Unknown):
        await world.policies.rollback(pb.RollbackPolicyRequest(version="nope"), "bob")
    with pytest.raises(Unknown, match="no earlier"):
        await World().policies.rollback(pb.RollbackPolicyRequest(), "bob")


async def test_what_cannot_be_kept_is_not_switched_to() -> None:
    world = World()
    world.store.close()
    with pytest.raises(StoreError):
        await world.push(THIRD)
    assert world.live.switched == []
    assert world.live.abandoned == 1
    world = World()
    world.live.fail = "no such certificate"
    with pytest.raises(ConfigError):
        await world.push(THIRD)
    assert len(world.store.policies(9)) == 1


async def test_a_restart_keeps_what_was_pushed_until_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    world = World(store=SqliteStore(path))
    await world.push(THIRD)
    third = world.policies.version
    world.store.close()
    again = World(store=SqliteStore(path))
    assert again.policies.version == third
    assert len(again.store.policies(9)) == 2
    again.store.close()
    changed = World(BASE + "log: {level: debug}\n", SqliteStore(path))
    assert changed.live.policy.log.level == "debug"
    assert changed.store.policies(1)[0].source == "file"


async def test_a_watched_file_is_pushed_when_it_has_settled(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(BASE)
    pushed: list[Files] = []
    answer = ""

    async def push(files: Files, mark: str) -> str:
        assert mark == mark_of(files)
        pushed.append(files)
        return answer

    watched = PolicyFile(path, mark_of([("", BASE)]), push)
    await watched.look()
    path.write_text(THIRD)
    await watched.look()
    assert pushed == []
    await watched.look()
    assert pushed == [[(str(path), THIRD)]]
    await watched.look()
    assert len(pushed) == 1

    answer = f"{path}:3:1: pools: wrong"
    path.write_text(ONE_LEFT)
    await watched.look()
    await watched.look()
    assert watched.problem == f"policy file refused: {path}:3:1: pools: wrong"
    assert len(pushed) == 2
    watched.settled([("elsewhere", ONE_LEFT)])
    assert watched.problem == ""

    path.unlink()
    await watched.look()
    await watched.look()
    assert "cannot be read" in watched.problem
    assert watched.problem.count(str(path)) == 1
    path.write_text(ONE_LEFT)
    await watched.look()
    await watched.look()
    assert watched.problem == ""
    assert len(pushed) == 2


def test_differences_name_things_by_their_names() -> None:
    before = {"pools": [{"name": "a", "x": 1}, {"name": "b", "x": 1}], "y": 1}
    after = {"pools": [{"name": "b", "x": 2}, {"name": "a", "x": 1}], "z": 1}
    found = {(one.path, one.before, one.after) for one in changes(before, after)}
    assert ("pools[b].x", "1", "2") in found
    assert ("y", "1", "") in found
    assert ("z", "", "1") in found
    assert any(path == "pools (order)" for path, _b, _a in found)


def test_something_new_or_gone_is_told_without_its_empty_fields() -> None:
    one = {"name": "a", "endpoints": [{"address": "h:1", "capacity": None, "labels": {}, "gpu": 0, "tls": False}]}
    (added,) = changes({"pools": []}, {"pools": [one]})
    assert (added.path, added.before) == ("pools[a]", "")
    assert json.loads(added.after) == {"name": "a", "endpoints": [{"address": "h:1", "gpu": 0, "tls": False}]}
    (gone,) = changes({"pools": [one]}, {"pools": []})
    assert (gone.path, gone.before, gone.after) == ("pools[a]", added.after, "")


def test_routes_are_told_in_sentences() -> None:
    def policy(text: str) -> Policy:
        return load_files([("p", BASE + text)]).policy

    rules = "routing: {rules: [{name: a, when: 'true'}, {name: b, when: 'false'}]}\n"
    other = "routing: {rules: [{name: b, when: 'false'}, {name: a, when: 'false'}, {name: c, when: 'true'}]}\n"
    assert routes(policy(rules), policy(rules)) == []
    assert routes(policy(rules), policy(other)) == [
        "rule a changes",
        "rule c is added",
        "the order of the rules changes",
    ]


def _watched(folder: Path) -> tuple[Path, PolicyFile, list[Files]]:
    """A file that is watched, and what of it is pushed."""
    path = folder / "p.yaml"
    path.write_text(BASE)
    pushed: list[Files] = []

    async def push(files: Files, mark: str) -> str:
        pushed.append(files)
        return ""

    return path, PolicyFile(path, mark_of([("", BASE)]), push), pushed


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_fifo, "is not a regular file"),
        (_huge, "larger than 8388608 bytes"),
        (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
        (lambda path: path.symlink_to(path.parent / "nowhere"), "cannot be read"),
        (lambda path: path.symlink_to(path), "cannot be read"),
        (lambda path: path.mkdir(), "has no file that ends in"),
        (lambda path: path.write_bytes(b"\x7fELF\xff\x00" * 1000), "is not UTF-8"),
    ],
)
async def test_whatever_takes_the_place_of_the_watched_file_is_told_and_the_next_file_taken(
    tmp_path: Path, make: Callable[[Path], None], words: str
) -> None:
    path, watched, pushed = _watched(tmp_path)
    path.unlink()
    make(path)
    for _ in range(3):
        await watched.look()
    assert words in watched.problem
    assert pushed == []
    (path.rmdir if path.is_dir() and not path.is_symlink() else path.unlink)()
    path.write_text(THIRD)
    for _ in range(3):
        await watched.look()
    assert watched.problem == ""
    assert pushed == [[(str(path), THIRD)]]


async def test_a_file_whose_contents_stay_and_whose_times_move_is_not_pushed(tmp_path: Path) -> None:
    path, watched, pushed = _watched(tmp_path)
    path.chmod(0o600)
    for _ in range(3):
        await watched.look()
    assert pushed == []
