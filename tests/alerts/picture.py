#!/usr/bin/env python3
"""Draws the dashboard during an outage of the database, from the metrics that tests/alerts/run.py recorded.

    tests/alerts/picture.py target/alerts/outage.json docs/img/outage.svg
"""

import json
import math
import os
import sys

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from chart import LEFT, RIGHT, WIDTH, Chart

TOP, PANEL, GAP, BAND = 68, 104, 40, 18


class Picture(Chart):
    """Panels below each other, over one axis of seconds since the database was stopped."""

    def __init__(self, outage: dict):
        super().__init__()
        self.outage = outage
        self.begin = outage["start"] - outage["stopped"]
        self.end = outage["end"] - outage["stopped"]
        self.times = [moment - outage["stopped"] for moment in range(outage["start"], outage["end"] + 1)]
        self.panels: list[tuple[float, float]] = []
        self.y = TOP

    def x(self, second: float) -> float:
        return LEFT + (second - self.begin) / (self.end - self.begin) * (WIDTH - LEFT - RIGHT)

    def series(self, name: str, keep=lambda metric: True) -> list[float]:
        """The sum of the selected series at each second; NaN where there is none."""
        values = [math.nan] * len(self.times)
        for one in self.outage["series"][name]:
            if keep(one["metric"]):
                for moment, value in one["values"]:
                    place, value = round(moment) - self.outage["start"], float(value)
                    values[place] = value if math.isnan(values[place]) else values[place] + value
        return values

    def panel(self, title: str, ticks: list[tuple[float, str]], scale) -> None:
        """An empty panel. `scale` maps a value to a height from 0 to 1."""
        self.panels.append((self.y, self.y + PANEL))
        self.axis(title, self.y, PANEL, [(scale(value), name) for value, name in ticks])

    def points(self, values: list[float], scale) -> list[tuple[float, float]]:
        return [
            (self.x(second), self.y + PANEL * (1 - min(1, max(0, scale(value)))))
            for second, value in zip(self.times, values)
            if not math.isnan(value)
        ]

    def line(self, values: list[float], scale, kind: str) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in self.points(values, scale))
        self.parts.append(f'<polyline class="{kind}" points="{path}"/>')

    def area(self, lower: list[float], upper: list[float], scale, kind: str) -> None:
        outline = self.points(upper, scale) + self.points(lower, scale)[::-1]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in outline)
        self.parts.append(f'<polygon class="{kind}" points="{path}"/>')

    def band(self, name: str, values: list[float], kinds) -> None:
        """A bar with a colour for each second; nothing where `kinds` returns none."""
        self.text(LEFT - 8, self.y + 13, name, "small", "end")
        second = 0
        while second < len(values):
            kind, after = kinds(values[second]), second + 1
            while after < len(values) and kinds(values[after]) == kind:
                after += 1
            if kind:
                left, right = self.x(self.times[second]), self.x(min(self.times[0] + after, self.end))
                self.rect(kind, left, self.y, right - left, BAND - 4, ' rx="2"')
            second = after

    def next(self, height: float = PANEL + GAP) -> None:
        self.y += height

    def finish(self, path: str) -> None:
        floor = self.y
        self.parts.append(f'<path class="grid" d="M{LEFT} {floor}H{WIDTH - RIGHT}"/>')
        for second in range(math.ceil(self.begin / 10) * 10, math.floor(self.end) + 1, 10):
            self.text(self.x(second), floor + 18, f"{second} s", "small", "middle")
        left, right = self.x(0), self.x(self.outage["started"] - self.outage["stopped"])
        marks = "".join(f"M{x:.1f} {top}V{bottom}" for top, bottom in self.panels for x in (left, right))
        behind = [
            f'<rect class="away" x="{left:.1f}" y="{TOP - 14}" width="{right - left:.1f}" height="{floor - TOP + 14}"/>',
            f'<path class="mark" d="{marks}"/>',
        ]
        self.text(left, TOP - 20, "stopped", "small", "middle")
        self.text(right, TOP - 20, "started", "small", "middle")
        factor = self.outage["factor"]
        caption = f"Scraped every second. All durations in the rules are divided by {factor} here."
        self.text(LEFT, floor + 40, caption, "small")
        about = "Requests, latency, connections and alerts of a node whose database is stopped and restarted"
        self.write(path, floor + 54, about, behind)


