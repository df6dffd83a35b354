from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tests.shared import shared_dir, shared_path
from tests.unit.signals.pages import vllm_page
from xds_control.signals.exposition import BadLine, Selector, Series, normalise, parse, parse_line

SAMPLES = sorted(path.name for path in (shared_dir() or Path("/nonexistent")).glob("samples/*.txt"))

Flat = list[tuple[str, tuple[tuple[str, str], ...], float]]


def official(page: str) -> Flat:
    """Without `_total`, which the official parser adds to counters that have none."""
    return [
        (sample.name.removesuffix("_total"), tuple(sorted(sample.labels.items())), float(sample.value))
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    ]


def ours(page: bytes) -> Flat:
    return [(sample.name.removesuffix("_total"), sample.labels, sample.value) for sample in parse(page)]


def same(a: Flat, b: Flat) -> bool:
    return len(a) == len(b) and all(
        x[:2] == y[:2] and (x[2] == y[2] or (math.isnan(x[2]) and math.isnan(y[2]))) for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("name", SAMPLES)
def test_agrees_with_the_official_parser_on_every_sample(name: str) -> None:
    text = shared_path(f"samples/{name}").read_text()
    # The official parser gives up at a line of prose (one sample has some); ours leaves such lines out.
    lines = [line for line in text.splitlines() if line.startswith("#") or not line or "{" in line or " " in line]
    usable = "".join(f"{line}\n" for line in lines if not line.startswith(("To enable", "or left", '"disable')))
    expected = official(usable)
    assert expected or name == "empty"
    assert same(ours(text.encode()), expected)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_selective_reader_finds_what_the_official_parser_finds(name: str) -> None:
    text = shared_path(f"samples/{name}").read_text()
    samples = ours(text.encode())
    buckets = {normalise(n).removesuffix("_bucket") for n, labels, _ in samples if "le" in dict(labels)}

    def place(full: str) -> tuple[str, str]:
        """Family and part of a sample's name."""
        base = normalise(full)
        for part in ("bucket", "sum", "count"):
            if base.removesuffix(f"_{part}") in buckets and base.endswith(f"_{part}"):
                return base.removesuffix(f"_{part}"), part
        return (base, "bucket") if base in buckets else (base, "value")

    values = {family for family, part in (place(n) for n, _, _ in samples) if part == "value"}
    expected = {
        (
            *place(n),
            frozenset(pair for pair in labels if pair[0] != "le"),
            float(dict(labels)["le"]) if "le" in dict(labels) else None,
            value,
        )
        for n, labels, value in samples
        if 0 <= value < 9.2e18
    }
    selector = Selector({**dict.fromkeys(values, "value"), **dict.fromkeys(buckets, "histogram")})
    for _ in range(2):  # the second time from memory
        found = {
            (s.family, s.part, frozenset(s.labels.items()), s.bound, value)
            for rows in selector.read(text.encode()).rows.values()
            for s, value in rows.items()
        }
        assert found == expected


label_value = st.text(st.characters(codec="utf-8", exclude_characters="\r\x00"), max_size=12)
label_name = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True).filter(lambda n: not n.startswith("__"))
metric_name = st.from_regex(r"(ray_)?(vllm:|sglang:)?[a-z][a-z0-9_]{0,10}", fullmatch=True)
number_text = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True).map(repr),
    st.integers(-(10**20), 10**20).map(str),
    st.sampled_from(["NaN", "+Inf", "-Inf", "1.15891634176e+011", "0", "-1", "9223372036854775794"]),
)


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


@st.composite
def sample_line(draw: st.DrawFn) -> str:
    labels = draw(st.dictionaries(label_name, label_value, max_size=4))
    space = draw(st.sampled_from(["", " "]))
    text = draw(metric_name)
    braces = draw(st.booleans())
    if labels or braces:
        inside = ",".join(f'{space}{key}="{escaped(value)}"' for key, value in labels.items())
        text += "{" + inside + draw(st.sampled_from(["", ","] if labels else [""])) + "}"
    text += draw(st.sampled_from([" ", "  ", "\t"])) + draw(number_text)
    if draw(st.integers(0, 4)) == 0:
        text += f" {draw(st.integers(0, 10**12))}"
    return text


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(sample_line(), st.just(""), st.just("# a remark"), st.just("# EOF of nothing")), max_size=12))
def test_agrees_with_the_official_parser_on_generated_pages(lines: list[str]) -> None:
    page = "".join(f"{line}\n" for line in lines)
    expected = official(page)
    got = ours(page.encode())
    # The official parser gathers the samples of a family; ours leaves them in the order of the page.
    key = repr
    assert same(sorted(got, key=key), sorted(expected, key=key))


@settings(max_examples=100, deadline=None)
@given(st.lists(sample_line(), max_size=12))
def test_the_memory_of_the_selective_reader_changes_nothing(lines: list[str]) -> None:
    page = "".join(f"{line}\n" for line in lines).encode()
    names = {normalise(sample.name) for sample in parse(page)}
    cold, warm = Selector(dict.fromkeys(names, "value")), Selector(dict.fromkeys(names, "value"))
    warm.read(page)
    a, b = cold.read(page), warm.read(page)

    def flat(rows: dict[str, dict[Series, float]]) -> list[tuple[str, list[tuple[str, str]], float]]:
        return sorted(
            (family, sorted(series.labels.items()), value)
            for family, all_ in rows.items()
            for series, value in all_.items()
        )

    assert flat(a.rows) == flat(b.rows)
    assert a.dropped == b.dropped


