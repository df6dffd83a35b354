"""The ordered rules of a policy, compiled: each expression is checked at load and evaluated on flat variables.

An expression such as `request.prompt_tokens > 8000 && headers['x-team'] == 'search'` is rewritten to one over
`request_prompt_tokens` and `header_0`, so that a request converts only the values that some rule reads, once for all
rules. An absent header reads as "".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cel

from xds_control.errors import Place, PolicyError, Problem
from xds_control.inspect.facts import RequestFacts
from xds_control.policy.routing import RoutingPolicy, Rule
from xds_control.routing.cel_check import POOL_FIELDS, REQUEST_FIELDS, check, show
from xds_control.routing.cel_syntax import (
    Call,
    CelSyntaxError,
    Index,
    ListNode,
    Literal,
    MapNode,
    Name,
    Node,
    Select,
    parse,
)
from xds_control.routing.view import RoutingView

Getter = Callable[[RequestFacts, Mapping[str, str], RoutingView], Any]


def _fact(name: str) -> Getter:
    if name == "session":
        return lambda facts, headers, view: facts.session_key != 0
    if name == "tags":
        return lambda facts, headers, view: list(facts.tags)
    if name == "problem":
        return lambda facts, headers, view: facts.problem.value
    if name == "temperature":
        return lambda facts, headers, view: 1.0 if facts.temperature is None else facts.temperature
    if name in ("priority", "max_output_tokens"):
        return lambda facts, headers, view: getattr(facts, name) or 0
    return lambda facts, headers, view: getattr(facts, name)


def _header(name: str) -> Getter:
    return lambda facts, headers, view: headers.get(name, "")


def _has_header(name: str) -> Getter:
    return lambda facts, headers, view: name in headers


def _pool(name: str, field_name: str) -> Getter:
    return lambda facts, headers, view: view.pools[name].state[field_name]


def _all_headers(facts: RequestFacts, headers: Mapping[str, str], view: RoutingView) -> Any:
    return dict(headers)


def _all_pools(facts: RequestFacts, headers: Mapping[str, str], view: RoutingView) -> Any:
    return view.pool_states


class Variables:
    """The flat variables of all rules: (name, where its value comes from), shared when rules read the same thing."""

    def __init__(self) -> None:
        self.getters: dict[str, Getter] = {}
        self.header_names: set[str] = set()
        self.reads_all_headers = False
        self._names: dict[tuple[str, ...], str] = {}

    def name(self, *key: str) -> str:
        """The flat name of what `key` stands for."""
        found = self._names.get(key)
        if found is None:
            kind = key[0]
            found = f"{kind}_{key[1]}" if kind == "request" else f"{kind}_{len(self._names)}"
            if kind in ("header", "hasheader"):
                self.header_names.add(key[1])
            self._names[key] = found
            self.getters[found] = {
                "request": lambda: _fact(key[1]),
                "header": lambda: _header(key[1]),
                "hasheader": lambda: _has_header(key[1]),
                "pool": lambda: _pool(key[1], key[2]),
            }[kind]()
        return found

    def whole(self, name: str) -> None:
        """An expression uses `headers` or `pools` as a map."""
        if name == "headers":
            self.reads_all_headers = True
            self.getters["headers"] = _all_headers
        elif name == "pools":
            self.getters["pools"] = _all_pools


def _key(node: Node, of: str) -> str | None:
    """The literal key when the node is `of['key']` or `of.key`, else None."""
    if isinstance(node, Select) and isinstance(node.operand, Name) and node.operand.name == of:
        return node.field
    if isinstance(node, Index) and isinstance(node.operand, Name) and node.operand.name == of:
        index = node.index
        if isinstance(index, Literal) and index.kind == "string" and isinstance(index.value, str):
            return index.value
    return None


def _flat(node: Node, variables: Variables) -> str | None:
    """The flat variable that stands for the whole node, or None."""
    if isinstance(node, Select):
        if isinstance(node.operand, Name) and node.operand.name == "request":
            return variables.name("request", node.field)
        pool = _key(node.operand, "pools")
        if pool is not None:
            return variables.name("pool", pool, node.field)
    header = _key(node, "headers")
    if header is not None:
        return variables.name("header", header)
    if isinstance(node, Call):
        if node.function == "in" and isinstance(node.args[1], Name) and node.args[1].name == "headers":
            item = node.args[0]
            if isinstance(item, Literal) and isinstance(item.value, str):
                return variables.name("hasheader", item.value)
        if node.function == "has" and node.target is None:
            header = _key(node.args[0], "headers")
            if header is not None:
                return variables.name("hasheader", header)
    return None


def _children(node: Node) -> Iterator[Node]:
    if isinstance(node, Select):
        yield node.operand
    elif isinstance(node, Index):
        yield from (node.operand, node.index)
    elif isinstance(node, Call):
        if node.target is not None:
            yield node.target
        yield from node.args
    elif isinstance(node, ListNode):
        yield from node.items
    elif isinstance(node, MapNode):
        for key, value in node.entries:
            yield from (key, value)


def _replacements(node: Node, variables: Variables) -> Iterator[tuple[int, int, str]]:
    name = _flat(node, variables)
    if name is not None:
        yield node.start, node.end, name
        return
    if isinstance(node, Name):
        variables.whole(node.name)
    for child in _children(node):
        yield from _replacements(child, variables)


def flatten(source: str, tree: Node, variables: Variables) -> str:
    """The expression over flat variables, which are added to `variables`."""
    parts: list[str] = []
    at = 0
    for start, end, name in sorted(_replacements(tree, variables)):
        parts += (source[at:start], name)
        at = end
    return "".join((*parts, source[at:]))


@dataclass(slots=True)
class CompiledRule:
    """A rule ready to be tried. errors: requests on which its expression failed; matches: those that it took."""

    rule: Rule
    program: Any
    cost: int
    matches: int = 0
    errors: int = 0
    last_error: str = ""


@dataclass(slots=True)
class RuleSet:
    """All rules of a policy, in order. `header_names`: the headers that they read; None when they may read any."""

    rules: tuple[CompiledRule, ...] = ()
    variables: Variables = field(default_factory=Variables)

    @property
    def header_names(self) -> frozenset[str] | None:
        """Request headers that the rules read, None when a rule looks at all of them."""
        return None if self.variables.reads_all_headers else frozenset(self.variables.header_names)

    def match(
        self, facts: RequestFacts, headers: Mapping[str, str], view: RoutingView, *, count: bool = True
    ) -> CompiledRule | None:
        """The first rule that is true for the request, or None. One that cannot be evaluated is counted and skipped.

        count: False leaves the counters as they are.
        """
        if not self.rules:
            return None
        context = self._context(facts, headers, view)
        for compiled in self.rules:
            errors = compiled.errors
            matched = _true(compiled, context)
            if not count:
                compiled.errors = errors
            if matched:
                compiled.matches += count
                return compiled
        return None

    def explain(
        self, facts: RequestFacts, headers: Mapping[str, str], view: RoutingView
    ) -> list[tuple[str, bool, str]]:
        """For every rule: name, whether it is true for the request, and the error when it could not be evaluated."""
        context = self._context(facts, headers, view)
        found: list[tuple[str, bool, str]] = []
        for compiled in self.rules:
            before = compiled.errors
            matched = _true(compiled, context)
            failed = compiled.errors > before
            compiled.errors = before
            found.append((compiled.rule.name, matched, compiled.last_error if failed else ""))
        return found

    def _context(self, facts: RequestFacts, headers: Mapping[str, str], view: RoutingView) -> Any:
        values: dict[str, Any] = {}
        for name, getter in self.variables.getters.items():
            try:
                values[name] = getter(facts, headers, view)
            except KeyError:
                continue  # a pool that is not there: the rule that names it fails and is passed over
        return cel.Context(variables=values)


def _true(compiled: CompiledRule, context: Any) -> bool:
    try:
        return compiled.program.execute(context) is True
    except (RuntimeError, TypeError, ValueError, KeyError, ArithmeticError, IndexError) as error:
        compiled.errors += 1
        compiled.last_error = str(error)
        return False


def compile_rules(policy: RoutingPolicy, pools: Sequence[str] | None = None, path: str = "routing") -> RuleSet:
    """Checks and compiles the rules. `pools`: names of the pools that exist, None when not known yet.

    Raises PolicyError with every problem; its places carry the YAML path below `path`.
    """
    problems: list[Problem] = []
    variables = Variables()
    compiled: list[CompiledRule] = []
    for number, rule in enumerate(policy.rules):
        here = f"{path}.rules[{number}]"
        problems.extend(
            _problem(f"{here}.pool", f"unknown pool {pool!r} (known: {', '.join(sorted(pools))})")
            for pool in rule.pools
            if pools is not None and pool not in pools
        )
        one = _compile(rule, f"{here}.when", pools, policy.max_rule_cost, variables, problems)
        if one is not None:
            compiled.append(one)
    if problems:
        raise PolicyError(problems)
    return RuleSet(tuple(compiled), variables)


def _problem(path: str, message: str) -> Problem:
    return Problem(Place(path=path), message)


def _compile(
    rule: Rule, path: str, pools: Sequence[str] | None, max_cost: int, variables: Variables, problems: list[Problem]
) -> CompiledRule | None:
    try:
        tree = parse(rule.when)
    except CelSyntaxError as error:
        problems.append(_problem(path, f"not a CEL expression: {error}"))
        return None
    checked = check(tree, pools)
    problems.extend(_problem(path, f"{one.message} (at character {one.offset + 1})") for one in checked.complaints)
    if checked.cost > max_cost:
        problems.append(_problem(path, f"may take {checked.cost} steps; at most {max_cost} are allowed"))
    if checked.complaints or checked.cost > max_cost:
        return None
    try:
        program = cel.compile(flatten(rule.when, tree, variables))
    except ValueError as error:
        problems.append(_problem(path, f"not a CEL expression: {error}"))
        return None
    return CompiledRule(rule, program, checked.cost)


def variable_reference() -> dict[str, dict[str, str]]:
    """What expressions may use, for the reference page: variable → field → type."""
    return {
        "request": {name: show(kind) for name, kind in REQUEST_FIELDS.items()},
        "headers": {"<name>": "string"},
        "pools.<name>": {name: show(kind) for name, kind in POOL_FIELDS.items()},
    }
