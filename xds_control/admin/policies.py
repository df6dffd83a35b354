"""Policies: validated, tried, put into force, kept, brought back. One path for command line, admin and files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from xds_control.admin.backend import BadRequest, Unknown
from xds_control.admin.checks import CHECKS, warnings
from xds_control.admin.dry_run import Effect, changes, routes
from xds_control.admin.restart_fields import keep_running
from xds_control.admin.switching import Switch
from xds_control.errors import PolicyError, Problem, XdsControlError
from xds_control.observe.logs import logger
from xds_control.policy.load import Files, Loaded, load_files
from xds_control.policy.schema import Policy
from xds_control.policy.store import AuditRecord, PolicyRecord, Store
from xds_control.proto import admin_pb2 as pb

MAX_FILES = 1_000
MAX_REASON = 1_000
LIST_DEFAULT = 50


class VersionConflict(XdsControlError):
    """Another policy is in force than the caller expected; nothing was changed."""

    code = "policy-conflict"
    grpc_status = "ABORTED"
    http_status = 409


class Live(Protocol):
    """The running control process, as pushes see it."""

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        ...

    async def try_policy(self, policy: Policy) -> Effect:
        """What it would change; touches nothing. Raises PolicyError when it does not compile."""
        ...

    async def prepare(self, policy: Policy, version: str) -> Switch:
        """Everything that has to be there before the switch. Raises XdsControlError; then all stays as it was."""
        ...

    def switch(self, prepared: Switch) -> None:
        """Puts it into force, between two ticks."""
        ...

    def abandon(self, prepared: Switch) -> None:
        """Takes back what `prepare` did."""
        ...


class Policies:
    """Keeper of the policy in force. on_change(before, record) is called after a switch, on_refused(who, why) after a
    refusal."""

    def __init__(
        self,
        live: Live,
        store: Store,
        loaded: Loaded,
        record: PolicyRecord,
        *,
        on_change: Callable[[str, PolicyRecord], None],
        on_refused: Callable[[str, str], None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._live = live
        self._store = store
        self._on_change = on_change
        self._on_refused = on_refused
        self._wall = wall
        self._lock = asyncio.Lock()
        self._log = logger("policies")
        self.loaded = loaded
        self.record = record

    @property
    def version(self) -> str:
        """Version of the policy in force."""
        return self.loaded.version

    # Looking.

    def get(self, version: str) -> pb.GetPolicyResponse:
        """A kept version, the one in force for "". Raises Unknown."""
        record = self._find(version)
        return pb.GetPolicyResponse(
            info=self._info(record),
            files=[pb.PolicyFile(name=name, text=text) for name, text in record.files],
            effective_json=record.effective.decode(),
        )

    def versions(self, limit: int) -> pb.ListPoliciesResponse:
        """Versions, newest first."""
        found = self._store.policies(limit or LIST_DEFAULT)
        return pb.ListPoliciesResponse(policies=[self._info(record) for record in found])

    async def validate(self, files: Sequence[pb.PolicyFile]) -> pb.ValidatePolicyResponse:
        """Everything that is wrong with a policy."""
        try:
            loaded = await asyncio.to_thread(self._load, _files(files))
        except PolicyError as error:
            return pb.ValidatePolicyResponse(problems=map(problem_message, error.problems))
        notes = [*warnings(loaded.policy), *keep_running(loaded.policy, self._live.policy)[1]]
        return pb.ValidatePolicyResponse(ok=True, version=loaded.version, warnings=map(problem_message, notes))

    async def diff(self, files: Sequence[pb.PolicyFile]) -> pb.DiffPolicyResponse:
        """What a policy would change, tried on the live fleet."""
        try:
            loaded = await asyncio.to_thread(self._load, _files(files))
            diff, notes, _policy = await self._diff(loaded)
        except PolicyError as error:
            return pb.DiffPolicyResponse(problems=map(problem_message, error.problems))
        return pb.DiffPolicyResponse(diff=diff, warnings=map(problem_message, notes))

    # Changing.

    async def push(
        self, request: pb.PushPolicyRequest, who: str, source: str = "push", mark: str = ""
    ) -> pb.PushPolicyResponse:
        """Puts a policy into force, or says why not. mark: of the watched file that it came from.

        Raises VersionConflict, and XdsControlError when it cannot be kept or prepared; then nothing has changed.
        """
        async with self._lock:
            self._expect(request.expect_version)
            return await self._push(
                _files(request.files), who, request.reason, source, request.force, request.dry_run, mark=mark
            )

    async def rollback(self, request: pb.RollbackPolicyRequest, who: str) -> pb.PushPolicyResponse:
        """Puts an earlier policy into force again; the one before the present for "". Raises as `push`, and Unknown."""
        async with self._lock:
            self._expect(request.expect_version)
            record = self._find(request.version) if request.version else self._before()
            if record.version == self.version:
                raise BadRequest(f"policy {record.version} is in force already")
            return await self._push(
                record.files, who, request.reason, "rollback", request.force, request.dry_run, record.version
            )

    async def _push(
        self,
        files: Files,
        who: str,
        reason: str,
        source: str,
        force: bool,
        dry_run: bool,
        rolled_back_to: str = "",
        mark: str = "",
    ) -> pb.PushPolicyResponse:
        if len(reason) > MAX_REASON:
            raise BadRequest(f"the reason is longer than {MAX_REASON} characters")
        try:
            loaded = await asyncio.to_thread(self._load, files)  # ticks go on meanwhile
            diff, notes, policy = await self._diff(loaded)
        except PolicyError as error:
            if not dry_run:
                first = error.problems[0]
                more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
                self._on_refused(who, f"{first}{more}")
            return pb.PushPolicyResponse(problems=map(problem_message, error.problems))
        answer = pb.PushPolicyResponse(diff=diff, warnings=map(problem_message, notes))
        if diff.needs_force and not force:
            if not dry_run:
                self._on_refused(who, f"{diff.why_force}; it has to be forced")
            return answer
        if dry_run:
            answer.accepted = True
            return answer
        record = PolicyRecord(
            version=loaded.version,
            at=self._wall(),
            by=who,
            reason=reason,
            source=source,
            files=loaded.files,
            effective=msgspec.json.encode(loaded.shown()),
            rolled_back_to=rolled_back_to,
        )
        act = AuditRecord(record.at, who, source, record.version, f"from {self.version}", reason)
        prepared = await self._live.prepare(policy, loaded.version)
        try:
            record = self._store.add_policy(record, act, mark)
        except XdsControlError:
            self._live.abandon(prepared)
            raise
        before = self.version
        self.loaded, self.record = loaded, record
        self._live.switch(prepared)
        self._on_change(before, record)
        answer.accepted = True
        answer.info.CopyFrom(self._info(record))
        return answer

    async def _diff(self, loaded: Loaded) -> tuple[pb.PolicyDiff, list[Problem], Policy]:
        """(what changes, what to know, the policy as it can be in force)."""
        policy, waiting = keep_running(loaded.policy, self._live.policy)
        effect = await self._live.try_policy(policy)
        objections = effect.objections(self._live.policy.control.push_limit)
        diff = pb.PolicyDiff(
            base_version=self.version,
            version=loaded.version,
            fields=[
                pb.FieldChange(path=one.path, before=one.before, after=one.after)
                for one in changes(self.loaded.shown(), loaded.shown())
            ],
            weights=[
                pb.WeightChange(
                    pool=one.pool,
                    endpoint=one.endpoint,
                    weight_before=one.weight_before,
                    weight=one.weight,
                    share_before=one.share_before,
                    share=one.share,
                    why=one.why,
                )
                for one in effect.weights
            ],
            routes=routes(self._live.policy, policy),
            moved=dict(effect.moved),
            emptied=effect.emptied,
            needs_force=bool(objections),
            why_force="; ".join(objections),
        )
        return diff, [*warnings(loaded.policy), *waiting], policy

    def _load(self, files: Files) -> Loaded:
        if len(files) > MAX_FILES:
            raise BadRequest(f"more than {MAX_FILES} files")
        return load_files(files, CHECKS)

    def _expect(self, version: str) -> None:
        if version and version != self.version:
            by = f", put there by {self.record.by}" if self.record.by else ""
            raise VersionConflict(f"policy {self.version} is in force{by}, not {version}: look at it and try again")

    def _find(self, version: str) -> PolicyRecord:
        if not version or version == self.version:
            return self.record
        record = self._store.policy(version)
        if record is None:
            raise Unknown(f"no policy {version!r} is kept; see `xds-control policy history`")
        return record

    def _before(self) -> PolicyRecord:
        """The newest policy that is another one than the present."""
        for record in self._store.policies(LIST_DEFAULT * 20):
            if record.version != self.version and record.number < self.record.number:
                return record
        raise Unknown("there is no earlier policy to go back to")

    def _info(self, record: PolicyRecord) -> pb.PolicyVersion:
        return pb.PolicyVersion(
            version=record.version,
            number=record.number,
            at_unix_s=record.at,
            by=record.by,
            reason=record.reason,
            source=record.source,
            active=record.number == self.record.number,
            rolled_back_to=record.rolled_back_to,
        )


def problem_message(problem: Problem) -> pb.Problem:
    """A problem with its place."""
    place = problem.place
    return pb.Problem(
        file=place.file or "", line=place.line, column=place.column, path=place.path, message=problem.message
    )


def _files(files: Sequence[pb.PolicyFile]) -> list[tuple[str, str]]:
    return [(one.name or "<policy>", one.text) for one in files]
