from __future__ import annotations

import itertools
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

from tests.shared import REPOSITORY
from tests.unit.admin.backend import A, B, C, FakeBackend
from tests.unit.cli.conftest import Control
from xds_control.cli.admin_client import is_local
from xds_control.cli.output import Duration, number, percent, seconds, size
from xds_control.fleet.override import Override

CTRL_C = b"\x03"
READING = [
    ("status",),
    ("weights",),
    ("weights", "--explain"),
    ("endpoints",),
    ("endpoints", "--pool", "chat"),
    ("endpoints", "list", "--state", "ready"),
    ("endpoints", "show", "beta", "--signals"),
    ("pools",),
    ("pools", "chat"),
    ("events",),
    ("history",),
    ("clients",),
    ("clients", "--types"),
    ("processors",),
    ("explain", "known"),
    ("requests", "--slow"),
    ("audit",),
    ("log-level",),
]


def busy(backend: FakeBackend) -> None:
    backend.load(A, running=3, waiting=2, kv_usage=0.94)
    backend.load(B, running=1, waiting=0, kv_usage=0.2)
    backend.serve(A, 6)
    backend.serve(B, 12)
    backend.tick()


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_every_look_prints_in_every_form(control: Control, words: tuple[str, ...]) -> None:
    control.do(busy)
    table = control.run(*words)
    assert table.exit_code == 0, table.output
    assert table.output.strip()
    assert "\x1b" not in table.output
    as_json = control.run(*words, "--output", "json")
    as_yaml = control.run(*words, "-o", "yaml")
    assert (as_json.exit_code, as_yaml.exit_code) == (0, 0)
    document = json.loads(as_json.stdout)
    again = yaml.safe_load(as_yaml.stdout)
    assert type(document) is type(again)


def test_weights_say_what_was_taken_and_why(control: Control) -> None:
    control.do(busy)
    lines = control.run("weights", "--pool", "chat").output.splitlines()
    assert lines[0].split() == ["POOL", "ENDPOINT", "STATE", "WEIGHT", "SHARE", "TOOK", "REQ/S", "CAPACITY", "WHY"]
    assert len(lines) == 3
    assert f"beta ({B})" in lines[2]
    assert "67%" in lines[2]
    document = json.loads(control.run("weights", "--pool", "chat", "--explain", "-o", "json").output)
    factors = document[0]["explanation"]["factors"]
    assert {"name", "factor", "signal", "value"} <= set(factors[0])
    assert isinstance(document[0]["weight"], int)


def test_an_explanation_is_a_product(control: Control) -> None:
    control.do(busy)
    text = control.run("weights", "--endpoint", A, "--explain").output
    assert text.count("×") >= 3
    assert "sent to Envoy" in text


def test_an_endpoint_with_all_its_sources(control: Control) -> None:
    control.do(lambda backend: backend.core.store.put(A, "kv_usage", 0.9, backend.now, "vllm"))
    control.do(lambda backend: backend.load(A, kv_usage=0.2))
    text = control.run("endpoints", "show", A, "--signals").output
    assert "Signals of all sources" in text
    rows = [line.split() for line in text.splitlines() if " kv_usage " in f" {line} "]
    assert sorted(row[0] for row in rows if row[0] in ("*", "!")) == ["!", "*"]
    assert {"push", "vllm"} <= {word for row in rows for word in row}


def test_signals_of_all_sources_are_in_the_document(control: Control) -> None:
    control.do(busy)
    document = json.loads(control.run("endpoints", "show", "beta", "--signals", "-o", "json").output)
    signals = {one["name"]: one for one in document["endpoint"]["signals"]}
    assert signals["running"]["source"] == "push"
    assert signals["running"]["used"] is True
    assert signals["running"]["normalised"] is None
    assert document["endpoint"]["max_model_len"] is None


def test_pools_show_classes(control: Control) -> None:
    control.do(busy)
    text = control.run("pools", "chat").output
    assert "18" in text
    assert "high" in text


