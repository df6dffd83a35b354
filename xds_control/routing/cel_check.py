"""Names, types and cost of a rule's expression, checked when the policy is loaded.

The variables of rules are `request` (RequestFacts), `headers` (lower-case names) and `pools` (state by pool name).
A wrong name or type would otherwise show only as a rule that never matches.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xds_control.routing.cel_syntax import (
    Call,
    Index,
    ListNode,
    Literal,
    MapNode,
    Name,
    Node,
    Select,
)

Type = str | tuple[Any, ...]
"""A scalar's name, or ("list", item), ("map", value) with string keys, "request", "pool", "dyn"."""

REQUEST_FIELDS: dict[str, Type] = {
    "api": "string",
    "path": "string",
    "model": "string",
    "body_bytes": "int",
    "prompt_bytes": "int",
    "prompt_tokens": "int",
    "images": "int",
    "media_count": "int",
    "media_bytes": "int",
    "tools": "int",
    "messages": "int",
    "max_output_tokens": "int",
    "expected_output_tokens": "int",
    "stream": "bool",
    "n": "int",
    "temperature": "double",
    "priority": "int",
    "lora": "string",
    "cache_salt": "string",
    "session": "bool",
    "session_source": "string",
    "tenant": "string",
    "service_class": "string",
    "tags": ("list", "string"),
    "problem": "string",
}
"""What `request.` offers. An absent number is 0 (temperature: 1.0); `request.session` says whether there is a key."""

POOL_FIELDS: dict[str, Type] = {
    "available": "bool",
    "endpoints": "int",
    "serving": "int",
    "waiting": "double",
    "running": "double",
    "waiting_mean": "double",
    "running_mean": "double",
    "kv_usage": "double",
    "kv_usage_max": "double",
    "gpu_mem_used_ratio": "double",
    "slo_headroom": "double",
}
"""What `pools['name'].` offers; see `PoolView.state`."""

VARIABLES: dict[str, Type] = {"request": "request", "headers": ("map", "string"), "pools": ("map", "pool")}
_RECORDS: dict[str, Mapping[str, Type]] = {"request": REQUEST_FIELDS, "pool": POOL_FIELDS}

_NUMBERS = ("int", "uint", "double")
_ORDERED = ("string", "bytes", "bool", "timestamp", "duration")
_METHODS: dict[str, tuple[Type, tuple[Type, ...], Type]] = {
    "startsWith": ("string", ("string",), "bool"),
    "endsWith": ("string", ("string",), "bool"),
    "contains": ("string", ("string",), "bool"),
    "matches": ("string", ("string",), "bool"),
}
_CONVERSIONS = {"int", "uint", "double", "string", "bytes", "duration", "timestamp"}
_MACROS = ("all", "exists", "exists_one", "map", "filter")
_FUNCTIONS = ("size", "has", *_CONVERSIONS)

# Worst-case lengths of what a loop may run over.
_LENGTHS = {"tags": 64, "headers": 128}
_UNKNOWN_LENGTH = 100


@dataclass(frozen=True, slots=True)
class Complaint:
    """Something wrong with an expression; `offset` counts characters from 0."""

    message: str
    offset: int


@dataclass(slots=True)
class Checked:
    """Result of a check: the type of the whole, worst-case steps, and everything that is wrong."""

    type: Type
    cost: int
    complaints: list[Complaint]


def show(kind: Type) -> str:
    """A type as people read it."""
    if isinstance(kind, str):
        return kind
    return f"{kind[0]}({', '.join(show(part) for part in kind[1:])})"


def _near(name: str, known: Sequence[str]) -> str:
    match = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {match[0]!r}?" if match else f" (known: {', '.join(sorted(known))})"


def check(tree: Node, pools: Sequence[str] | None = None) -> Checked:
    """Checks an expression. `pools`: the names that `pools[...]` may use, None when any may."""
    checker = _Checker(pools)
    kind, cost = checker.visit(tree)
    if kind not in ("bool", "dyn"):
        checker.complain(tree, f"a rule must be true or false, this is {show(kind)}")
    return Checked(kind, cost, checker.complaints)


