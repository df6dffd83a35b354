"""Which policy control starts with: the file's, or the one that was pushed after the file was last read."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import msgspec

from xds_control.admin.checks import CHECKS
from xds_control.admin.restart_fields import keep_running
from xds_control.errors import PolicyError
from xds_control.observe.logs import logger
from xds_control.policy.load import Files, Loaded, load_files
from xds_control.policy.store import AuditRecord, PolicyRecord, Store


def mark_of(files: Files) -> str:
    """Hash of the policy files' contents; their names do not matter."""
    digest = hashlib.sha256()
    for _name, text in files:
        digest.update(text.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def first_policy(store: Store, loaded: Loaded, wall: float) -> tuple[Loaded, PolicyRecord]:
    """(policy to start with, its record). loaded: the file's.

    A file that is as it was when it was last taken in does not undo what was pushed since. Ports and the like always
    come from the file: the other processes were started with it.
    """
    log = logger("policies")
    mark = mark_of(loaded.files)
    active = store.active_policy()
    if active is not None and active.version == loaded.version:
        store.set_file_mark(mark)
        return loaded, active
    if active is not None and store.file_mark() == mark:
        try:
            kept = load_files(active.files, CHECKS)
        except PolicyError as error:
            log.error("kept-policy-invalid", version=active.version, problems=[str(one) for one in error.problems])
        else:
            log.warning(
                "policy-from-store",
                version=active.version,
                file_version=loaded.version,
                by=active.by,
                source=active.source,
            )
            policy, _waiting = keep_running(kept.policy, loaded.policy)
            return replace(kept, policy=policy), active
    source = "start" if active is None else "file"
    name = loaded.files[0][0]
    record = PolicyRecord(
        version=loaded.version,
        at=wall,
        by=f"file {name}",
        reason="",
        source=source,
        files=loaded.files,
        effective=msgspec.json.encode(loaded.shown()),
    )
    act = AuditRecord(wall, record.by, source, record.version, "" if active is None else f"from {active.version}")
    return loaded, store.add_policy(record, act, mark)