def test_events_and_what_happened_to_one(control: Control) -> None:
    control.do(lambda backend: backend.add_event("state", C, "ready", "ejected", "Xid 79"))
    text = control.run("events", "--endpoint", C, "-n", "1").output
    assert "ejected" in text
    assert "Xid 79" in text
    document = json.loads(control.run("events", "-o", "json", "-n", "1").output)
    assert (document[0]["endpoint"], document[0]["reason"]) == (C, "Xid 79")


def test_rejections_stand_out(control: Control) -> None:
    text = control.run("clients").output
    assert "rejects EDS" in text
    assert "envoy-1: EDS rejects chat: bad weight" in text


def test_processors_that_are_silent(control: Control) -> None:
    text = control.run("processors").output
    assert "never" in text
    assert "80.0 MiB" in text


def test_orders_and_how_they_are_taken_back(control: Control) -> None:
    drained = control.run("drain", "beta", "--ttl", "10m", "--reason", "new driver")
    assert drained.exit_code == 0
    assert drained.output == f"beta ({B}) drains, for 10m00s\n"
    address, order, who, reason = control.backend.orders[-1]
    assert order is not None
    assert (address, order.kind, reason) == (B, "drain", "new driver")
    assert order.until == pytest.approx(control.backend.now + 600)
    assert who == order.by
    control.do(lambda backend: backend.tick())
    listed = control.run("endpoints", "list", "--state", "draining").output
    assert "drained by" in listed
    assert listed.count("new driver") == 1
    assert "new driver" in listed
    back = control.run("undrain", B)
    assert "serves again (was: drain by" in back.output
    pinned = json.loads(control.run("pin", A, "0", "-o", "json").output)
    assert (pinned["override"]["kind"], pinned["override"]["weight"], pinned["override"]["ttl_s"]) == ("pin", 0, None)
    assert control.run("eject", A, "-r", "wrong answers").exit_code == 0
    assert control.run("clear", A).exit_code == 0
    nothing = control.run("clear", A)
    assert (nothing.exit_code, "[no-order]" in nothing.output) == (1, True)


def test_a_drain_can_be_waited_for(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    def pass_time(_: float) -> None:
        control.do(lambda backend: backend.tick(60.0))

    monkeypatch.setattr("xds_control.cli.drain.time.sleep", pass_time)
    result = control.run("drain", B, "--wait")
    assert result.exit_code == 0
    assert "is drained" in result.output
    for words in (("endpoints", "list"), ("endpoints", "show", B), ("weights",), ("top", "--once")):
        (line, *_rest) = [one for one in control.run(*words).output.splitlines() if "drained" in one]
        assert not any("gone" in one.split("REASON")[0] for one in [line]), words
    listed = json.loads(control.run("endpoints", "list", "--state", "gone", "-o", "json").output)
    assert [one["address"] for one in listed] == [B]
    assert control.run("undrain", B).exit_code == 0
    control.do(lambda backend: backend.tick())
    assert "drained" not in control.run("endpoints", "list").output


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("weights", "--pool", "chta"), 2, "there is no pool 'chta'; pools are chat, code"),
        (("endpoints", "show", "betta"), 2, "did you mean beta?"),
        (("endpoints", "show", "alpha"), 2, "several endpoints are called 'alpha'"),
        (("endpoints", "list", "--state", "well"), 2, "'well' is not one of 'new', 'probing'"),
        (("events", "--kind", "nope"), 2, "'nope' is not one of 'state', 'override', 'policy', 'xds'"),
        (("events", "--pool", "chta"), 2, "there is no pool 'chta'; pools are chat, code"),
        (("events", "--endpoint", "betta"), 2, "did you mean beta?"),
        (("history", "--pool", "chta"), 2, "there is no pool 'chta'"),
        (("history", "--endpoint", "betta"), 2, "did you mean beta?"),
        (("audit", "--endpoint", "betta"), 2, "did you mean beta?"),
        (("log-level", "loud"), 2, "'loud' is not one of 'debug', 'info', 'warning', 'error'"),
        (("drain", "nobody"), 2, "there is no endpoint 'nobody'"),
        (("drain", "beta", "--ttl", "soon"), 2, "'soon' is not a duration"),
        (("pin", "beta", "-1"), 2, "-1"),
        (("pin", "beta"), 2, "Missing argument 'WEIGHT'"),
        (("explain",), 2, "give the id of a recorded request, or a body to try"),
        (("explain", "gone"), 2, "no request 'gone' is kept"),
        (("explain", "known", "-d", "{}"), 2, "either the id"),
        (("explain", "-d", "{}", "-H", "nonsense"), 2, "not `name: value`"),
        (("explain", "--body", "/does/not/exist"), 1, "No such file"),
        (("history", "--compare", "999999", "0"), 2, "snapshot 999999 is not kept"),
        (("log-level", "loud"), 2, "loud"),
    ],
)
def test_wrong_input_says_what_would_be_right(control: Control, words: tuple[str, ...], code: int, says: str) -> None:
    result = control.run(*words)
    assert says in result.output
    assert result.exit_code == code