@dataclass(slots=True)
class _Checker:
    pools: Sequence[str] | None
    complaints: list[Complaint] = field(default_factory=list)
    scope: list[tuple[str, Type]] = field(default_factory=list)

    def complain(self, node: Node, message: str) -> None:
        self.complaints.append(Complaint(message, node.start))

    def visit(self, node: Node) -> tuple[Type, int]:
        if isinstance(node, Literal):
            return node.kind, 1
        if isinstance(node, Name):
            return self._name(node), 1
        if isinstance(node, Select):
            kind, cost = self.visit(node.operand)
            return self._field(node, kind, node.field), cost + 1
        if isinstance(node, Index):
            return self._index(node)
        if isinstance(node, ListNode):
            return self._list(node)
        if isinstance(node, MapNode):
            return self._map(node)
        if isinstance(node, Call):
            return self._call(node)
        raise TypeError(type(node).__name__)

    def _name(self, node: Name) -> Type:
        for name, kind in reversed(self.scope):
            if name == node.name:
                return kind
        if node.name in VARIABLES:
            return VARIABLES[node.name]
        hint = (
            f"; did you mean 'request.{node.name}'?" if node.name in REQUEST_FIELDS else _near(node.name, [*VARIABLES])
        )
        self.complain(node, f"unknown name {node.name!r}{hint}")
        return "dyn"

    def _field(self, node: Node, kind: Type, name: str) -> Type:
        if kind == "dyn":
            return "dyn"
        if isinstance(kind, str) and kind in _RECORDS:
            found = _RECORDS[kind].get(name)
            if found is None:
                self.complain(node, f"{kind} has no field {name!r}{_near(name, [*_RECORDS[kind]])}")
                return "dyn"
            return found
        if isinstance(kind, tuple) and kind[0] == "map":
            if kind[1] == "pool":
                self._pool(node, name)
            value: Type = kind[1]
            return value
        self.complain(node, f"{show(kind)} has no fields")
        return "dyn"

    def _pool(self, node: Node, name: str) -> None:
        if self.pools is not None and name not in self.pools:
            self.complain(node, f"unknown pool {name!r}{_near(name, self.pools)}")

    def _index(self, node: Index) -> tuple[Type, int]:
        kind, cost = self.visit(node.operand)
        key, key_cost = self.visit(node.index)
        cost += key_cost + 1
        if kind == "dyn":
            return "dyn", cost
        if isinstance(kind, tuple) and kind[0] == "list":
            self._want(node.index, key, "int")
            return kind[1], cost
        if isinstance(kind, tuple) and kind[0] == "map":
            self._want(node.index, key, "string")
            if isinstance(node.index, Literal) and isinstance(node.index.value, str):
                if kind[1] == "pool":
                    self._pool(node.index, node.index.value)
                elif node.index.value != node.index.value.lower() and isinstance(node.operand, Name):
                    self.complain(node.index, f"header names are lower-case: {node.index.value.lower()!r}")
            return kind[1], cost
        self.complain(node, f"{show(kind)} cannot be indexed")
        return "dyn", cost

    def _list(self, node: ListNode) -> tuple[Type, int]:
        kinds, cost = self._visit_all(node.items)
        return ("list", self._joined(kinds)), cost + 1

    def _map(self, node: MapNode) -> tuple[Type, int]:
        keys, key_cost = self._visit_all([key for key, _ in node.entries])
        values, value_cost = self._visit_all([value for _, value in node.entries])
        for (key_node, _), key in zip(node.entries, keys, strict=True):
            self._want(key_node, key, "string")
        return ("map", self._joined(values)), key_cost + value_cost + 1

    def _visit_all(self, nodes: Sequence[Node]) -> tuple[list[Type], int]:
        kinds: list[Type] = []
        cost = 0
        for node in nodes:
            kind, one = self.visit(node)
            kinds.append(kind)
            cost += one
        return kinds, cost

    @staticmethod
    def _joined(kinds: Sequence[Type]) -> Type:
        return kinds[0] if kinds and all(kind == kinds[0] for kind in kinds) else "dyn"

    def _want(self, node: Node, kind: Type, *wanted: Type) -> None:
        if kind != "dyn" and kind not in wanted:
            self.complain(node, f"expected {' or '.join(show(one) for one in wanted)}, found {show(kind)}")

    def _call(self, node: Call) -> tuple[Type, int]:
        if node.function in _MACROS and node.target is not None:
            return self._loop(node)
        if node.function == "has" and node.target is None:
            return self._has(node)
        if node.target is not None:
            return self._method(node)
        operator = _OPERATORS.get(node.function)
        if operator is not None:
            kinds, cost = self._visit_all(node.args)
            return operator(self, node, kinds), cost + 1
        return self._function(node)

    def _method(self, node: Call) -> tuple[Type, int]:
        assert node.target is not None
        kind, cost = self.visit(node.target)
        if node.function == "size":
            self._sized(node.target, kind)
            self._count(node, 0)
            return "int", cost + 1
        known = _METHODS.get(node.function)
        if known is None:
            self.complain(
                node, f"unknown function {node.function!r}{_near(node.function, [*_METHODS, *_MACROS, 'size'])}"
            )
            return "dyn", cost
        receiver, wanted, result = known
        self._want(node.target, kind, receiver)
        self._count(node, len(wanted))
        kinds, args_cost = self._visit_all(node.args)
        for arg, found, want in zip(node.args, kinds, wanted, strict=False):
            self._want(arg, found, want)
        return result, cost + args_cost + (10 if node.function == "matches" else 2)

    def _function(self, node: Call) -> tuple[Type, int]:
        kinds, cost = self._visit_all(node.args)
        if node.function == "size":
            self._count(node, 1)
            if node.args:
                self._sized(node.args[0], kinds[0])
            return "int", cost + 1
        if node.function in _CONVERSIONS:
            self._count(node, 1)
            return node.function, cost + 2
        self.complain(node, f"unknown function {node.function!r}{_near(node.function, [*_FUNCTIONS, *_METHODS])}")
        return "dyn", cost

    def _count(self, node: Call, wanted: int) -> None:
        if len(node.args) != wanted:
            self.complain(node, f"{node.function} takes {wanted} argument{'s' * (wanted != 1)}, found {len(node.args)}")

    def _sized(self, node: Node, kind: Type) -> None:
        if kind not in ("string", "bytes", "dyn") and not isinstance(kind, tuple):
            self.complain(node, f"size() needs a string, list or map, found {show(kind)}")

    def _has(self, node: Call) -> tuple[Type, int]:
        self._count(node, 1)
        if not node.args or not isinstance(node.args[0], Select):
            self.complain(
                node, "has() needs a field, such as headers.cookie; write 'x-team' in headers for other names"
            )
            return "bool", 1
        _, cost = self.visit(node.args[0])
        return "bool", cost + 1

    def _loop(self, node: Call) -> tuple[Type, int]:
        assert node.target is not None
        kind, cost = self.visit(node.target)
        item: Type = "dyn"
        if isinstance(kind, tuple):
            item = "string" if kind[0] == "map" else kind[1]
        elif kind != "dyn":
            self.complain(node.target, f"{show(kind)} cannot be looped over")
        length = self._length(node.target)
        if len(node.args) not in ((2, 3) if node.function == "map" else (2,)) or not isinstance(node.args[0], Name):
            self.complain(node, f"{node.function} takes a variable name and an expression")
            return "dyn", cost
        if node.args[0].name in VARIABLES:
            self.complain(node.args[0], f"the loop variable hides {node.args[0].name!r}; choose another name")
        self.scope.append((node.args[0].name, item))
        kinds, body = self._visit_all(node.args[1:])
        self.scope.pop()
        cost += length * (body + 2)
        if node.function == "map":
            return ("list", kinds[-1]), cost
        self._want(node.args[1], kinds[0], "bool")
        return (kind if node.function == "filter" else "bool"), cost

    def _length(self, node: Node) -> int:
        if isinstance(node, ListNode):
            return max(1, len(node.items))
        if isinstance(node, MapNode):
            return max(1, len(node.entries))
        if isinstance(node, Name) and node.name == "pools" and self.pools is not None:
            return max(1, len(self.pools))
        if isinstance(node, Name | Select):
            return _LENGTHS.get(node.name if isinstance(node, Name) else node.field, _UNKNOWN_LENGTH)
        return _UNKNOWN_LENGTH

    def _logic(self, node: Call, kinds: list[Type]) -> Type:
        for arg, kind in zip(node.args, kinds, strict=True):
            self._want(arg, kind, "bool")
        return "bool"

    def _negative(self, node: Call, kinds: list[Type]) -> Type:
        self._want(node.args[0], kinds[0], "int", "double")
        return kinds[0]

    def _conditional(self, node: Call, kinds: list[Type]) -> Type:
        self._want(node.args[0], kinds[0], "bool")
        return self._joined(kinds[1:])

    def _equality(self, node: Call, kinds: list[Type]) -> Type:
        left, right = kinds
        alike = left == right or "dyn" in kinds or "null" in kinds or (left in _NUMBERS and right in _NUMBERS)
        if not alike and not (isinstance(left, tuple) and isinstance(right, tuple) and left[0] == right[0]):
            self.complain(node, f"{show(left)} is never equal to {show(right)}")
        return "bool"

    def _order(self, node: Call, kinds: list[Type]) -> Type:
        left, right = kinds
        if (
            "dyn" not in kinds
            and not (left in _NUMBERS and right in _NUMBERS)
            and not (left == right and left in _ORDERED)
        ):
            self.complain(node, f"{show(left)} and {show(right)} cannot be compared by {node.function}")
        return "bool"

    def _membership(self, node: Call, kinds: list[Type]) -> Type:
        item, container = kinds
        if isinstance(container, tuple):
            wanted: Type = "string" if container[0] == "map" else container[1]
            if wanted != "dyn":
                self._want(node.args[0], item, wanted)
            if container == ("map", "pool") and isinstance(node.args[0], Literal):
                self._pool(node.args[0], str(node.args[0].value))
        elif container != "dyn":
            self.complain(node.args[1], f"'in' needs a list or map, found {show(container)}")
        return "bool"

    def _arithmetic(self, node: Call, kinds: list[Type]) -> Type:
        left, right = kinds
        if "dyn" in kinds:
            return right if left == "dyn" else left
        joinable = left in ("string", "bytes") or isinstance(left, tuple)
        if left == right and (left in _NUMBERS or (node.function == "+" and joinable)):
            if left == "double" and node.function == "%":
                self.complain(node, "% needs whole numbers")
            return left
        times = {left, right}
        if times <= {"duration", "timestamp"} and node.function in "+-":
            both = left == right == "timestamp"
            return "duration" if both or times == {"duration"} else "timestamp"
        hint = "; write double(...)" if left in _NUMBERS and right in _NUMBERS else ""
        self.complain(node, f"{show(left)} {node.function} {show(right)} is not defined{hint}")
        return "dyn"


_OPERATORS: dict[str, Callable[[_Checker, Call, list[Type]], Type]] = {
    "&&": _Checker._logic,
    "||": _Checker._logic,
    "!_": _Checker._logic,
    "-_": _Checker._negative,
    "?:": _Checker._conditional,
    "==": _Checker._equality,
    "!=": _Checker._equality,
    "in": _Checker._membership,
    **dict.fromkeys(("<", "<=", ">", ">="), _Checker._order),
    **dict.fromkeys(("+", "-", "*", "/", "%"), _Checker._arithmetic),
}
