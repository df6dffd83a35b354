from __future__ import annotations

import cel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xds_control.routing.cel_check import check
from xds_control.routing.cel_syntax import MAX_DEPTH, CelSyntaxError, parse


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("request.stream", "bool"),
        ("request.prompt_tokens > 8000 && 'code' in request.tags", "bool"),
        ("request.prompt_tokens + 2 * request.n > 10", "bool"),
        ("request.prompt_tokens > 8000.5", "bool"),
        ("double(request.prompt_tokens) * 0.5 > 1.0", "bool"),
        ("headers['x-team'] == 'search' || headers.cookie.contains('beta')", "bool"),
        ("'x-team' in headers && has(headers.cookie)", "bool"),
        ("headers.exists(h, h.startsWith('x-'))", "bool"),
        ("pools['a'].waiting < 4.0 && pools.b.available", "bool"),
        ("pools.exists(p, pools[p].kv_usage > 0.9)", "bool"),
        ("request.model.matches('^llama-.*$')", "bool"),
        ("size(request.tags) == 0 || request.tags.all(t, t != 'legal')", "bool"),
        ("request.model in ['a', \"b\"]", "bool"),
        ("!request.stream ? request.n > 1 : request.temperature < -0.5", "bool"),
        ("request.tags.map(t, size(t)).exists(n, n > 3)", "bool"),
        ("request.tags.filter(t, t.size() > 3) == []", "bool"),
        ("{'a': 1}['a'] == 1 && r'a\\b' != '''x'''", "bool"),
        ("duration('10s') + duration('1s') > duration('2s')", "bool"),
        ("request.priority % 2 == 1", "bool"),
        ("int(headers['x-level']) >= 3 // a remark", "bool"),
    ],
)
def test_good_expressions_have_a_type_and_compile(source: str, kind: str) -> None:
    checked = check(parse(source), ["a", "b"])
    assert checked.complaints == []
    assert checked.type == kind
    cel.compile(source)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("request.promt_tokens > 1", "did you mean 'prompt_tokens'"),
        ("prompt_tokens > 1", "did you mean 'request.prompt_tokens'"),
        ("headres['a'] == ''", "did you mean 'headers'"),
        ("pools['c'].waiting > 1.0", "unknown pool 'c'"),
        ("pools.c.available", "unknown pool 'c'"),
        ("'c' in pools", "unknown pool 'c'"),
        ("pools['a'].kv_use > 0.5", "pool has no field 'kv_use'; did you mean 'kv_usage'"),
        ("request.prompt_tokens > '8000'", "int and string cannot be compared"),
        ("request.prompt_tokens == '8000'", "int is never equal to string"),
        ("request.prompt_tokens + 1.5 > 2.0", "write double(...)"),
        ("request.model", "a rule must be true or false, this is string"),
        ("request.stream && request.n", "expected bool, found int"),
        ("request.tags == 'code'", "is never equal to"),
        ("3 in request.tags", "expected string, found int"),
        ("'a' in request.model", "needs a list or map"),
        ("request.model.startWith('a')", "did you mean 'startsWith'"),
        ("request.model.startsWith(1)", "expected string, found int"),
        ("request.model.startsWith('a', 'b')", "takes 1 argument, found 2"),
        ("lower(request.model) == 'a'", "unknown function 'lower'"),
        ("headers['X-Team'] == 'a'", "header names are lower-case: 'x-team'"),
        ("request.model.foo", "string has no fields"),
        ("request.n[0] == 1", "int cannot be indexed"),
        ("request.n.exists(x, true)", "int cannot be looped over"),
        ("request.tags.exists('x', true)", "takes a variable name"),
        ("request.tags.exists(request, true)", "hides 'request'"),
        ("request.tags.all(t, size(t))", "expected bool, found int"),
        ("has(request)", "has() needs a field"),
        ("size(request.n) > 1", "size() needs"),
        ("1.5 % 2.0 > 1.0", "% needs whole numbers"),
        ("request == 1", "is never equal to"),
    ],
)
def test_wrong_names_and_types_are_found_before_any_request(source: str, sentence: str) -> None:
    complaints = check(parse(source), ["a", "b"]).complaints
    assert any(sentence in one.message for one in complaints), complaints


def test_complaints_know_their_place() -> None:
    (complaint,) = check(parse("request.stream && request.nope > 1")).complaints
    assert complaint.offset == 18


@pytest.mark.parametrize(
    ("source", "offset"),
    [
        ("request.", 8),
        ("(1", 2),
        ("1 +", 3),
        ("a b", 2),
        ("'open", 0),
        ("1 ? 2", 5),
        ("[1, 2", 5),
        ("{1: }", 4),
        ("#", 0),
        ("in", 0),
    ],
)
def test_syntax_errors_know_their_place(source: str, offset: int) -> None:
    with pytest.raises(CelSyntaxError) as caught:
        parse(source)
    assert caught.value.offset == offset


@pytest.mark.parametrize("text", ["(" * 5000, "!" * 5000 + "true", "[" * 5000, "a?b:" * 5000, "a.b(" * 5000])
def test_deep_expressions_are_refused_not_a_crash(text: str) -> None:
    with pytest.raises(CelSyntaxError):
        parse(text)
    assert MAX_DEPTH < 100


def test_loops_multiply_the_cost() -> None:
    plain = check(parse("request.stream")).cost
    once = check(parse("request.tags.exists(t, t == 'a')")).cost
    twice = check(parse("request.tags.exists(t, request.tags.exists(u, t == u))")).cost
    assert plain < 5
    assert 64 < once < 1000
    assert twice > 64 * 64


# Reserved words, escapes, and integers out of range.
LIBRARY_IS_STRICTER = (
    "reserved",
    "Syntax error",
    "token recognition",
    "invalid",
    "overflow",
    "expects",
    "unsupported",
    "must be",
)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="abr e.q()[]{}'\"!&|=<>+-*/%?:,019_uxin\\\n", max_size=40))
def test_what_this_parser_takes_the_library_takes(source: str) -> None:
    """And nothing crashes. The library may take more (such as unusual escapes), which is then refused at load."""
    try:
        parse(source)
    except CelSyntaxError:
        return
    problem = ""
    try:
        cel.compile(source)
    except ValueError as error:
        problem = str(error)
    assert not problem or any(word in problem for word in LIBRARY_IS_STRICTER), source
