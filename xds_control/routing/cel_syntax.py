"""CEL expressions as a tree: a lexer and a parser for the language's grammar, so that rules can be checked at load.

Evaluation is the CEL library's; it offers no tree, and names, types and cost cannot be checked without one.
Grammar: https://github.com/google/cel-spec/blob/master/doc/langdef.md#syntax
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

MAX_DEPTH = 48

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n\f]+|//[^\n]*)
      |(?P<string>[rRbB]{0,2}(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
      |(?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)
      |(?P<int>0[xX][0-9a-fA-F]+[uU]?|\d+[uU]?)
      |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
      |(?P<op>&&|\|\||<=|>=|==|!=|[-+*/%<>!?:.,()\[\]{}])""",
    re.VERBOSE | re.DOTALL,
)
_RELATIONS = ("<", "<=", ">", ">=", "==", "!=", "in")


class CelSyntaxError(ValueError):
    """The text is not a CEL expression. `offset` counts characters from 0."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(f"{message} at character {offset + 1}")
        self.offset = offset


@dataclass(slots=True)
class Node:
    """start and end delimit the node's text in the source."""

    start: int
    end: int


@dataclass(slots=True)
class Literal(Node):
    """kind: bool, int, uint, double, string, bytes, null. value: its text's meaning for bool and plain strings."""

    kind: str
    value: bool | str | None = None


@dataclass(slots=True)
class Name(Node):
    """An identifier."""

    name: str


@dataclass(slots=True)
class Select(Node):
    """`operand.field`."""

    operand: Node
    field: str


@dataclass(slots=True)
class Index(Node):
    """`operand[index]`."""

    operand: Node
    index: Node


@dataclass(slots=True)
class Call(Node):
    """A function, method (`target` given) or operator (`function` is its sign; "?:" for the conditional)."""

    function: str
    args: list[Node]
    target: Node | None = None


@dataclass(slots=True)
class ListNode(Node):
    """`[a, b]`."""

    items: list[Node]


@dataclass(slots=True)
class MapNode(Node):
    """`{a: b}`."""

    entries: list[tuple[Node, Node]]


@dataclass(slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int


def _tokens(source: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None:
            raise CelSyntaxError(f"unexpected {source[at]!r}", at)
        kind = match.lastgroup or ""
        if kind != "space":
            found.append(_Token(kind, match.group(), at, match.end()))
        at = match.end()
    found.append(_Token("end", "", len(source), len(source)))
    return found


def _plain(text: str) -> str | None:
    """The value of a string literal without escapes, None when it has some (its value is then not needed here)."""
    body = text.lstrip("rRbB")
    quote = 3 if body[:3] in ('"""', "'''") and len(body) >= 6 else 1
    inner = body[quote:-quote]
    raw = "r" in text[: len(text) - len(body)].lower()
    return inner if raw or "\\" not in inner else None


class _Parser:
    def __init__(self, source: str) -> None:
        self._tokens = _tokens(source)
        self._at = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._expression()
        if self._now.kind != "end":
            self._fail(f"unexpected {self._now.text!r}")
        return node

    @property
    def _now(self) -> _Token:
        return self._tokens[self._at]

    def _fail(self, message: str) -> NoReturn:
        raise CelSyntaxError(message, self._now.start)

    def _next(self) -> _Token:
        token = self._now
        self._at += 1
        return token

    def _is(self, text: str) -> bool:
        return self._now.text == text and self._now.kind in ("op", "name")

    def _expect(self, text: str) -> _Token:
        if not self._is(text):
            self._fail(f"expected {text!r}, found {self._now.text or 'the end'!r}")
        return self._next()

    def _expression(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"nested deeper than {MAX_DEPTH}")
        node = self._binary(0)
        if self._is("?"):
            self._next()
            then = self._binary(0)
            self._expect(":")
            other = self._expression()
            node = Call(node.start, other.end, "?:", [node, then, other])
        self._depth -= 1
        return node

    _LEVELS = (("||",), ("&&",), _RELATIONS, ("+", "-"), ("*", "/", "%"))

    def _binary(self, level: int) -> Node:
        if level == len(self._LEVELS):
            return self._unary()
        node = self._binary(level + 1)
        while self._now.kind in ("op", "name") and self._now.text in self._LEVELS[level]:
            sign = self._next().text
            right = self._binary(level + 1)
            node = Call(node.start, right.end, sign, [node, right])
        return node

    def _unary(self) -> Node:
        if self._is("!") or self._is("-"):
            signs = []
            while self._is("!") or self._is("-"):
                signs.append(self._next())
                if len(signs) > MAX_DEPTH:
                    self._fail(f"nested deeper than {MAX_DEPTH}")
            node = self._member()
            for sign in reversed(signs):
                node = Call(sign.start, node.end, f"{sign.text}_", [node])
            return node
        return self._member()

    def _member(self) -> Node:
        node = self._primary()
        while True:
            if self._is("."):
                self._next()
                field = self._next()
                if field.kind != "name":
                    self._at -= 1
                    self._fail("expected a field name after '.'")
                if self._is("("):
                    args, end = self._arguments(")")
                    node = Call(node.start, end, field.text, args, node)
                else:
                    node = Select(node.start, field.end, node, field.text)
            elif self._is("["):
                self._next()
                index = self._expression()
                node = Index(node.start, self._expect("]").end, node, index)
            else:
                return node

    def _arguments(self, close: str) -> tuple[list[Node], int]:
        self._next()
        found: list[Node] = []
        while not self._is(close):
            found.append(self._expression())
            if not self._is(","):
                break
            self._next()
        return found, self._expect(close).end

    def _primary(self) -> Node:
        token = self._now
        if token.kind == "op":
            if token.text == "(":
                self._next()
                node = self._expression()
                closing = self._expect(")")
                node.start, node.end = token.start, closing.end
                return node
            if token.text == "[":
                items, end = self._arguments("]")
                return ListNode(token.start, end, items)
            if token.text == "{":
                return self._map()
            self._fail(f"unexpected {token.text!r}")
        if token.kind == "end":
            self._fail("the expression ends too early")
        self._next()
        if token.kind == "name":
            if token.text in ("true", "false"):
                return Literal(token.start, token.end, "bool", token.text == "true")
            if token.text == "null":
                return Literal(token.start, token.end, "null")
            if token.text == "in":
                self._at -= 1
                self._fail("unexpected 'in'")
            if self._is("("):
                args, end = self._arguments(")")
                return Call(token.start, end, token.text, args)
            return Name(token.start, token.end, token.text)
        if token.kind == "string":
            prefix = token.text[: len(token.text) - len(token.text.lstrip("rRbB"))].lower()
            return Literal(token.start, token.end, "bytes" if "b" in prefix else "string", _plain(token.text))
        if token.kind == "float":
            return Literal(token.start, token.end, "double")
        return Literal(token.start, token.end, "uint" if token.text[-1] in "uU" else "int")

    def _map(self) -> Node:
        start = self._next().start
        entries: list[tuple[Node, Node]] = []
        while not self._is("}"):
            key = self._expression()
            self._expect(":")
            entries.append((key, self._expression()))
            if not self._is(","):
                break
            self._next()
        return MapNode(start, self._expect("}").end, entries)


def parse(source: str) -> Node:
    """The tree of an expression. Raises CelSyntaxError."""
    return _Parser(source).whole()
