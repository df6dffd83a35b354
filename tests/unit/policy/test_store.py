"""The store: what was acknowledged is there after SIGKILL at any instant, and nothing is half there."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from xds_control.policy.store import AuditRecord, PolicyRecord, StoreError
from xds_control.policy.store.sqlite import SqliteStore, open_store

ACT = AuditRecord(1.0, "ann", "push", "v1", "detail", "because")


def record(version: str, at: float = 1.0) -> PolicyRecord:
    return PolicyRecord(version, at, "ann", "why", "push", (("p.yaml", "version: 1\n"),), b"{}")


def test_policies_come_back_newest_first(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    assert store.active_policy() is None
    for index in range(5):
        assert store.add_policy(record(f"v{index}"), ACT).number == index + 1
    store.close()
    again = SqliteStore(tmp_path / "s.db")
    assert [one.version for one in again.policies(3)] == ["v4", "v3", "v2"]
    assert again.policy("v1") == PolicyRecord(
        "v1", 1.0, "ann", "why", "push", (("p.yaml", "version: 1\n"),), b"{}", "", 2
    )
    assert again.policy("nope") is None
    assert len(again.audit(10)) == 5


def test_the_same_version_twice_is_found_newest(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    for version in ("a", "b", "a"):
        store.add_policy(record(version), ACT, file_mark=f"mark-{version}")
    found = store.policy("a")
    assert found is not None
    assert found.number == 3
    assert store.file_mark() == "mark-a"


def test_orders_are_kept_and_taken_back(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    order = {"kind": "pin", "weight": 3, "until": 12.5, "reason": "ü", "by": "ann"}
    store.put_order("a:1", order, AuditRecord(1.0, "ann", "pin", "a:1"))
    store.put_order("b:1", {"kind": "drain"}, AuditRecord(2.0, "bob", "drain", "b:1"))
    store.put_order("b:1", None, AuditRecord(3.0, "bob", "clear", "b:1"))
    store.close()
    again = SqliteStore(tmp_path / "s.db")
    assert again.orders() == {"a:1": order}
    assert [one.action for one in again.audit(10, "b:1")] == ["clear", "drain"]


def test_the_shadow_policy_is_kept_and_ended(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    assert store.shadow() is None
    for version in ("a", "b"):
        store.put_shadow(record(version), AuditRecord(1.0, "ann", "shadow", version))
    store.close()
    again = SqliteStore(tmp_path / "s.db")
    assert again.shadow() == PolicyRecord("b", 1.0, "ann", "why", "shadow", (("p.yaml", "version: 1\n"),), b"")
    again.put_shadow(None, AuditRecord(2.0, "bob", "shadow-clear", "b"))
    assert again.shadow() is None
    assert [one.action for one in again.audit(9)] == ["shadow-clear", "shadow", "shadow"]


HOLDER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from xds_control.policy.store.sqlite import open_store

    store = open_store(sys.argv[1], None)
    print("open", flush=True)
    sys.stdin.read()
    """
)


def test_a_store_is_one_processs_alone_and_free_when_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(StoreError, match=rf"in use by another control process \(pid {holder.pid}\)"):
            open_store(str(path), None)
        with pytest.raises(StoreError, match="in use"):
            open_store(None, _linked(tmp_path))
        SqliteStore(path).close()  # looking is allowed
    finally:
        holder.kill()
        holder.wait()
    store = open_store(str(path), None)
    store.add_policy(record("v"), ACT)
    store.close()
    store.close()
    open_store(str(path), None).close()


def _linked(folder: Path) -> Path:
    """A run folder whose store is the same file by another name."""
    run = folder / "run"
    run.symlink_to(folder)
    (folder / "store.db").symlink_to(folder / "s.db")
    return run


def test_memory_needs_no_file() -> None:
    store = SqliteStore(None)
    store.add_policy(record("v"), ACT)
    assert len(store.policies(9)) == 1


def test_a_file_that_is_none_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.write_bytes(b"this is no database, but it is long enough to be looked at" * 100)
    with pytest.raises(StoreError, match=r"s\.db cannot be used"):
        SqliteStore(path)
    with pytest.raises(StoreError, match="cannot be used"):
        SqliteStore(tmp_path / "none" / "s.db")


def test_a_store_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "s.db").close()
    with sqlite3.connect(tmp_path / "s.db") as db:
        db.execute("PRAGMA user_version=99")
    with pytest.raises(StoreError, match="newer version"):
        SqliteStore(tmp_path / "s.db")


