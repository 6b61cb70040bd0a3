#!/usr/bin/env python3
"""Draws what clients saw of a failover, from the timeline of `petstore-suites chaos` (`make generate NAME=failover`).

    tests/cluster/picture.py docs/measurements/failover.csv docs/img/failover.svg
"""

import csv
import math
import os
import sys

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from chart import LEFT, RIGHT, WIDTH, Chart

TOP, PANEL, GAP = 60, 130, 48


def magnitude(seconds: float) -> float:
    """Maps a duration from 1 ms to 10 s to a height from 0 to 1, on a logarithmic scale."""
    return min(1, max(0, (math.log10(max(seconds, 0.001)) + 3) / 4))


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    with open(sys.argv[1]) as file:
        columns = ["reads", "failed_reads", "slowest_read", "writes", "failed_writes"]
        rows = {int(row["second"]): {name: float(row[name]) for name in columns} for row in csv.DictReader(file)}
    seconds = range(min(rows), max(rows))
    empty = dict.fromkeys(columns, 0.0)
    without = {name: [second for second in seconds if rows.get(second, empty)[name] == 0] for name in ("reads", "writes")}
    if not without["writes"]:
        raise SystemExit("the timeline contains no failover")
    width = (WIDTH - LEFT - RIGHT) / len(seconds)
    chart = Chart()

    def bar(second: int, panel: float, low: float, high: float, kind: str) -> None:
        x = LEFT + (second - seconds[0]) * width
        chart.rect(kind, x + .5, panel + PANEL * (1 - high), width - 1, PANEL * (high - low))

    gap = f"{len(without['reads'])} seconds without reads" if without["reads"] else "reads continue"
    chart.text(LEFT, 24, f"The primary's machine is killed: {gap}, {len(without['writes'])} seconds without writes", "title")
    below = TOP
    for name, title in [("reads", "Reads per second"), ("writes", "Writes per second, including retries")]:
        most = max(row[name] + row[f"failed_{name}"] for row in rows.values())
        step = 100 if most <= 500 else 250
        top = math.ceil(most / step) * step
        chart.axis(title, below, PANEL, [(value / top, f"{value}") for value in range(0, top + 1, step)])
        for second in seconds:
            row = rows.get(second, empty)
            good, all_ = row[name] / top, (row[name] + row[f"failed_{name}"]) / top
            bar(second, below, 0, good, "good")
            bar(second, below, good, all_, "bad")
        chart.legend(below, [("good", "200" if name == "reads" else "200, 201"), ("bad", "503" if name == "reads" else "409, 503")])
        below += PANEL + GAP
    times = [(0.001, "1 ms"), (0.01, "10 ms"), (0.1, "100 ms"), (1, "1 s"), (10, "10 s")]
    chart.axis("Slowest read", below, PANEL, [(magnitude(time), name) for time, name in times])
    for second in seconds:
        bar(second, below, 0, magnitude(rows.get(second, empty)["slowest_read"]), "slow")
    for second in range(0, len(seconds), 5):
        chart.text(LEFT + second * width, below + PANEL + 18, f"{second} s", "small", "middle")
    about = "Reads and writes per second by outcome, and the slowest read, while the database primary is killed"
    chart.write(sys.argv[2], below + PANEL + 36, about, [])


if __name__ == "__main__":
    main()
