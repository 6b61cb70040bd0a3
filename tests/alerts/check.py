#!/usr/bin/env python3
"""Looks at the dashboard, the rules and their headings without running anything.

    tests/alerts/check.py

The dashboard: panels have ids of their own, do not overlap, say what they show, and have an expression for each target
that asks the data source that was chosen; they show every metric of docs/operations.md, and rules and panels use no other.
The rules: each alert has a severity, a summary, a description, and a heading in docs/operations.md; and no heading is left
without an alert.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "deploy/grafana/petstore.json"
RULES = ROOT / "deploy/prometheus/rules.yaml"
OPERATIONS = ROOT / "docs/operations.md"
WIDTH = 24
# What Grafana and Prometheus add to the names of the service.
FROM_GRAFANA = {"__rate_interval", "__range"}
FROM_PROMETHEUS = {"up"}


def dashboard() -> dict:
    return json.loads(DASHBOARD.read_text())


def panels() -> list[dict]:
    """The panels that show something, without the rows."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def metric_names(expressions: str) -> set[str]:
    """The service's metrics that are named there, without what a histogram adds to its name."""
    names = re.findall(r"\b((?:http_server|petstore|db_client|process)_\w+|up)\b(?=[{\[ )])", expressions)
    return {re.sub(r"(_seconds|_batch_size)_(bucket|count|sum)$", r"\1", name) for name in names}


def wrong_in_the_dashboard(documented: set[str]) -> list[str]:
    wrong = []
    try:
        board = dashboard()
    except ValueError as error:
        return [f"not JSON: {error}"]
    known = FROM_GRAFANA | {variable["name"] for variable in board["templating"]["list"]}
    if not {"datasource", "instance"} <= known:
        wrong.append("the variables `datasource` and `instance` are missing")
    if len({panel["id"] for panel in board["panels"]}) != len(board["panels"]):
        wrong.append("two panels have the same id")

    taken = {}
    for panel in board["panels"]:
        title, grid = panel["title"], panel["gridPos"]
        if grid["x"] + grid["w"] > WIDTH:
            wrong.append(f"{title}: wider than the grid")
        for place in [
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        ]:
            if place in taken:
                wrong.append(f"{title}: overlaps {taken[place]}")
                break
            taken[place] = title
        if panel["type"] == "row":
            continue
        if not panel.get("description"):
            wrong.append(f"{title}: no description")
        if not panel["fieldConfig"]["defaults"].get("unit"):
            wrong.append(f"{title}: no unit")
        if not panel["targets"]:
            wrong.append(f"{title}: shows nothing")
        for target in panel["targets"]:
            if not target.get("expr"):
                wrong.append(f"{title}: a target without an expression")
            if target["datasource"]["uid"] != "${datasource}":
                wrong.append(f"{title}: asks another data source than the one that was chosen")
        if len({target["refId"] for target in panel["targets"]}) != len(panel["targets"]):
            wrong.append(f"{title}: two targets have the same refId")
    text = DASHBOARD.read_text()
    for name in set(re.findall(r"\$\{?(\w+)", text)) - known - {"__all"}:
        wrong.append(f"the variable ${name} is not defined")

    shown = set()
    for panel in panels():
        shown |= metric_names(" ".join(target["expr"] for target in panel["targets"]))
    wrong += [f"{name} is not shown" for name in sorted(documented - shown)]
    wrong += [f"{name} is shown, but not in docs/operations.md" for name in undocumented(shown, documented)]
    return wrong


def wrong_in_the_rules(documented: set[str]) -> list[str]:
    wrong = []
    text = "\n".join(line for line in RULES.read_text().splitlines() if not line.lstrip().startswith("#"))
    rules = re.split(r"^ +- (?=alert:|record:)", text, flags=re.MULTILINE)[1:]
    alerts = set()
    for rule in rules:
        kind, name = re.match(r"(alert|record): (\S+)", rule).groups()
        recorded = re.sub(r"\b\w+:\w+:\w+", "", rule)  # what other rules made
        others = undocumented(metric_names(recorded), documented)
        wrong += [f"{name}: {metric} is not in docs/operations.md" for metric in others]
        if kind == "record":
            continue
        alerts.add(name)
        if not re.search(r"^ +severity: (critical|warning|info)$", rule, re.MULTILINE):
            wrong.append(f"{name}: no severity")
        for annotation in ("summary", "description"):
            if not re.search(rf"^ +{annotation}: \S", rule, re.MULTILINE):
                wrong.append(f"{name}: no {annotation}")
        if f"runbook: docs/operations.md#{name.lower()}\n" not in rule + "\n":
            wrong.append(f"{name}: the runbook is not its heading in docs/operations.md")
    section = re.search(r"^## Alerts$(.*?)^## ", OPERATIONS.read_text(), re.MULTILINE | re.DOTALL)
    headings = set(re.findall(r"^### (\w+)$", section[1], re.MULTILINE)) if section else set()
    wrong += [f"{name}: no heading in docs/operations.md" for name in sorted(alerts - headings)]
    wrong += [f"{name}: a heading in docs/operations.md without an alert" for name in sorted(headings - alerts)]
    return wrong


def undocumented(names: set[str], documented: set[str]) -> list[str]:
    return sorted(name for name in names - documented - FROM_PROMETHEUS if not name.startswith("process_"))


def main() -> None:
    if sys.argv[1:]:
        raise SystemExit(__doc__)
    watch = re.search(r"^## Watch$(.*?)^## ", OPERATIONS.read_text(), re.MULTILINE | re.DOTALL)[1]
    documented = set(re.findall(r"^\| `([a-z_]+)` \|", watch, re.MULTILINE))
    wrong = [f"{DASHBOARD.name}: {what}" for what in wrong_in_the_dashboard(documented)]
    wrong += [f"{RULES.name}: {what}" for what in wrong_in_the_rules(documented)]
    if wrong:
        raise SystemExit("\n".join(wrong))
    print(f"the dashboard's {len(panels())} panels, the rules and their headings are in order")


if __name__ == "__main__":
    main()
