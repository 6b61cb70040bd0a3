"""What the charts of docs/img have in common: colours by day and by night, words, grids, a legend and a frame."""

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
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9aa5b1 } .page { fill: #12171e } .grid { stroke: #2c343d } .mark { stroke: #9aa5b1 }
  .away { opacity: .16 } .good { fill: #3fa76d } .bad { fill: #f0655b } .idle { fill: #3f6f9e } .used { fill: #7fb4ea }
  .slow { fill: #b794f0 } .line { stroke: #b794f0 } .wait { stroke: #e8a33d }
}
"""


class Chart:
    """Panels between LEFT and WIDTH - RIGHT, with a legend at their right."""

    def __init__(self):
        self.parts: list[str] = []

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        name = f' class="{kind}"' if kind else ""
        self.parts.append(f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{name}>{words}</text>')

    def rect(self, kind: str, x: float, y: float, width: float, height: float, more: str = "") -> None:
        self.parts.append(f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{more}/>')

    def axis(self, title: str, top: float, height: float, ticks: list[tuple[float, str]]) -> None:
        """The title of a panel, and its lines: each at a share of the height."""
        self.text(LEFT, top - 9, title, "name")
        for share, name in ticks:
            y = top + height * (1 - share)
            self.parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
            self.text(LEFT - 8, y + 4, name, "small", "end")

    def legend(self, top: float, entries: list[tuple[str, str]]) -> None:
        for place, (kind, name) in enumerate(entries):
            y = top + 14 + 20 * place
            self.rect(kind, WIDTH - RIGHT + 16, y - 9, 14, 10, ' rx="2"')
            self.text(WIDTH - RIGHT + 36, y, name, "small")

    def write(self, path: str, height: float, about: str, behind: list[str]) -> None:
        """Writes it to a file, on a page of this height, with some of it behind the rest."""
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
