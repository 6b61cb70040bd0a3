#!/usr/bin/env python3
"""Checks the dashboard, the alert rules and the runbook headings statically.

    tests/alerts/check.py

Dashboard: panels have unique ids, do not overlap, and have a description; each target has an expression and queries the
selected data source. The panels show every metric of docs/monitoring.md, and rules and panels use no other metric.
Rules: each alert has a severity, a summary, a description, a link from the one setting of the runbook and a heading in
docs/runbook.md, and each heading an alert. No rule names a job, and promtool's tests name each alert.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "deploy/grafana/petstore.json"
RULES = ROOT / "deploy/prometheus/rules.yaml"
UNIT_TESTS = (ROOT / "deploy/prometheus").glob("rules*.test.yaml")
MONITORING = ROOT / "docs/monitoring.md"
RUNBOOK = ROOT / "docs/runbook.md"
RUNBOOK_URL = """'{{ query "petstore:runbook:info" | first | label "url" }}#%s'"""
WIDTH = 24
# Names that Grafana and Prometheus define, besides the service's metrics.
FROM_GRAFANA = {"__rate_interval", "__range"}
FROM_PROMETHEUS = {"up"}


def dashboard() -> dict:
    return json.loads(DASHBOARD.read_text())


def panels() -> list[dict]:
    """Returns the panels without the rows."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def metric_names(expressions: str) -> set[str]:
    """Returns the metrics that the expressions use, without the suffixes of histograms."""
    names = re.findall(r"\b((?:http_server|petstore|db_client|process)_\w+|up)\b(?=[{\[ )])", expressions)
    return {re.sub(r"(_seconds|_batch_size)_(bucket|count|sum)$", r"\1", name) for name in names}


def dashboard_errors(documented: set[str]) -> list[str]:
    errors = []
    try:
        board = dashboard()
    except ValueError as error:
        return [f"not JSON: {error}"]
    known = FROM_GRAFANA | {variable["name"] for variable in board["templating"]["list"]}
    if not {"datasource", "instance"} <= known:
        errors.append("the variable `datasource` or `instance` is missing")
    if len({panel["id"] for panel in board["panels"]}) != len(board["panels"]):
        errors.append("two panels have the same id")

    occupied = {}
    for panel in board["panels"]:
        title, grid = panel["title"], panel["gridPos"]
        if grid["x"] + grid["w"] > WIDTH:
            errors.append(f"{title}: wider than the grid")
        for cell in [
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        ]:
            if cell in occupied:
                errors.append(f"{title}: overlaps {occupied[cell]}")
                break
            occupied[cell] = title
        if panel["type"] == "row":
            continue
        if not panel.get("description"):
            errors.append(f"{title}: no description")
        if not panel["fieldConfig"]["defaults"].get("unit"):
            errors.append(f"{title}: no unit")
        if not panel["targets"]:
            errors.append(f"{title}: no targets")
        for target in panel["targets"]:
            if not target.get("expr"):
                errors.append(f"{title}: a target without an expression")
            if target["datasource"]["uid"] != "${datasource}":
                errors.append(f"{title}: does not query the selected data source")
        if len({target["refId"] for target in panel["targets"]}) != len(panel["targets"]):
            errors.append(f"{title}: two targets have the same refId")
    text = DASHBOARD.read_text()
    for name in set(re.findall(r"\$\{?(\w+)", text)) - known - {"__all"}:
        errors.append(f"the variable ${name} is not defined")

    shown = set()
    for panel in panels():
        shown |= metric_names(" ".join(target["expr"] for target in panel["targets"]))
    errors += [f"{name} is not shown" for name in sorted(documented - shown)]
    errors += [f"{name} is shown but not documented in docs/monitoring.md" for name in undocumented(shown, documented)]
    return errors


def rule_errors(documented: set[str]) -> list[str]:
    errors = []
    text = "\n".join(line for line in RULES.read_text().splitlines() if not line.lstrip().startswith("#"))
    rules = re.split(r"^ +- (?=alert:|record:)", text, flags=re.MULTILINE)[1:]
    alerts = set()
    for rule in rules:
        kind, name = re.match(r"(alert|record): (\S+)", rule).groups()
        scraped = re.sub(r"\b\w+:\w+:\w+", "", rule)  # without series that other rules record
        others = undocumented(metric_names(scraped), documented)
        errors += [f"{name}: {metric} is not documented in docs/monitoring.md" for metric in others]
        if kind == "record":
            continue
        alerts.add(name)
        if not re.search(r"^ +severity: (critical|warning|info)$", rule, re.MULTILINE):
            errors.append(f"{name}: no severity")
        for annotation in ("summary", "description"):
            if not re.search(rf"^ +{annotation}: \S", rule, re.MULTILINE):
                errors.append(f"{name}: no {annotation}")
        if f"runbook_url: {RUNBOOK_URL % name.lower()}\n" not in rule + "\n":
            errors.append(f"{name}: runbook_url does not link to its heading in docs/runbook.md")
    if re.search(r"\bjob *=", text):
        errors.append("a rule names a job: select nodes by petstore_build_info")
    addresses = re.findall(r"^ +url: https://\S+/docs/runbook\.md$", text, re.MULTILINE)
    if len(addresses) != 1 or text.count("https://") != 1:
        errors.append("the address of docs/runbook.md must be absolute, and be set once")
    tested = set(re.findall(r"alertname: (\w+)", "".join(file.read_text() for file in UNIT_TESTS)))
    errors += [f"{name}: promtool does not test it" for name in sorted(alerts - tested)]
    section = re.search(r"^## Alerts$(.*?)^## ", RUNBOOK.read_text(), re.MULTILINE | re.DOTALL)
    headings = set(re.findall(r"^### (\w+)$", section[1], re.MULTILINE)) if section else set()
    errors += [f"{name}: no heading in docs/runbook.md" for name in sorted(alerts - headings)]
    errors += [f"{name}: heading in docs/runbook.md without an alert" for name in sorted(headings - alerts)]
    return errors


def undocumented(names: set[str], documented: set[str]) -> list[str]:
    return sorted(name for name in names - documented - FROM_PROMETHEUS if not name.startswith("process_"))


def main() -> None:
    if sys.argv[1:]:
        raise SystemExit(__doc__)
    metrics = re.search(r"^## Metrics$(.*?)^## ", MONITORING.read_text(), re.MULTILINE | re.DOTALL)[1]
    documented = set(re.findall(r"^\| `([a-z_]+)` \|", metrics, re.MULTILINE))
    errors = [f"{DASHBOARD.name}: {error}" for error in dashboard_errors(documented)]
    errors += [f"{RULES.name}: {error}" for error in rule_errors(documented)]
    if errors:
        raise SystemExit("\n".join(errors))
    print(f"the dashboard's {len(panels())} panels, the rules and the runbook headings are consistent")


if __name__ == "__main__":
    main()
