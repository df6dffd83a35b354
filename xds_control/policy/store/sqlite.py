"""The store in one SQLite file: write-ahead log, synchronised at every commit."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from xds_control.observe.logs import logger
from xds_control.policy.store import AuditRecord, PolicyRecord, StoreError

SCHEMA_VERSION: Final = 1
MAX_POLICIES: Final = 1_000
MAX_AUDIT: Final = 100_000
BUSY_S: Final = 5.0

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS policies (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  version TEXT NOT NULL, at REAL NOT NULL, by TEXT NOT NULL, reason TEXT NOT NULL, source TEXT NOT NULL,
  files BLOB NOT NULL, effective BLOB NOT NULL, rolled_back_to TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS policies_by_version ON policies (version, number);
CREATE TABLE IF NOT EXISTS orders (address TEXT PRIMARY KEY, record BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS shadow (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  version TEXT NOT NULL, at REAL NOT NULL, by TEXT NOT NULL, reason TEXT NOT NULL, files BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS audit (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  at REAL NOT NULL, by TEXT NOT NULL, action TEXT NOT NULL, target TEXT NOT NULL, detail TEXT NOT NULL,
  reason TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS audit_by_target ON audit (target, number);
CREATE TABLE IF NOT EXISTS marks (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_POLICY: Final = "number, version, at, by, reason, source, files, effective, rolled_back_to"
_DAMAGE: Final = (sqlite3.Error, OSError, ValueError, TypeError, OverflowError, msgspec.DecodeError)
"""What comes of a file that is not as we wrote it: also text that is no UTF-8, numbers where text was, no JSON."""
_Files = tuple[tuple[str, str], ...]
_AUDIT: Final = "at, by, action, target, detail, reason"


class SqliteStore:
    """path: the file, or None for one in memory that ends with the process.

    The newest 1,000 policies and 100,000 acts are kept. Raises StoreError when the file cannot be used.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        try:
            self._db = sqlite3.connect(
                ":memory:" if path is None else path, isolation_level=None, timeout=BUSY_S, check_same_thread=False
            )
            if path is not None:
                path.chmod(0o600)  # policies may say more about the fleet than everybody should read
                self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            found = self._db.execute("PRAGMA user_version").fetchone()[0]
            if found > SCHEMA_VERSION:
                raise StoreError(f"{path} was written by a newer version of xds-control")
            # executescript commits by itself; each statement may be repeated after a crash
            self._db.executescript(_SCHEMA)
            if found != SCHEMA_VERSION:  # nothing is written at a start that need not be: the disk may be full
                self._db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        except _DAMAGE as error:
            raise StoreError(f"the store {path} cannot be used: {error}") from error

    def add_policy(self, record: PolicyRecord, audit: AuditRecord, file_mark: str = "") -> PolicyRecord:
        files = msgspec.json.encode(record.files)
        with self._change() as db:
            number = db.execute(
                "INSERT INTO policies (version, at, by, reason, source, files, effective, rolled_back_to) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(record.version, record.at, record.by, record.reason, record.source),
                    *(files, record.effective, record.rolled_back_to),
                ),
            ).lastrowid
            assert number is not None
            db.execute("DELETE FROM policies WHERE number <= ?", (number - MAX_POLICIES,))
            _write_audit(db, audit)
            if file_mark:
                _write_mark(db, file_mark)
        return replace(record, number=number)

    def active_policy(self) -> PolicyRecord | None:
        return next(iter(self.policies(1)), None)

    def policies(self, limit: int) -> Sequence[PolicyRecord]:
        return self._policies("ORDER BY number DESC LIMIT ?", limit)

    def policy(self, version: str) -> PolicyRecord | None:
        return next(iter(self._policies("WHERE version = ? ORDER BY number DESC LIMIT 1", version)), None)

    def file_mark(self) -> str:
        rows = self._read("SELECT value FROM marks WHERE name = 'file'", tuple[str])
        return rows[0][0] if rows else ""

    def set_file_mark(self, mark: str) -> None:
        if self.file_mark() == mark:
            return
        with self._change() as db:
            _write_mark(db, mark)

    def put_order(self, address: str, record: Mapping[str, Any] | None, audit: AuditRecord | None) -> None:
        with self._change() as db:
            if record is None:
                db.execute("DELETE FROM orders WHERE address = ?", (address,))
            else:
                db.execute(
                    "INSERT OR REPLACE INTO orders (address, record) VALUES (?, ?)",
                    (address, msgspec.json.encode(dict(record))),
                )
            if audit is not None:
                _write_audit(db, audit)

    def orders(self) -> Mapping[str, Mapping[str, Any]]:
        rows = self._read("SELECT address, record FROM orders ORDER BY address", tuple[str, bytes])
        return {address: self._json(record, dict[str, Any]) for address, record in rows}

    def put_shadow(self, record: PolicyRecord | None, audit: AuditRecord) -> None:
        with self._change() as db:
            db.execute("DELETE FROM shadow")
            if record is not None:
                db.execute(
                    "INSERT INTO shadow (one, version, at, by, reason, files) VALUES (1, ?, ?, ?, ?, ?)",
                    (record.version, record.at, record.by, record.reason, msgspec.json.encode(record.files)),
                )
            _write_audit(db, audit)

    def shadow(self) -> PolicyRecord | None:
        rows = self._read("SELECT version, at, by, reason, files FROM shadow", tuple[str, float, str, str, bytes])
        for version, at, by, reason, files in rows:
            return PolicyRecord(version, at, by, reason, "shadow", self._json(files, _Files), b"")
        return None

    def add_audit(self, record: AuditRecord) -> None:
        with self._change() as db:
            _write_audit(db, record)

    def audit(self, limit: int, target: str = "") -> Sequence[AuditRecord]:
        row = tuple[float, str, str, str, str, str]
        if target:
            rows = self._read(
                f"SELECT {_AUDIT} FROM audit WHERE target = ? ORDER BY number DESC LIMIT ?", row, target, limit
            )
        else:
            rows = self._read(f"SELECT {_AUDIT} FROM audit ORDER BY number DESC LIMIT ?", row, limit)
        return [AuditRecord(*one) for one in rows]

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # nothing is unwritten
            self._db.close()

    def _policies(self, rest: str, *values: Any) -> list[PolicyRecord]:
        found = []
        row = tuple[int, str, float, str, str, str, bytes, bytes, str]
        for number, version, at, by, reason, source, files, effective, rolled_back_to in self._read(
            f"SELECT {_POLICY} FROM policies {rest}", row, *values
        ):
            known = self._json(files, _Files)
            found.append(PolicyRecord(version, at, by, reason, source, known, effective, rolled_back_to, number))
        return found

    def _read(self, statement: str, row: Any, *values: Any) -> list[Any]:
        """The rows. row: type of each."""
        try:
            found: list[Any] = msgspec.convert(self._db.execute(statement, values).fetchall(), list[row])
            return found
        except _DAMAGE as error:
            raise StoreError(f"the store {self.path} cannot be read: {error}") from error

    def _json(self, data: bytes, kind: Any) -> Any:
        try:
            return msgspec.json.decode(data, type=kind)
        except _DAMAGE as error:
            raise StoreError(f"the store {self.path} cannot be read: {error}") from error

    @contextlib.contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it is on disk when this ends, or none of it ever happened."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except _DAMAGE as error:
            raise StoreError(f"the store {self.path} cannot be written: {error}") from error


