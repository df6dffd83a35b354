"""Dashboard and alerts ask only for metrics and labels that we export."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import yaml

from tests.shared import REPOSITORY
from xds_control.observe.metrics import METRICS

FOLDER = REPOSITORY / "deploy" / "grafana"
EXPORTED = {f"{spec.name}{'_total' if spec.kind == 'counter' else ''}": set(spec.labels) for spec in METRICS}
NAME = re.compile(r"xds_control_[a-z0-9_]+")
SELECTOR = re.compile(r"(xds_control_[a-z0-9_]+)\{([^}]*)\}")
BY = re.compile(r"\b(?:by|on) \(([^)]*)\)")


def expressions() -> Iterator[tuple[str, str, str]]:
    """(where, expression, text with labels in it)."""
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"], ""
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"], rule["annotations"]["summary"] + rule["annotations"]["description"]


ALL = list(expressions())


@pytest.mark.parametrize(("where", "expression", "text"), ALL, ids=[where for where, _e, _t in ALL])
def test_only_what_is_exported(where: str, expression: str, text: str) -> None:
    names = NAME.findall(expression)
    assert names, where
    assert set(names) <= EXPORTED.keys()
    for name, selector in SELECTOR.findall(expression):
        used = {part.split("=")[0].rstrip("!~ ").strip() for part in re.split(r",\s*(?=[a-z]+[=!])", selector)}
        assert used <= EXPORTED[name], (name, used)
    known = set().union(*(EXPORTED[name] for name in names))
    for group in BY.findall(expression):
        assert {label.strip() for label in group.split(",")} <= known
    assert set(re.findall(r"\{\{\s*\$labels\.([a-z_]+)\s*\}\}|\{\{([a-z_]+)\}\}", text)) <= {
        pair for label in known for pair in ((label, ""), ("", label))
    }


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads((FOLDER / "dashboard.json").read_text())["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