def test_explain_tries_a_request(control: Control, tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_text("{}")
    for words, stdin in ((("--body", str(body)), None), (("--body", "-"), "{}"), (("-d", "{}"), None)):
        result = control.run("explain", *words, "--header", "x-user: ada", stdin=stdin)
        assert result.exit_code == 0, result.output
        assert result.output.startswith("pool chat by rule 'default'; Envoy chooses by weights")
    assert "s3cr3t" not in result.output


def test_requests_say_who_did_not_answer(control: Control) -> None:
    result = control.run("requests")
    assert "no answer from node/1" in result.stderr
    assert "known" in result.stdout


def test_top_prints_one_screen_in_a_pipe(control: Control) -> None:
    control.do(busy)
    text = control.run("top").output
    assert "xds-control 0.1.0" in text
    assert all(address in text for address in (A, B, C))
    assert "94%" in text


def test_status_fails_when_something_is_wrong(control: Control) -> None:
    assert control.run("status").exit_code == 0

    def no_snapshot(backend: FakeBackend) -> None:
        backend.core.snapshot = None

    control.do(no_snapshot)
    result = control.run("status")
    assert (result.exit_code, "not ready" in result.output) == (1, True)
    unready = control.run("weights")
    assert (unready.exit_code, "[not-ready]" in unready.output) == (3, True)


@pytest.mark.parametrize(
    "words", [("status",), ("weights",), ("events", "--follow"), ("drain", "beta"), ("top", "--once")]
)
def test_a_control_that_is_away(control: Control, words: tuple[str, ...]) -> None:
    result = control.run(*words, server="127.0.0.1:1")
    assert result.exit_code == 3
    assert "control is not reachable at 127.0.0.1:1: connection refused" in result.output
    assert "xds-control serve" in result.output
    assert "Traceback" not in result.output


def test_a_token_is_not_sent_in_the_clear(tmp_path: Path, control: Control) -> None:
    token = tmp_path / "token"
    token.write_text("s3cr3t\n")
    result = control.run("status", "--token-file", str(token), server="control.example.com:18002")
    assert result.exit_code == 2
    assert "only sent over TLS" in result.output
    assert "s3cr3t" not in result.output
    assert control.run("status", "--token-file", str(token)).exit_code == 0


def test_watch_goes_on_and_prints_changes_only(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    def note(line: str) -> None:
        lines.append(line)
        if len(lines) == 3:
            control.do(busy)
            control.do(lambda backend: backend.core.override(C, Override("pin", 7), backend.now))
            control.do(lambda backend: backend.tick())
        if C in line and "→ 7" in line:
            raise KeyboardInterrupt

    monkeypatch.setattr("xds_control.cli.weights.click.echo", note)
    control.run("weights", "--watch")
    assert sum(C in line for line in lines) == 2


def test_events_follow(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    def note(line: str) -> None:
        lines.append(line)
        if len(lines) == 1:
            control.do(lambda backend: backend.add_event("state", C, "ready", "suspect", "silent"))
            control.do(lambda backend: backend.add_event("state", A, "ready", "ejected", "Xid 79"))
        if "Xid 79" in line:
            raise KeyboardInterrupt

    monkeypatch.setattr("xds_control.cli.events.click.echo", note)
    control.run("events", "--follow", "-n", "1", "--pool", "chat")
    assert lines[-1].endswith(f"state  chat/{A}  ready → ejected  Xid 79")
    assert not any("silent" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "value"),
    [("90", 90.0), ("90s", 90.0), ("1.5m", 90.0), ("2h", 7200.0), ("1h30m", 5400.0), ("1d", 86400.0), ("250ms", 0.25)],
)
def test_durations(text: str, value: float) -> None:
    assert Duration().convert(text, None, None) == value


@pytest.mark.parametrize("text", ["", "m", "1x", "-5", "5m3", "1h 2m", "nan"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Duration().convert(text, None, None)


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (seconds(None), "-"),
        (seconds(0.0421), "42.1 ms"),
        (seconds(0.34), "340 ms"),
        (seconds(3.14), "3.1 s"),
        (seconds(59.4), "59 s"),
        (seconds(200), "3m20s"),
        (seconds(7260), "2h01m"),
        (seconds(200_000), "2d07h"),
        (percent(0.123), "12%"),
        (percent(None), "-"),
        (number(1234.5), "1234"),
        (number(0.25), "0.25"),
        (number(3.0), "3"),
        (number(2.5e9), "2.5e+09"),
        (number(0.00001), "1.0e-05"),
        (size(80 << 20), "80.0 MiB"),
        (size(10), "10 B"),
    ],
)
def test_numbers_as_people_read_them(made: str, shown: str) -> None:
    assert made == shown


@pytest.mark.parametrize(
    ("server", "local"),
    [
        ("127.0.0.1:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("unix:/run/x", True),
        ("10.0.0.1:1", False),
        ("control:1", False),
    ],
)
def test_what_cannot_leave_the_machine(server: str, local: bool) -> None:
    assert is_local(server) is local


def on_a_terminal(control: Control, words: list[str], keys: bytes, until: bytes) -> tuple[int, bytes]:
    """(exit code, what was drawn) of a command on a terminal; `keys` are pressed once `until` is on the screen."""
    environment = {**os.environ, "XDS_CONTROL_ADMIN": control.address, "TERM": "xterm-256color"}
    environment |= {"COLUMNS": "180", "LINES": "40"}
    environment.pop("NO_COLOR", None)
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "xds_control", *words],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=environment,
        cwd=REPOSITORY,
    )
    os.close(follower)
    drawn = b""
    pressed = False
    try:
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:  # the terminal closes with the process
                break
            if not piece:
                break
            drawn += piece
            if not pressed and until in drawn:
                pressed = True
                if keys == CTRL_C:  # the process is in no session of this terminal, so the terminal sends no signal
                    process.send_signal(signal.SIGINT)
                else:
                    os.write(leader, keys)
        return process.wait(20), drawn
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(leader)


def test_top_fills_the_screen_until_q(control: Control) -> None:
    control.do(busy)
    code, drawn = on_a_terminal(control, ["top", "--interval", "0.2"], b"q", B.encode())
    assert code == 0
    assert b"\x1b[?1049h" in drawn  # the alternate screen, and back
    assert b"\x1b[?1049l" in drawn


def test_weights_watch_is_live_and_coloured_on_a_terminal(control: Control) -> None:
    code, drawn = on_a_terminal(control, ["weights", "--watch"], CTRL_C, B.encode())
    assert code == 0
    assert b"\x1b[32mready" in drawn
    assert b"Traceback" not in drawn


def test_snapshots_without_moves_are_one_line(control: Control) -> None:
    for _ in range(4):
        control.do(lambda backend: backend.tick())
    control.run("pin", "beta", "7")
    for _ in range(4):
        control.do(lambda backend: backend.tick())
    lines = control.run("history").output.splitlines()
    assert any(line.endswith("only signals moved") for line in lines)
    assert any("→ 7" in line for line in lines)
    quiet = [number for number, line in enumerate(lines) if line.endswith("only signals moved")]
    assert all(later - earlier > 1 for earlier, later in itertools.pairwise(quiet)), lines


def test_an_engine_that_was_found_out_is_named(control: Control) -> None:
    def engine() -> str:
        lines = control.run("endpoints", "show", "beta").output.splitlines()
        return next(line for line in lines if line.startswith("engine")).split(maxsplit=1)[1]

    assert engine() == "auto: not known yet"
    control.do(busy)
    assert engine().startswith("auto: ")
    assert engine() != "auto: not known yet"
