#!/usr/bin/env python3
"""Draws the charts of docs/performance.md from the measurements of a suite.

    suites/picture.py compare docs/measurements/compare.csv docs/img
    suites/picture.py scale docs/measurements/scale.csv docs/img
"""

import csv
import math
import os
import sys
from statistics import median

sys.path.append(os.path.join(os.path.dirname(__file__), "../tests"))
from chart import LEFT, Chart

# The median, the lowest and the highest of several rounds.
Range = tuple[float, float, float]
# The whiskers.
THIN = 'style="stroke-width:1.5"'


def spread(values: list[float]) -> Range:
    return median(values), min(values), max(values)


def logarithmic(low: float, high: float):
    """Maps values to heights from 0 to 1."""
    return lambda value: min(1, max(0, math.log(max(value, low) / low) / math.log(high / low)))


def multiples(groups: list[tuple[str, list[tuple[str, Range]]]], title: str) -> tuple[Chart, float]:
    """A point and a whisker for each name in each group, by how many times as much it is."""
    chart, top, row, gap = Chart(left=190, right=630), 62, 12, 12
    scale = logarithmic(0.125, 128)
    x = lambda value: chart.left + scale(value) * (chart.right - chart.left)
    names = [name for name, _ in groups[0][1]]
    chart.text(16, 26, title, "title")
    y = top
    for group, values in groups:
        chart.text(16, y + row * len(names) / 2 + 4, group)
        for number, (name, (middle, least, most)) in enumerate(values):
            at, kind = y + row * (number + 0.5), f"c{names.index(name)}"
            chart.parts.append(f'<path class="trend {kind}" {THIN} d="M{x(least):.1f} {at:.1f}H{x(most):.1f}"/>')
            chart.parts.append(f'<circle class="series {kind}" cx="{x(middle):.1f}" cy="{at:.1f}" r="4"/>')
        y += row * len(values) + gap
    behind = []
    for multiple in (0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128):
        kind = "mark" if multiple == 1 else "grid"
        behind.append(f'<path class="{kind}" d="M{x(multiple):.1f} {top - 8}V{y - gap + 8}"/>')
        name = {0.125: "⅛", 0.25: "¼", 0.5: "½"}.get(multiple, multiple)
        chart.text(x(multiple), y + 12, f"{name}×", "small", "middle")
    chart.parts[:0] = behind
    chart.text(x(1) - 6, top - 14, "slower", "small", "end")
    chart.text(x(1) + 6, top - 14, "faster than the other", "small")
    chart.legend(top, [(f"series c{number}", name) for number, name in enumerate(names)])
    return chart, y + 28


Series = tuple[str, str, list[Range | None]]


def lines(chart: Chart, panel: tuple[float, float], scale, series: list[Series]) -> None:
    """A line through the medians with whiskers for each series: its colour, its dashes, and its values at equidistant places."""
    top, height = panel
    for number, (kind, dashes, values) in enumerate(series):
        shift = 3 * (number - (len(series) - 1) / 2)
        step = (chart.right - chart.left - 40) / max(1, len(values) - 1)
        at = [(chart.left + 20 + step * place + shift, value) for place, value in enumerate(values) if value]
        y = lambda value: top + height * (1 - scale(value))
        points = " ".join(f"{x:.1f},{y(middle):.1f}" for x, (middle, *_) in at)
        chart.parts.append(f'<polyline class="trend {kind}" stroke-dasharray="{dashes}" points="{points}"/>')
        for x, (middle, least, most) in at:
            chart.parts.append(f'<circle class="series {kind}" cx="{x:.1f}" cy="{y(middle):.1f}" r="3"/>')
            chart.parts.append(f'<path class="trend {kind}" {THIN} d="M{x:.1f} {y(least):.1f}V{y(most):.1f}"/>')


