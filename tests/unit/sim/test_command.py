"""The command, the report and the tables."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from xds_control.cli.main import main
from xds_control.sim import bench, tables
from xds_control.sim.cells import Cell
from xds_control.sim.fleet import from_calibration, parse_fleet
from xds_control.sim.presets import PRESETS, engine, preset


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", "--no-progress", *arguments])


SMALL = ("--workload", "shared-prefix", "--requests", "300", "--rate", "30", "--replicas", "3")


def test_a_comparison_as_a_table() -> None:
    result = run(*SMALL, "--against", "round_robin,epp-default")
    assert result.exit_code == 0, result.output
    for name in ("ours", "round_robin", "epp-default", "goodput", "p90 s"):
        assert name in result.output


def test_the_same_comparison_as_json_is_the_same_twice() -> None:
    one, two = (run(*SMALL, "--against", "least_request", "--output", "json") for _ in range(2))
    assert one.output == two.output
    found = json.loads(one.output)
    assert [p["policy"] for p in found["policies"]] == ["ours", "least_request"]
    assert found["policies"][0]["goodput"] == pytest.approx(1.0)
    assert found["seed"] == 1


def test_the_report_needs_no_network(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    result = run(*SMALL, "--against", "round_robin", "--html", str(path))
    assert result.exit_code == 0, result.output
    page = path.read_text()
    assert page.count("<svg") >= 6
    assert "nine of ten" in page
    assert not re.search(r"(src|href)=|https?://|<script", page)
    assert "nan" not in page


def test_a_policy_file_and_a_trace_of_ones_own(tmp_path: Path) -> None:
    policy = tmp_path / "mine.yaml"
    policy.write_text(
        "version: xds-control/v1\n"
        "pools: [{name: chat, models: [m], endpoints: [{address: '10.0.0.1:8000'}]}]\n"
        "picker: {profiles: {default: {rule: affinity}}}\n"
    )
    trace = tmp_path / "load.csv"
    trace.write_text("prompt_tokens,output_tokens\n" + "300,20\n" * 60)
    result = run(
        "--policy", str(policy), "--against", "ours", "--trace", str(trace), "--rate", "10", "--output", "json"
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert [p["policy"] for p in found["policies"]] == ["mine", "ours"]
    assert found["rate_rps"] == pytest.approx(10, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--policy", "best"), "neither a policy file nor"),
        (("--replicas", "4xh900-gpt"), "unknown engine"),
        (("--replicas", "many"), "is not `N`"),
        (("--replicas", "0"), "at least one"),
        (("--fault", "flood:1:2"), "kind:at:seconds"),
        (("--trace", "absent.csv"), "cannot be read"),
        (("--rate", "0"), "above 0"),
        (("--trace", "x.csv", "--workload", "uniform"), "not both"),
    ],
)
def test_wrong_arguments_say_what_is_wrong(arguments: tuple[str, ...], what: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert what in result.output


def test_calibration_makes_engines(tmp_path: Path) -> None:
    report = {
        "url": "http://a",
        "prefill_tps": 5000.0,
        "levels": [
            {"concurrency": 1, "tokens_per_s": 50.0, "tpot_s": 0.02},
            {"concurrency": 11, "tokens_per_s": 366.0, "tpot_s": 0.03},
        ],
    }
    (one,) = from_calibration([report], preset("h100-llama-8b"))
    assert one.prefill_s == pytest.approx(1 / 5000)
    assert one.decode_s == pytest.approx(0.02)
    assert one.sequence_s == pytest.approx(0.001)
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps([report, report]))
    result = run("--calibration", str(path), "--requests", "60", "--rate", "3", "--output", "json")
    assert result.exit_code == 0, result.output
    with pytest.raises(ValueError, match="no prefill_tps"):
        from_calibration([{"url": "x", "levels": []}], one)


def test_fleets_by_words() -> None:
    engines, capacities = parse_fleet("2xh100-llama-8b,1xa100-llama-8b,1xh100-llama-8b@0.5")
    assert [e.decode_s for e in engines[:2]] == [preset("h100-llama-8b").decode_s] * 2
    assert capacities[0] == 1.0
    assert capacities[3] == pytest.approx(0.5)
    assert 0.2 < capacities[2] < 0.9


def test_presets_are_engines_and_larger_cards_are_faster() -> None:
    assert all(preset(name).kv_tokens > 10_000 for name in PRESETS)
    assert (
        engine("h200", "llama-8b").decode_s < engine("h100", "llama-8b").decode_s < engine("l4", "qwen2.5-7b").decode_s
    )
    with pytest.raises(ValueError, match="does not fit"):
        engine("l4", "llama-70b")
    with pytest.raises(ValueError, match="unknown GPU"):
        engine("z9", "llama-8b")


def test_tables_are_written_and_say_where_ours_loses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Cell("uniform", 30, 200)
    monkeypatch.setattr(tables, "LOADS", (small, replace(small, workload="arxiv")))
    monkeypatch.setattr(tables, "SEEDS", (1,))
    monkeypatch.setattr(tables, "LISTED", ("ours", "round_robin"))
    path, resume = tmp_path / "policies.md", tmp_path / "resume.jsonl"
    said: list[str] = []
    for _ in range(2):
        tables.write(path, said.append, tmp_path, 1, ("loads",), resume)
    text = path.read_text()
    assert "| uniform 30/s |" in text
    assert "arxiv" not in text, "its trace is not there"
    assert "`ours` loses" in text
    assert len([line for line in said if "round_robin" in line]) == 2, "two seeds ran once, the rest was resumed"


def test_losses_are_told_with_their_size() -> None:
    cell = Cell("uniform", 100, 300, "2")
    row = bench.run_job(bench.Job(cell, "round_robin", 1, Path()))
    worse = replace(row, ttft_p90=2 * row.ttft_p90, goodput=row.goodput - 0.1)
    (line,) = tables.losses([cell], [{"ours": [worse], "round_robin": [row]}], lambda c: c.workload)
    assert "× 2.00" in line
    assert "goodput" in line
    assert tables.losses([cell], [{"ours": [row], "round_robin": [row]}], lambda c: c.workload) == []


def test_results_of_other_code_are_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("uniform", 30, 100, "2")
    resume = tmp_path / "resume.jsonl"
    said: list[str] = []
    for code in ("one", "one", "two"):
        monkeypatch.setattr(bench, "code_of", lambda own, code=code: code)
        bench.Bench(tmp_path, 1, said.append, (1,), resume).run([cell], ("round_robin",))
    assert len(said) == 2, "the second run takes the first one's result, the third does not"


def test_our_rows_depend_on_more_code_than_the_models_of_others() -> None:
    cell = Cell("uniform", 30, 100)
    keys = {p: bench.job_key(bench.Job(cell, p, 1, Path())).split()[0] for p in ("ours", "weights", "p2c", "random")}
    assert keys["ours"] == keys["weights"] != keys["p2c"] == keys["random"]