def read(text: str, **families: str) -> dict[str, list[float]]:
    selector = Selector({name: "histogram" if kind == "histogram" else "value" for name, kind in families.items()})
    page = selector.read(text.encode())
    return {family: sorted(rows.values()) for family, rows in page.rows.items()}


@pytest.mark.parametrize(
    "line",
    [
        "sglang:num_running_reqs 7",
        "sglang_num_running_reqs 7",
        "ray_sglang:num_running_reqs 7",
        "ray_sglang_num_running_reqs 7",
        "sglang:num_running_reqs_total 7",
        'sglang:num_running_reqs{a="x, y} z", b="\\"q\\""} 7',
        "sglang:num_running_reqs\t7",
        "sglang:num_running_reqs   7   ",
        "sglang:num_running_reqs 7 1700000000000",
        "sglang:num_running_reqs 7\t1700000000000",
        'sglang:num_running_reqs{} 7 # {trace_id="a b"} 0.5 170000.5',
        "  sglang:num_running_reqs 7",
        "sglang:num_running_reqs 7e+000",
        "sglang:num_running_reqs 7\r",
    ],
)
def test_one_value_however_it_is_written(line: str) -> None:
    for text in (f"{line}\n", f"# HELP x y\n\n{line}\n{line.replace('7', '7')}\n"):
        assert read(text, sglang_num_running_reqs="gauge") == {"sglang_num_running_reqs": [7.0]}


def test_time_stamps_do_not_fill_the_memory() -> None:
    selector = Selector({"a": "value"})
    for step in range(500):
        page = selector.read(f'a 1 {step}\nunwanted {step} {step}\nother{{x="y"}} {step} {step}\n'.encode())
        assert list(page.rows["a"].values()) == [1.0]
    assert len(selector._heads) <= 4


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("NaN", "nan"),
        ("+Inf", "infinite"),
        ("-Inf", "infinite"),
        ("-1", "unknown"),
        ("-0.5", "negative"),
        ("9223372036854775792", "blank"),
        ("9223372036854775795", "blank"),
        ("1_000", "bad_number"),
        ("seven", "bad_number"),
        ("0x10", "bad_number"),
    ],
)
def test_what_is_no_measurement_is_dropped_and_counted(text: str, reason: str) -> None:
    selector = Selector({"a": "value", "b": "value"})
    for _ in range(2):
        page = selector.read(f'a{{x="1"}} 5\na{{x="2"}} {text}\nb 3\n'.encode())
        assert page.dropped == {reason: 1}
        assert "a" in page.spoiled
        assert list(page.rows["b"].values()) == [3.0]


def test_duplicates_are_counted_and_contradictions_spoil_the_family() -> None:
    selector = Selector({"a": "value", "b": "value"})
    page = selector.read(b'a{x="1"} 5\na{x="1"} 5\nb 1\nb_total 2\n')
    assert page.dropped == {"duplicate": 1, "conflict": 1}
    assert list(page.rows["a"].values()) == [5.0]
    assert list(page.spoiled) == ["b"]


def test_invalid_utf8_in_a_label_drops_its_line_only() -> None:
    selector = Selector({"a": "value", "b": "value"})
    page = selector.read(b'# HELP a \xff\xfe\na{x="\xff"} 5\nb{x="\xc3\xa9"} 3\nunwanted{x="\xff"} 3\n')
    assert page.dropped == {"bad_utf8": 1}
    ((series, value),) = page.rows["b"].items()
    assert (dict(series.labels), value) == ({"x": "é"}, 3.0)


def test_buckets_without_the_suffix_are_buckets() -> None:
    page = Selector({"h": "histogram"}).read(b'h_count 3\nh_sum 9\nh{m="a", le="100"} 2\nh{m="a", le="+Inf"} 3\n')
    parts = sorted((series.part, series.bound or 0.0, value) for series, value in page.rows["h"].items())
    assert parts == [("bucket", 100.0, 2.0), ("bucket", math.inf, 3.0), ("count", 0.0, 3.0), ("sum", 0.0, 9.0)]


@pytest.mark.parametrize(
    "line", [b"a", b"a{", b'a{x="1"', b'a{x="1"}', b"a{x=1} 2", b"{} 1", b"1a 2", b"a 1 2 3", b"<html>"]
)
def test_lines_that_are_no_samples(line: bytes) -> None:
    with pytest.raises(BadLine):
        parse_line(line)
    assert Selector({"a": "value"}).read(line + b"\n").rows == {}


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_no_bytes_make_it_fail(junk: bytes) -> None:
    selector = Selector({"a": "value", "vllm_num_requests_running": "value", "h": "histogram"})
    page = selector.read(junk)
    assert all(value >= 0 for rows in page.rows.values() for value in rows.values())
    list(parse(junk))


def test_a_torn_page_never_changes_a_value() -> None:
    whole = vllm_page(step=3, size=8_000)
    names = {normalise(sample.name): "value" for sample in parse(whole)}
    full = {
        (s.family, frozenset(s.labels.items())): value
        for rows in Selector(names).read(whole).rows.values()  # type: ignore[arg-type]
        for s, value in rows.items()
    }
    selector = Selector(names)  # type: ignore[arg-type]
    for cut in range(0, len(whole), 37):
        line_end = whole.rfind(b"\n", 0, cut) + 1
        for rows in selector.read(whole[:line_end]).rows.values():
            for s, value in rows.items():
                assert full[(s.family, frozenset(s.labels.items()))] == value