def places(chart: Chart, y: float, names: list[str], title: str) -> None:
    step = (chart.right - chart.left - 40) / max(1, len(names) - 1)
    for place, name in enumerate(names):
        chart.text(chart.left + 20 + step * place, y, name, "small", "middle")
    chart.text((chart.left + chart.right) / 2, y + 20, title, "small", "middle")


def milliseconds(chart: Chart, title: str, top: float, height: float, low: float, high: float):
    scale = logarithmic(low, high)
    ticks = [tick for tick in (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000) if low <= tick <= high]
    chart.axis(title, top, height, [(scale(tick), f"{tick:g} ms") for tick in ticks])
    return scale


def latency(operations: dict[str, dict[str, list[Range]]], loads: list[str]) -> tuple[Chart, float]:
    """For each operation, the p50 and the p99 at each load."""
    chart, height = Chart(right=590), 170
    chart.text(LEFT, 26, "Latency with 64 connections, by load", "title")
    for place, column in enumerate(("p50", "p99")):
        top = 66 + place * (height + 44)
        scale = milliseconds(chart, column, top, height, 0.3, 1000)
        series = [(f"c{number}", "", one[column]) for number, one in enumerate(operations.values())]
        lines(chart, (top, height), scale, series)
    chart.legend(66, [(f"series c{number}", name) for number, name in enumerate(operations)])
    bottom = 66 + 2 * height + 44
    names = [f"{float(load) * 100:.0f} %" for load in loads]
    places(chart, bottom + 20, names, "requests per second, as a fraction of the highest rate")
    return chart, bottom + 56


def growth(operations: dict[str, list[Range]], sizes: list[str]) -> tuple[Chart, float]:
    """For each operation, the throughput with each number of pets, relative to the first."""
    chart, top, height = Chart(right=560), 66, 220
    chart.text(LEFT, 26, "Throughput with more pets, relative to the fewest", "title")
    ticks = (0, 0.25, 0.5, 0.75, 1, 1.25, 1.5)
    chart.axis("", top, height, [(share / 1.5, f"{share * 100:.0f} %") for share in ticks])
    series = [(f"c{number}", "", values) for number, values in enumerate(operations.values())]
    lines(chart, (top, height), lambda value: min(1, value / 1.5), series)
    chart.legend(top, [(f"series c{number}", name) for number, name in enumerate(operations)])
    places(chart, top + height + 20, [f"{float(size):,.0f}" for size in sizes], "pets")
    return chart, top + height + 56


def connections(operations: dict[str, dict[str, list[list[Range]]]], counts: list[str]) -> tuple[Chart, float]:
    """For each operation, the throughput and the p99 of one node and of four, by connections."""
    chart, height = Chart(right=590), 190
    chart.text(LEFT, 26, "One node and four on the same two cores, by connections to all nodes", "title")
    most = max(value[2] for one in operations.values() for row in one["requests_per_s"] for value in row if value)
    top, ceiling = 66, math.ceil(most / 10_000) * 10_000
    chart.axis("requests per second", top, height, [(tick / ceiling, f"{tick:,}") for tick in range(0, ceiling + 1, 10_000)])
    scales = {"requests_per_s": ((top, height), lambda value: value / ceiling)}
    top += height + 44
    scales["p99_ms"] = ((top, height), milliseconds(chart, "p99 at full load", top, height, 1, 1000))
    for column, (panel, scale) in scales.items():
        series = [
            (f"c{number}", dashes, one[column][nodes])
            for number, one in enumerate(operations.values())
            for nodes, dashes in enumerate(("", "5 4"))
        ]
        lines(chart, panel, scale, series)
    chart.legend(66, [(f"series c{number}", name) for number, name in enumerate(operations)])
    chart.text(chart.right + 16, 82 + 20 * len(operations), "solid: 1 node; dashed: 4 nodes", "small")
    places(chart, top + height + 20, [f"{int(count):,}" for count in counts], "connections")
    return chart, top + height + 56


