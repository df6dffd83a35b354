from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_control.errors import PolicyError, Problem
from xds_control.policy.document import MAX_DEPTH, read_document


def test_every_value_has_its_place() -> None:
    document = read_document("a: 1\nb:\n  - x: 2\n  - y: 3\n", "p.yaml")
    assert document.value == {"a": 1, "b": [{"x": 2}, {"y": 3}]}
    assert str(document.place(("b", 1, "y"))) == "p.yaml:4:8: b[1].y"
    assert str(document.place(("b", 1, "y"), key=True)) == "p.yaml:4:5: b[1].y"


def test_a_missing_value_is_placed_at_its_parent() -> None:
    document = read_document("a:\n  b: 1\n", "p.yaml")
    assert str(document.place(("a", "c"))) == "p.yaml:2:3: a.c"


def test_duplicate_keys_are_reported_with_the_first_line() -> None:
    document = read_document("a: 1\nb: 2\na: 3\n", "p.yaml")
    assert [str(p) for p in document.problems] == ["p.yaml:3:1: a: 'a' appears twice (first on line 1)"]


def test_merge_keys_are_no_duplicates() -> None:
    document = read_document("base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  x: 3\n")
    assert document.value["use"] == {"x": 3, "y": 2}
    assert document.problems == []


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: [1, 2", 1, "is not YAML"),
        ("a: 1\n b: 2", 2, "is not YAML"),
        ("a: \x01", 1, "is not YAML"),
        ("a: 1\n---\nb: 2\n", 2, "is not YAML"),
        ("a: !!python/object:os.system x", 1, ""),
    ],
)
def test_text_that_is_not_yaml_names_the_line(text: str, line: int, words: str) -> None:
    try:
        document = read_document(text, "p.yaml")
    except PolicyError as error:
        problems = error.problems
    else:
        problems = document.problems
    assert problems
    assert problems[0].place.line == line
    assert words in problems[0].message


def test_bytes_that_are_not_utf8_name_the_line() -> None:
    with pytest.raises(PolicyError, match=r"p\.yaml:2: is not UTF-8"):
        read_document(b"a: 1\nb: \xff\n", "p.yaml")


def test_alias_bombs_and_deep_nesting_end_in_an_error() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(8)
    )
    with pytest.raises(PolicyError, match="aliases"):
        read_document(bomb)
    with pytest.raises(PolicyError, match="nested deeper"):
        read_document("[" * (MAX_DEPTH + 5) + "]" * (MAX_DEPTH + 5))
    with pytest.raises(PolicyError, match="nested deeper"):
        read_document("[" * 20_000)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    found = _problems(text)
    assert found is None or found


def _problems(text: str) -> list[Problem] | None:
    """None when the text was read."""
    try:
        read_document(text)
    except PolicyError as error:
        return error.problems
    return None