def status(begin: str):
    return lambda metric: metric["http_response_status_code"].startswith(begin)


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    with open(sys.argv[1]) as recorded:
        outage = json.load(recorded)
    picture = Picture(outage)
    none = [0.0] * len(picture.times)
    away = outage["started"] - outage["stopped"]
    picture.text(LEFT, 22, f"A node whose database is stopped, and restarted {away:.0f} seconds later", "title")
    picture.next(10)

    good = [0.0 if math.isnan(value) else value for value in picture.series("requests", status("2"))]
    bad = [0.0 if math.isnan(value) else value for value in picture.series("requests", status("5"))]
    most = max(10, math.ceil(max(map(sum, zip(good, bad))) / 10) * 10)
    both = [sum(pair) for pair in zip(good, bad)]
    picture.panel("Requests per second, by status", [(v, f"{v}") for v in range(0, most + 1, 10)], lambda v: v / most)
    picture.area(none, good, lambda v: v / most, "good")
    picture.area(good, both, lambda v: v / most, "bad")
    picture.legend(picture.y, [("good", "200, 201"), ("bad", "503")])
    picture.next()

    def magnitude(value: float) -> float:
        return (math.log10(max(value, 0.0001)) + 4) / 5  # from 0.1 ms to 10 s

    ticks = [(0.0001, "0.1 ms"), (0.001, "1 ms"), (0.01, "10 ms"), (0.1, "100 ms"), (1, "1 s"), (10, "10 s")]
    picture.panel("p99 latency", ticks, magnitude)
    picture.line(picture.series("p99"), magnitude, "line")
    picture.next()

    idle, used, waiting = picture.series("idle"), picture.series("used"), picture.series("waiting")
    top = max(4, math.ceil(max(map(sum, zip(idle, used, waiting))) / 4) * 4)
    picture.panel("Connections to the database", [(v, f"{v}") for v in range(0, top + 1, top // 2)], lambda v: v / top)
    picture.area(none, used, lambda v: v / top, "used")
    picture.area(used, [sum(pair) for pair in zip(used, idle)], lambda v: v / top, "idle")
    picture.line(waiting, lambda v: v / top, "wait")
    picture.legend(picture.y, [("used", "used"), ("idle", "idle")])
    picture.parts.append(f'<path class="wait" d="M{WIDTH - RIGHT + 16} {picture.y + 49}h14"/>')
    picture.text(WIDTH - RIGHT + 36, picture.y + 54, "waiting", "small")
    picture.next()

    picture.text(LEFT, picture.y - 9, "Database and alerts", "name")
    picture.band("up", picture.series("up"), lambda value: {1.0: "good", 0.0: "bad"}.get(value))
    picture.legend(picture.y, [("good", "the database answers"), ("bad", "it does not")])
    picture.next(BAND + 6)
    for alert in ("PetstoreErrors", "PetstoreDatabaseAway"):
        fires = picture.series("alerts", lambda metric, alert=alert: metric["alertname"] == alert)
        picture.band("", fires, lambda value: None if math.isnan(value) else "bad")
        first = next((second for second, value in zip(picture.times, fires) if not math.isnan(value)), None)
        if first is None:
            raise SystemExit(f"{alert} did not fire in the recording")
        picture.text(picture.x(first) - 8, picture.y + 12, f"{alert} fires", "small", "end")
        picture.next(BAND + 2)
    picture.next(6)
    picture.finish(sys.argv[2])


if __name__ == "__main__":
    main()
