"""The parts that the charts in docs/img share: light and dark colours, text, grids, a legend and a frame."""

WIDTH, LEFT, RIGHT = 860, 64, 176
STYLE = """
text { fill: #1f2937; font: 13px system-ui, sans-serif }
.title { font-weight: 600; font-size: 15px }
.name { font-weight: 600 }
.small { fill: #5b6472; font-size: 12px }
.page { fill: #ffffff }
.away { fill: #d93025; opacity: .08 }
.grid { stroke: #d5dae1; fill: none }
.mark { stroke: #5b6472; stroke-dasharray: 3 3 }
.good { fill: #2e8b57 } .bad { fill: #d93025 } .idle { fill: #8fb8de } .used { fill: #2f6fb0 } .slow { fill: #7c4dbd }
.line { fill: none; stroke: #7c4dbd; stroke-width: 2; stroke-linejoin: round }
.wait { fill: none; stroke: #c77700; stroke-width: 2 }
.c0 { color: #2f6fb0 } .c1 { color: #2e8b57 } .c2 { color: #c77700 } .c3 { color: #7c4dbd } .c4 { color: #d93025 }
.series { fill: currentColor } .trend { fill: none; stroke: currentColor; stroke-width: 2.5; stroke-linejoin: round }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9aa5b1 } .page { fill: #12171e } .grid { stroke: #2c343d } .mark { stroke: #9aa5b1 }
  .away { opacity: .16 } .good { fill: #3fa76d } .bad { fill: #f0655b } .idle { fill: #3f6f9e } .used { fill: #7fb4ea }
  .slow { fill: #b794f0 } .line { stroke: #b794f0 } .wait { stroke: #e8a33d }
  .c0 { color: #7fb4ea } .c1 { color: #3fa76d } .c2 { color: #e8a33d } .c3 { color: #b794f0 } .c4 { color: #f0655b }
}
"""


class Chart:
    """Panels between `left` and `right`, with a legend to the right of them."""

    def __init__(self, left: float = LEFT, right: float = WIDTH - RIGHT):
        self.left, self.right = left, right
        self.parts: list[str] = []

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        name = f' class="{kind}"' if kind else ""
        self.parts.append(f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{name}>{words}</text>')

    def rect(self, kind: str, x: float, y: float, width: float, height: float, more: str = "") -> None:
        self.parts.append(f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{more}/>')

    def axis(self, title: str, top: float, height: float, ticks: list[tuple[float, str]]) -> None:
        """The title of a panel, and its grid lines: each at a fraction of the height."""
        self.text(self.left, top - 9, title, "name")
        for share, name in ticks:
            y = top + height * (1 - share)
            self.parts.append(f'<path class="grid" d="M{self.left} {y:.1f}H{self.right}"/>')
            self.text(self.left - 8, y + 4, name, "small", "end")

    def legend(self, top: float, entries: list[tuple[str, str]]) -> None:
        for place, (kind, name) in enumerate(entries):
            y = top + 14 + 20 * place
            self.rect(kind, self.right + 16, y - 9, 14, 10, ' rx="2"')
            self.text(self.right + 36, y, name, "small")

    def write(self, path: str, height: float, about: str, behind: list[str] = []) -> None:
        """Writes the chart to a file, on a page of this height. `behind` is drawn first."""
        with open(path, "w") as svg:
            svg.write("\n".join([
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
                f'role="img" aria-label="{about}">',
                f"<style>{STYLE}</style>",
                f'<rect class="page" width="{WIDTH}" height="{height}" rx="10"/>',
                *behind,
                *self.parts,
                "</svg>\n",
            ]))