def _write_audit(db: sqlite3.Connection, record: AuditRecord) -> None:
    number = db.execute(
        f"INSERT INTO audit ({_AUDIT}) VALUES (?, ?, ?, ?, ?, ?)",
        (record.at, record.by, record.action, record.target, record.detail, record.reason),
    ).lastrowid
    assert number is not None
    db.execute("DELETE FROM audit WHERE number <= ?", (number - MAX_AUDIT,))


def _write_mark(db: sqlite3.Connection, mark: str) -> None:
    db.execute("INSERT OR REPLACE INTO marks (name, value) VALUES ('file', ?)", (mark,))


class OwnedStore(SqliteStore):
    """The same for one process alone. Who keeps a policy in memory must be the only one who changes it on disk.

    A lock file stands beside it; the lock goes with the process, however that ends. Raises StoreError when another
    process has it.
    """

    def __init__(self, path: Path) -> None:
        self._lock = _locked(path)
        try:
            super().__init__(path)
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        super().close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _locked(store: Path) -> int:
    """A file descriptor that holds the lock."""
    real = store.resolve()  # one file has one lock, whatever it is called
    name = real.with_name(f"{real.name}.lock")
    try:
        lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"the store {store} cannot be used: {name}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
        os.close(lock)
        if not isinstance(error, BlockingIOError):
            raise StoreError(f"the store {store} cannot be locked: {error.strerror}") from error
        raise StoreError(
            f"the store {store} is in use by another control process (pid {holder}): stop that one, or give this one a "
            "store of its own (control.store, --run-dir)"
        ) from None
    with contextlib.suppress(OSError):  # the lock is what counts; a full disk only has it say less
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def open_store(path: str | None, run_dir: Path | None) -> SqliteStore:
    """The store at `path`, else the one of the run folder, else one in memory; for this process alone.

    Raises StoreError.
    """
    if path is not None:
        return OwnedStore(Path(path))
    if run_dir is None:
        logger("store").warning("store-in-memory", hint="give --run-dir or control.store to keep orders and policies")
        return SqliteStore(None)
    run_dir.mkdir(parents=True, exist_ok=True)
    return OwnedStore(run_dir / "store.db")
