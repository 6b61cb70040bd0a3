#!/usr/bin/env python3
"""Draws the charts of docs/performance.md.

    suites/picture.py bars FILE.svg TITLE '[["name", median, minimum, maximum, goal], …]'
    suites/picture.py lines FILE.svg TITLE '[["", "x", …], ["name", y, …], …]'
"""

import json
import math
import os
import sys

sys.path.append(os.path.join(os.path.dirname(__file__), "../tests"))
from chart import LEFT, Chart


def bars(title, rows):
    """A bar for each median, with the range of the samples and a mark at the goal."""
    chart = Chart(left=250, right=700)
    chart.text(16, 26, title, "title")
    scale = (chart.right - chart.left) / max(max(row[3:]) for row in rows)
    for number, (name, median, least, most, goal) in enumerate(rows):
        y = 46 + 34 * number
        chart.text(16, y + 15, name)
        chart.rect("used", chart.left, y, median * scale, 20)
        chart.rect("idle", chart.left + least * scale, y + 8, (most - least) * scale, 4)
        chart.parts.append(f'<path class="wait" d="M{chart.left + goal * scale:.1f} {y - 3}v26"/>')
        chart.text(chart.right + 16, y + 15, f"{median:.2f}; goal {goal:g}", "small")
    return chart, 60 + 34 * len(rows)


def lines(title, rows):
    """A line for each row, over equidistant places, from 0."""
    chart = Chart(right=544)
    top, height = 50, 220
    (_, *places), *rows = rows
    most = max(value for row in rows for value in row[1:])
    magnitude = 10 ** math.floor(math.log10(most))
    step = next(step * magnitude for step in (0.2, 0.5, 1, 2) if most / (step * magnitude) <= 7)
    ticks = math.ceil(most / step)
    chart.text(16, 26, title, "title")
    chart.axis("", top, height, [(tick / ticks, f"{round(tick * step, 1):g}") for tick in range(ticks + 1)])
    x = [LEFT + (chart.right - LEFT) * place / max(1, len(places) - 1) for place in range(len(places))]
    for at, name in zip(x, places):
        chart.text(at, top + height + 20, name, "small", "middle")
    for number, (_, *values) in enumerate(rows):
        points = " ".join(f"{at:.1f},{top + height * (1 - value / (ticks * step)):.1f}" for at, value in zip(x, values))
        chart.parts.append(f'<polyline class="trend c{number}" points="{points}"/>')
    chart.legend(top, [(f"series c{number}", name) for number, (name, *_) in enumerate(rows)])
    return chart, 310


if len(sys.argv) != 5:
    raise SystemExit(__doc__)
kind, file, title, rows = sys.argv[1:]
drawn, page_height = {"bars": bars, "lines": lines}[kind](title, json.loads(rows))
drawn.write(file, page_height, title)