class Table:
    """The rows of a CSV, of which those with certain values are selected."""

    def __init__(self, rows: list[dict[str, str]]):
        self.rows = rows

    def where(self, keep=lambda row: True, **wanted: str) -> "Table":
        is_wanted = lambda row: keep(row) and all(row[name] == value for name, value in wanted.items())
        return Table([row for row in self.rows if is_wanted(row)])

    def values(self, column: str) -> list[str]:
        return list(dict.fromkeys(row[column] for row in self.rows if row[column]))

    def numbers(self, column: str) -> list[float]:
        return [float(row[column]) for row in self.rows if row[column]]

    def spread(self, column: str) -> Range | None:
        numbers = self.numbers(column)
        return spread(numbers) if numbers else None


def compare(table: Table, write) -> None:
    peak = table.where(lambda row: not row["load"])
    groups = []
    for label, server, alone in [
        ("pgbench, 64 connections", "pgbench", False),
        ("pgbench, 1 connection", "pgbench", True),
        ("axum", "axum", False),
        ("Fastify", "Fastify", False),
        ("FastAPI", "FastAPI", False),
    ]:
        rates = lambda server, operation: peak.where(
            lambda row: (row["connections"] == "1") == alone, server=server, operation=operation
        ).numbers("requests_per_s")
        group = []
        for operation in peak.where(server="petstore").where(lambda row: row["requests_per_s"]).values("operation"):
            ratios = [one / other for one, other in zip(rates("petstore", operation), rates(server, operation))]
            if ratios:
                group.append((operation, spread(ratios)))
        groups.append((label, group))
    write("throughput", *multiples(groups, "Throughput of the service, as a multiple of others"))
    fixed = table.where(lambda row: row["load"])
    loads = fixed.values("load")
    columns = {"p50": "p50_ms", "p99": "p99_ms"}
    operations = {
        operation: {
            name: [fixed.where(operation=operation, load=load).spread(column) for load in loads]
            for name, column in columns.items()
        }
        for operation in fixed.values("operation")
    }
    write("latency", *latency(operations, loads))


def scale(table: Table, write) -> None:
    pets = table.where(part="pets")
    sizes = pets.values("pets")
    operations = {}
    for operation in ("getPet", "listPets, first page", "listPets, random pages", "createPet", "placeOrder and cancelOrder"):
        rates = [pets.where(operation=operation, pets=size).numbers("requests_per_s") for size in sizes]
        operations[operation] = [spread([one / first for one, first in zip(rate, rates[0])]) for rate in rates]
    write("growth", *growth(operations, sizes))
    grid = table.where(part="nodes")
    if grid.rows:
        whole = grid.where(nodes="2").values("pets")[0]  # the size that was measured with all nodes and connections
        grid, counts = grid.where(pets=whole), sorted(grid.values("connections"), key=int)
        cell = lambda operation, nodes, count, column: grid.where(
            operation=operation, nodes=nodes, connections=count
        ).spread(column)
        write("connections", *connections({
            operation: {
                column: [[cell(operation, nodes, count, column) for count in counts] for nodes in ("1", "4")]
                for column in ("requests_per_s", "p99_ms")
            }
            for operation in ("getPet", "listPets, random pages", "createPet", "placeOrder and cancelOrder")
        }, counts))


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in ("compare", "scale"):
        raise SystemExit(__doc__)
    suite, source, folder = sys.argv[1:]
    with open(source) as file:
        measured = Table(list(csv.DictReader(file)))

    def save(name: str, chart: Chart, height: float) -> None:
        about = {
            "throughput": "Throughput of the service as a multiple of that of pgbench and other servers",
            "latency": "Latency by load",
            "growth": "Throughput with more pets, relative to the fewest",
            "connections": "Throughput and p99 of one node and of four, by connections",
        }
        chart.write(os.path.join(folder, f"{name}.svg"), height, about[name])

    {"compare": compare, "scale": scale}[suite](measured, save)
