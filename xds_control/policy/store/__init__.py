"""What control keeps across restarts: policy versions, operators' orders, the audit. Behind one interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from xds_control.errors import XdsControlError

__all__ = ["AuditRecord", "PolicyRecord", "Store", "StoreError"]


class StoreError(XdsControlError):
    """The store cannot be opened, read or written; nothing was changed."""

    code = "store-failed"
    grpc_status = "UNAVAILABLE"
    http_status = 503


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """A policy that was in force from `at` (unix seconds) on.

    number: counts up by one, given by the store. version: hash of the content. files: (name, YAML text) as the user
    gave them, secrets as references. effective: the whole policy with defaults as JSON, secrets as references.
    source: start, file, push, rollback or shadow. rolled_back_to: the version that a rollback repeats.
    """

    version: str
    at: float
    by: str
    reason: str
    source: str
    files: tuple[tuple[str, str], ...]
    effective: bytes
    rolled_back_to: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """Who did what and why. at: unix seconds. target: an endpoint's address or a policy version."""

    at: float
    by: str
    action: str
    target: str
    detail: str = ""
    reason: str = ""


class Store(Protocol):
    """Durable when a call returns: a power cut or SIGKILL afterwards loses nothing, one before changes nothing.

    All methods raise StoreError. They are called from one thread at a time.
    """

    def add_policy(self, record: PolicyRecord, audit: AuditRecord, file_mark: str = "") -> PolicyRecord:
        """Records a policy as the one in force, with its number. file_mark: see `file_mark`."""
        ...

    def active_policy(self) -> PolicyRecord | None:
        """The newest record."""
        ...

    def policies(self, limit: int) -> Sequence[PolicyRecord]:
        """The newest records, newest first."""
        ...

    def policy(self, version: str) -> PolicyRecord | None:
        """The newest record of a version."""
        ...

    def file_mark(self) -> str:
        """Hash of the policy file as it was last taken in, "" when never."""
        ...

    def set_file_mark(self, mark: str) -> None:
        """Remembers it."""
        ...

    def put_order(self, address: str, record: Mapping[str, Any] | None, audit: AuditRecord | None) -> None:
        """Keeps an operator's order for an address, None takes it back."""
        ...

    def orders(self) -> Mapping[str, Mapping[str, Any]]:
        """All orders that are kept, by address."""
        ...

    def put_shadow(self, record: PolicyRecord | None, audit: AuditRecord) -> None:
        """Keeps the shadow policy, None ends it. Its effective content is not kept: it is made anew from its files."""
        ...

    def shadow(self) -> PolicyRecord | None:
        """The shadow policy, None when there is none."""
        ...

    def add_audit(self, record: AuditRecord) -> None:
        """Records an act that changes nothing else here."""
        ...

    def audit(self, limit: int, target: str = "") -> Sequence[AuditRecord]:
        """The newest acts, newest first; of one target only when named."""
        ...

    def close(self) -> None:
        """Ends the use of the store."""
        ...