def test_a_failed_change_changes_nothing(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    with pytest.raises(StoreError, match="cannot be written"):
        store.add_policy(record("v"), AuditRecord(1.0, None, "push", "v"))  # type: ignore[arg-type]
    assert store.policies(9) == []
    store.add_policy(record("v"), ACT)
    assert len(store.policies(9)) == 1


CALLS: list[tuple[Any, ...]] = [
    ("active_policy",), ("policies", 100), ("file_mark",), ("orders",), ("shadow",), ("audit", 100),
    ("add_audit", ACT), ("add_policy", record("z"), ACT),
]  # fmt: skip


def test_a_damaged_file_is_an_error_of_the_store_and_nothing_else(tmp_path: Path) -> None:
    good = SqliteStore(tmp_path / "good.db")
    for number in range(20):
        good.add_policy(record(f"v{number}"), ACT)
    good.put_order("e:1", {"kind": "drain"}, None)
    good.put_shadow(record("s"), ACT)
    good.close()
    whole = (tmp_path / "good.db").read_bytes()
    rng = random.Random(5)
    told: list[tuple[str, str]] = []
    for number in range(400):
        data = bytearray(whole)
        if number % 3 == 0:
            for _ in range(rng.choice([1, 5, 50])):
                data[rng.randrange(len(data))] = rng.randrange(256)
        elif number % 3 == 1:
            at = rng.randrange(len(data))
            data[at : at + 4096] = rng.randbytes(len(data[at : at + 4096]))
        else:
            del data[rng.randrange(len(data)) :]
        path = tmp_path / f"{number}.db"
        path.write_bytes(data)
        try:
            with contextlib.closing(SqliteStore(path)) as store:
                for name, *arguments in CALLS:
                    try:
                        getattr(store, name)(*arguments)
                    except StoreError as error:
                        told.append((path.name, str(error)))
        except StoreError as error:
            told.append((path.name, str(error)))
    assert len(told) > 50
    assert [words for name, words in told if name not in words] == []


def test_values_of_other_types_are_no_policy(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    store.add_policy(record("v"), ACT)
    for statement in (
        "UPDATE policies SET at = 'noon'",
        "UPDATE policies SET files = '{}'",
        "UPDATE audit SET by = X'ff'",
    ):
        with sqlite3.connect(tmp_path / "s.db") as db:
            db.execute(statement)
        with pytest.raises(StoreError, match=r"s\.db cannot be read"):
            store.audit(1) if "audit" in statement else store.active_policy()


def test_an_opened_store_is_not_written_without_need(tmp_path: Path) -> None:
    first = SqliteStore(tmp_path / "s.db")
    first.set_file_mark("m")
    first.close()
    with sqlite3.connect(tmp_path / "s.db") as db:
        before = db.execute("PRAGMA data_version").fetchone()
        again = SqliteStore(tmp_path / "s.db")
        again.set_file_mark("m")
        assert db.execute("PRAGMA data_version").fetchone() == before
        again.set_file_mark("n")
        assert db.execute("PRAGMA data_version").fetchone() != before


WRITER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from xds_control.policy.store import AuditRecord, PolicyRecord
    from xds_control.policy.store.sqlite import SqliteStore

    store = SqliteStore(Path(sys.argv[1]))
    start = int(sys.argv[2])
    for number in range(start, start + 100_000):
        version = f"v{number}"
        record = PolicyRecord(version, 1.0, "ann", "", "push", (("p", "x" * 3000),), b"{}")
        store.add_policy(record, AuditRecord(1.0, "ann", "push", version), version)
        store.put_order("a:1", {"kind": "pin", "weight": number}, AuditRecord(1.0, "ann", "pin", version))
        print(number, flush=True)
    """
)


def test_sigkill_at_any_instant_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    script = tmp_path / "writer.py"
    script.write_text(WRITER)
    chance = random.Random(7)
    start = 0
    for _ in range(12):
        process = subprocess.Popen(
            [sys.executable, str(script), str(path), str(start)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        acknowledged = start - 1
        for _ in range(chance.randint(1, 60)):
            acknowledged = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read().split("\n")
        process.wait()
        acknowledged = max([acknowledged, *(int(line) for line in rest[:-1])])

        store = SqliteStore(path)
        active = store.active_policy()
        assert active is not None
        newest = int(active.version[1:])
        assert newest >= acknowledged
        # a change is there whole: with its audit entry and its mark, and the order is never ahead of its policy
        assert store.file_mark() == active.version
        assert store.audit(1, active.version)
        order = store.orders()["a:1"]["weight"]
        assert newest - 1 <= order <= newest
        assert order >= acknowledged
        versions = [int(one.version[1:]) for one in store.policies(2000)]
        assert versions == sorted(set(versions), reverse=True)
        store.close()
        with sqlite3.connect(path) as db:
            assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        db.close()
        start = newest + 1
