#!/usr/bin/env python3
"""Draws a failover as clients saw it, from the timeline that `petstore-bench faults` wrote.

    tests/cluster/picture.py target/faults/timeline.csv docs/img/failover.svg
"""

import csv
import math
import os
import sys

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from chart import LEFT, RIGHT, WIDTH, Chart

TOP, PANEL, GAP = 60, 130, 48


def magnitude(seconds: float) -> float:
    """The height of a duration on a logarithmic scale from 1 ms to 10 s."""
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
        raise SystemExit("the timeline has no failover")
    width = (WIDTH - LEFT - RIGHT) / len(seconds)
    most = max(sum(row[name] for name in ("succeeded", "failed", "broken")) for row in rows.values())
    top = math.ceil(most / 250) * 250
    chart = Chart()

    def bar(second: int, panel: float, low: float, high: float, kind: str) -> None:
        x = LEFT + (second - seconds[0]) * width
        chart.rect(kind, x + .5, panel + PANEL * (1 - high), width - 1, PANEL * (high - low))

    chart.text(LEFT, 24, f"The primary's machine is killed: {len(away)} seconds without service, nothing lost", "title")
    ticks = [(v / top, f"{v}") for v in range(0, top + 1, 250)]
    chart.axis("Attempts per second, retries included", TOP, PANEL, ticks)
    for second in seconds:
        row = rows.get(second, empty)
        good, all_ = row["succeeded"] / top, (row["succeeded"] + row["failed"] + row["broken"]) / top
        bar(second, TOP, 0, good, "good")
        bar(second, TOP, good, all_, "bad")
    chart.legend(TOP, [("good", "200, 201"), ("bad", "409, 503")])
    below = TOP + PANEL + GAP
    times = [(0.001, "1 ms"), (0.01, "10 ms"), (0.1, "100 ms"), (1, "1 s"), (10, "10 s")]
    chart.axis("The slowest attempt", below, PANEL, [(magnitude(time), name) for time, name in times])
    for second in seconds:
        bar(second, below, 0, magnitude(rows.get(second, empty)["slowest"]), "slow")
    for second in range(0, len(seconds), 5):
        chart.text(LEFT + second * width, below + PANEL + 18, f"{second} s", "small", "middle")
    about = "Attempts per second and their latency while the primary of the database is killed"
    chart.write(sys.argv[2], below + PANEL + 36, about, [])


if __name__ == "__main__":
    main()
