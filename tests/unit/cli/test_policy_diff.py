"""`policy diff` reads well in a narrow terminal: long values fold under their field, short ones stand in a line."""

from __future__ import annotations

import io
import json

from rich.console import Console

from xds_control.cli.policy import _diff
from xds_control.proto import admin_pb2 as pb

LONG = json.dumps({"address": "10.0.0.3:8000", "labels": {f"label-{i}": "a value" for i in range(20)}})


def shown(width: int) -> list[str]:
    diff = pb.PolicyDiff(
        fields=[
            pb.FieldChange(path="control.tick_s", before="0.2", after="0.5"),
            pb.FieldChange(path="pools[chat].endpoints[10.0.0.3:8000]", after=LONG),
            pb.FieldChange(path="pools[chat].endpoints[10.0.0.9:8000]", before='{"address": "10.0.0.9:8000"}'),
        ]
    )
    screen = Console(file=io.StringIO(), width=width, force_terminal=False)
    for part in _diff(diff):
        screen.print(part)
    text: str = screen.file.getvalue()  # type: ignore[attr-defined]
    return text.splitlines()


def test_nothing_is_wider_than_the_terminal_and_nothing_is_lost() -> None:
    lines = shown(80)
    assert all(len(line) <= 80 for line in lines)
    assert "  control.tick_s: 0.2 → 0.5" in lines
    at = lines.index("  pools[chat].endpoints[10.0.0.3:8000]")
    assert lines[at + 1].startswith("    + {")
    assert lines[lines.index("  pools[chat].endpoints[10.0.0.9:8000]") + 1] == '    - {"address": "10.0.0.9:8000"}'
    folded = "".join(line.strip() for line in lines[at + 1 :]).replace(" ", "")
    assert LONG.replace(" ", "") in folded
