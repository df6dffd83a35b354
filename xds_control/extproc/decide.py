"""One request in, one decision out: inspection, rules, model routes, limits, admission of picks. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import xxhash

from xds_control.errors import PolicyError, Problem
from xds_control.extproc.decision import Decision, Hold, Immediate, clip
from xds_control.extproc.ports import Admission, Beside, Explain, Inspector, Pick, Picker, Refusal
from xds_control.extproc.request import RequestView
from xds_control.inspect.errors import error_body
from xds_control.inspect.facts import BodyProblem, RequestFacts
from xds_control.policy import headers as names
from xds_control.policy.extproc import ExtProcPolicy
from xds_control.policy.routing import Limits, Reject, RoutingPolicy
from xds_control.routing.explain import Record
from xds_control.routing.models import ModelChoice, ModelRoutes, compile_models
from xds_control.routing.rules import CompiledRule, RuleSet, compile_rules
from xds_control.routing.view import RoutingView

__all__ = ["Admission", "Beside", "Decider", "Explain", "Inspector", "Pick", "Picker", "Refusal", "Routes"]

_PREFIX_HEADER_TOKENS = 256
_TOO_LARGE = BodyProblem.TOO_LARGE


@dataclass(slots=True)
class Routes:
    """The compiled routing policy."""

    rules: RuleSet
    models: ModelRoutes
    policy: RoutingPolicy

    @classmethod
    def compile(cls, policy: RoutingPolicy, pools: list[str] | None = None, path: str = "routing") -> Routes:
        """Checks and compiles a routing policy. Raises PolicyError with every problem."""
        problems: list[Problem] = []
        rules, models = RuleSet(), ModelRoutes()
        try:
            rules = compile_rules(policy, pools, path)
        except PolicyError as error:
            problems += error.problems
        try:
            models = compile_models(policy, pools, path)
        except PolicyError as error:
            problems += error.problems
        if problems:
            raise PolicyError(problems)
        return cls(rules, models, policy)


class Buffered:
    """Bytes of bodies that are still to come in full, of all requests of a processor."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class Decider:
    """Decides requests against one view of the fleet and one policy. Give it new ones by `view` and `routes`.

    processor: name of this processor, in decision ids and metadata. inspector: reads bodies. picker: None leaves every
    choice to Envoy's weights. admission: None lets every request in. default_class: class of requests that have none.
    first: what ids are counted from; another one at each start of a processor, whose ids would come again otherwise.
    """

    def __init__(
        self,
        view: RoutingView,
        inspector: Inspector,
        routes: Routes,
        picker: Picker | None = None,
        policy: ExtProcPolicy | None = None,
        *,
        admission: Admission | None = None,
        processor: str = "p0",
        default_class: str = "",
        first: int = 0,
    ) -> None:
        self.view = view
        self.inspector = inspector
        self.routes = routes
        self.picker = picker
        self.admission = admission
        self.policy = policy or ExtProcPolicy()
        self.processor = processor
        self.default_class = default_class
        self.on_decision: Callable[[Decision, float], None] | None = None
        self.beside: Beside | None = None
        self.buffered = Buffered()
        self._count = first

    def continue_from(self, before: Decider | None) -> None:
        """Goes on counting decisions where the decider of an earlier policy stopped: ids stay unique."""
        if before is not None:
            self._count = before._count
            self.buffered = before.buffered

    def decide(self, request: RequestView, now: float) -> Decision:
        """The decision for a whole request. `now`: monotonic seconds."""
        self._count += 1
        told = None if self.beside is None else self.beside(request, now)
        facts = self._inspect(request)
        decision = Decision(f"{self.processor}-{self._count:x}", facts, self.processor)
        refusal = self._body_refusal(request, facts)
        if refusal is None:
            refusal = self._route(decision, request)
        if refusal is None and self.admission is not None:
            admitted = self.admission.admit(decision, request.headers, now)
            if isinstance(admitted, Hold):
                decision.hold = admitted
                return decision
            refusal = admitted
        self.finish(decision, request, refusal, now)
        if told is not None:
            told(decision)
        return decision

    def dry_run(
        self, request: RequestView, explain: Explain | None = None
    ) -> tuple[Decision, list[tuple[str, bool, str]], Record | None]:
        """What would be decided, with nothing counted, charged or admitted; for each rule its name, whether it is true
        for the request, and the error when it could not be evaluated; and the candidates.

        explain: prices the candidates; None leaves the pick out.
        """
        facts = self._inspect(request)
        decision = Decision("dry-run", facts, self.processor)
        rules = self.routes.rules.explain(facts, request.headers, self.view)
        refusal = self._body_refusal(request, facts) or self._route(decision, request, count=False)
        record: Record | None = None
        if refusal is None and explain is not None and decision.pool:
            picked, record = explain(decision, request)
            refusal = self._take(decision, picked)
        if refusal is None:
            self._write_headers(decision)
        else:
            self._refuse(decision, refusal)
        return decision, rules, record

    def finish(self, decision: Decision, request: RequestView, refusal: Refusal | None, now: float) -> Decision:
        """Completes a decision that was held: `refusal` is what the wait ended with, None when it was let in."""
        decision.hold = None
        if refusal is None and self.picker is not None and decision.pool:
            refusal = self._pick(decision, request, self.picker, now)
        decision.facts.token_ids = ""  # the client's prompt, and large: what is kept of decisions must not hold it
        if refusal is not None:
            self._refuse(decision, refusal)
        else:
            self._write_headers(decision)
        if self.on_decision is not None:
            self.on_decision(decision, now)
        return decision

    def _inspect(self, request: RequestView) -> RequestFacts:
        body = request.body
        if len(body) <= self.policy.max_body_bytes:
            return self.inspector.inspect(request.path, request.headers, body)
        facts = self.inspector.inspect(request.path, request.headers, b"")
        facts.problem, facts.body_bytes = _TOO_LARGE, len(body)
        return facts

    def _body_refusal(self, request: RequestView, facts: RequestFacts) -> Refusal | None:
        problem = facts.problem
        if not problem or not request.complete:
            return None
        if not request.has_body and not (facts.api and request.headers.get(":method") == "POST"):
            return None
        if problem is _TOO_LARGE:
            if self.policy.on_too_large == "reject":
                return Refusal(
                    413, problem.value, f"The request body is larger than {self.policy.max_body_bytes} bytes."
                )
            return None
        if self.policy.on_malformed == "pass":
            return None
        status = 415 if problem is BodyProblem.UNSUPPORTED_ENCODING else 400
        detail = f": {facts.detail}" if facts.detail else ""
        return Refusal(status, problem.value, f"BadRequest: the request body cannot be read ({problem.value}){detail}")

    def _route(self, decision: Decision, request: RequestView, *, count: bool = True) -> Refusal | None:
        facts = decision.facts
        view = self.view
        rule: CompiledRule | None = None
        if self.routes.rules.rules:
            rule = self.routes.rules.match(facts, request.headers, view, count=count)
        decision.service_class = facts.service_class or self.default_class
        decision.tenant = facts.tenant
        pools: tuple[str, ...] = ()
        model = ""
        if rule is not None:
            spec = rule.rule
            decision.rule = spec.name
            decision.profile = spec.profile
            decision.service_class = spec.service_class or decision.service_class
            decision.tenant = spec.tenant or decision.tenant
            if spec.reject is not None:
                return _rejected(spec.reject)
            over = None if spec.limits is None else _over_limit(spec.limits, facts)
            if over is not None:
                return over
            decision.headers.update(spec.headers)
            pools = spec.pools
            model = spec.model
        decision.model = facts.model
        if not model and self.policy.control_headers:
            model = _wanted_model(request.headers)
        choice = self._model_choice(decision, model or facts.model)
        if pools:
            decision.pool = next((pool for pool in pools if view.is_available(pool)), pools[0])
        elif isinstance(choice, Refusal):
            return choice
        else:
            decision.pool = choice.pool
        if isinstance(choice, ModelChoice):
            # A rule that names the pool keeps the model route's rewrite only when both agree on the pool.
            if choice.pool == decision.pool:
                decision.route = choice.route
                model = choice.model or model
                if choice.lora and not facts.lora:
                    facts.lora = choice.lora
            if choice.mirror:
                decision.headers[names.MIRROR] = choice.mirror
        if model and model != facts.model:
            self._rewrite(decision, request, model)
        return None

    def _model_choice(self, decision: Decision, model: str) -> ModelChoice | Refusal:
        facts = decision.facts
        policy = self.routes.policy
        default = policy.default_pool or self.view.only_pool
        if not model:
            return ModelChoice(pool=default)
        key = facts.session_key or xxhash.xxh3_64_intdigest(decision.id.encode())
        choice = self.routes.models.choose(model, key, self.view)
        if choice is not None:
            return choice
        if default and policy.unknown_model == "default":
            return ModelChoice(pool=default)
        if not self.view.models and not policy.models and not default:
            return ModelChoice()  # nothing is known about models yet: let Envoy's own routes decide
        message = f"The model `{clip(model)}` does not exist."
        return Refusal(404, "model-not-found", message, body_code="model_not_found")

    def _rewrite(self, decision: Decision, request: RequestView, model: str) -> None:
        facts = decision.facts
        if not request.can_rewrite or not request.has_body:
            return
        body = self.inspector.rewrite_model(request.headers, request.body, facts, model)
        if body is None:
            return
        decision.body = body
        decision.original_model = facts.model
        decision.model = model
        if "content-encoding" in request.headers:
            decision.drop_headers = ("content-encoding",)

    def _pick(self, decision: Decision, request: RequestView, picker: Picker, now: float) -> Refusal | None:
        subset = request.subset if self.policy.subset_hint else None
        return self._take(decision, picker.pick(decision, request.headers, subset, now))

    def _take(self, decision: Decision, picked: Pick | Refusal | None) -> Refusal | None:
        if isinstance(picked, Refusal):
            return picked
        if picked is not None and picked.destinations:
            decision.destinations = picked.destinations
            decision.matched_tokens = picked.matched_tokens
            decision.headers.update(picked.headers)
            decision.more_metadata = picked.metadata
            decision.priced = picked.priced
            if self.policy.emit_scores:
                decision.scores = picked.scores
        return None

    def _refuse(self, decision: Decision, refusal: Refusal) -> None:
        body, content_type = error_body(decision.facts.api, refusal.status, refusal.code, refusal.message)
        headers = {"content-type": content_type}
        if refusal.retry_after_s is not None:
            headers["retry-after"] = str(max(1, -int(-refusal.retry_after_s // 1)))
        if refusal.peer_reason:
            headers["x-llm-d-request-dropped-reason"] = refusal.peer_reason
        if self.policy.emit_decision:
            headers[names.DECISION] = decision.id
        decision.reason = f"rejected:{refusal.reason}"
        decision.immediate = Immediate(refusal.status, refusal.reason, body, headers)
        decision.destinations = ()

    def _write_headers(self, decision: Decision) -> None:
        facts = decision.facts
        headers = decision.headers
        if decision.pool:
            headers[names.POOL] = decision.pool
            decision.reason = "picked" if decision.destinations else "weights"
        if decision.model:
            headers[names.MODEL] = _header_text(decision.model)
        if decision.service_class:
            headers[names.CLASS] = _header_text(decision.service_class)
        if decision.tenant:
            headers[names.TENANT] = _header_text(decision.tenant)
        if facts.prompt_tokens:
            headers[names.PROMPT_TOKENS] = str(facts.prompt_tokens)
        if facts.session_key:
            headers[names.SESSION] = f"{facts.session_key:016x}"
        if facts.prefix_keys:
            headers[names.PREFIX] = f"{_prefix_of(facts):016x}"
        if decision.rule:
            headers[names.RULE] = decision.rule
        if decision.destinations:
            headers[names.DESTINATION] = decision.destination
        if self.policy.emit_decision:
            headers[names.DECISION] = decision.id


def _wanted_model(headers: Mapping[str, str]) -> str:
    """The model that a control header asks to be written into the body, "" when none does."""
    for name in names.MODEL_REWRITE:
        value = headers.get(name)
        if value:
            return value
    return ""


def _prefix_of(facts: RequestFacts) -> int:
    """The key for consistent hashing: of the prompt's beginning, so that what shares a system prompt shares a key."""
    keys, tokens = facts.prefix_keys, facts.prefix_tokens
    chosen = keys[0]
    for key, upto in zip(keys, tokens, strict=False):
        if upto > _PREFIX_HEADER_TOKENS:
            break
        chosen = key
    return chosen


def _header_text(text: str) -> str:
    """Client text as a header value: bounded, and without the characters that Envoy refuses in one."""
    text = clip(text)
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)


def _rejected(reject: Reject) -> Refusal:
    return Refusal(reject.status, reject.reason, reject.message, reject.retry_after_s)


def _over_limit(limits: Limits, facts: RequestFacts) -> Refusal | None:
    output = facts.max_output_tokens or 0
    checks: tuple[tuple[int | None, int, str, str], ...] = (
        (limits.prompt_tokens, facts.prompt_tokens, "prompt-too-long", "prompt tokens"),
        (limits.output_tokens, output, "output-too-long", "output tokens"),
        (limits.total_tokens, facts.prompt_tokens + output, "context-too-long", "prompt and output tokens"),
        (limits.images, facts.images, "too-many-images", "images"),
        (limits.n, facts.n, "too-many-choices", "choices"),
    )
    if limits.body_bytes is not None and facts.body_bytes > limits.body_bytes:
        return Refusal(413, _TOO_LARGE.value, f"The request body is larger than {limits.body_bytes} bytes.")
    for bound, value, reason, what in checks:
        if bound is not None and value > bound:
            return Refusal(400, reason, f"BadRequest: {value} {what} exceed the limit of {bound}.")
    return None
