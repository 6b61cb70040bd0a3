#!/usr/bin/env python3
"""Draws what clients saw of a failover, from the seconds that `petstore-bench faults` wrote down.

    tests/cluster/picture.py target/faults/timeline.csv docs/img/failover.svg
"""

import csv
import math
import sys

WIDTH, LEFT, RIGHT, TOP, PANEL, GAP = 860, 64, 176, 60, 130, 48
STYLE = """
text { fill: #1f2937; font: 13px system-ui, sans-serif }
.title { font-weight: 600; font-size: 15px }
.name { font-weight: 600 }
.small { fill: #5b6472; font-size: 12px }
.page { fill: #ffffff }
.grid { stroke: #d5dae1 }
.good { fill: #2e8b57 } .bad { fill: #d93025; opacity: .75 } .slow { fill: #7c4dbd }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9aa5b1 } .page { fill: #12171e } .grid { stroke: #2c343d }
  .good { fill: #3fa76d } .bad { fill: #f0655b } .slow { fill: #b794f0 }
}
"""


def magnitude(seconds: float) -> float:
    """The height of a time, from 1 ms to 10 s."""
    return min(1, max(0, (math.log10(max(seconds, 0.001)) + 3) / 4))


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    with open(sys.argv[1]) as file:
        rows = {int(row["second"]): {name: float(value) for name, value in row.items()} for row in csv.DictReader(file)}
    seconds = range(min(rows), max(rows))
    empty = {"succeeded": 0.0, "failed": 0.0, "broken": 0.0, "slowest": 0.0}
    away = [second for second in seconds if rows.get(second, empty)["succeeded"] == 0]
    if not away:
        raise SystemExit("there is no failover in what was written down")
    width = (WIDTH - LEFT - RIGHT) / len(seconds)
    most = max(sum(row[name] for name in ("succeeded", "failed", "broken")) for row in rows.values())
    top = math.ceil(most / 250) * 250
    parts: list[str] = []

    def text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> None:
        parts.append(f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}" text-anchor="{anchor}">{words}</text>')

    def bar(second: int, floor: float, low: float, high: float, kind: str) -> None:
        x, y = LEFT + (second - seconds[0]) * width, floor - PANEL * high
        parts.append(f'<rect class="{kind}" x="{x + .5:.1f}" y="{y:.1f}" width="{width - 1:.1f}" '
                     f'height="{PANEL * (high - low):.1f}"/>')

    def axis(title: str, floor: float, ticks: list[tuple[float, str]]) -> None:
        text(LEFT, floor - PANEL - 10, title, "name")
        for height, name in ticks:
            y = floor - PANEL * height
            parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
            text(LEFT - 8, y + 4, name, "small", "end")

    def legend(floor: float, entries: list[tuple[str, str]]) -> None:
        for place, (kind, name) in enumerate(entries):
            y = floor - PANEL + 14 + 20 * place
            parts.append(f'<rect class="{kind}" x="{WIDTH - RIGHT + 16}" y="{y - 9}" width="14" height="10" rx="2"/>')
            text(WIDTH - RIGHT + 36, y, name, "small")

    text(LEFT, 24, f"The primary's machine is killed: {len(away)} seconds without service, nothing lost", "title")
    requests = TOP + PANEL
    axis("Attempts a second, with those sent again", requests, [(v / top, f"{v}") for v in range(0, top + 1, 250)])
    for second in seconds:
        row = rows.get(second, empty)
        good, all_ = row["succeeded"] / top, (row["succeeded"] + row["failed"] + row["broken"]) / top
        bar(second, requests, 0, good, "good")
        bar(second, requests, good, all_, "bad")
    legend(requests, [("good", "200, 201"), ("bad", "409, 503")])
    slowest = requests + GAP + PANEL
    axis("The slowest of them", slowest, [(magnitude(v), n) for v, n in ((0.001, "1 ms"), (0.01, "10 ms"), (0.1, "100 ms"),
                                                                        (1, "1 s"), (10, "10 s"))])
    for second in seconds:
        bar(second, slowest, 0, magnitude(rows.get(second, empty)["slowest"]), "slow")
    for second in range(0, len(seconds), 5):
        text(LEFT + second * width, slowest + 18, f"{second} s", "small", "middle")
    height = slowest + 36
    with open(sys.argv[2], "w") as svg:
        svg.write("\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            'role="img" aria-label="Attempts a second and their times while the primary of the database is killed">',
            f"<style>{STYLE}</style>", f'<rect class="page" width="{WIDTH}" height="{height}" rx="10"/>', *parts, "</svg>\n"]))


if __name__ == "__main__":
    main()
