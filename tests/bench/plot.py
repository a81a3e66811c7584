"""A few curves in a row of panels, as SVG: so little of it that a library for plots would be more code to call."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log10
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WIDTH, _HEIGHT, _MARGIN = 340, 230, 50
_COLOURS = ("#1f6fb4", "#d2691e", "#2e8b57", "#8b3a8b")


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves of one quantity over a logarithmic axis.

    Attributes:
        curves: For each name its points, rising.
        is_log: The other axis is logarithmic, too: what grows in proportion is a straight line that rises at 45°.
    """

    title: str
    below: str
    unit: str
    curves: Mapping[str, Sequence[tuple[float, float]]]
    is_log: bool = False


def draw(panels: Sequence[Panel], columns: int = 2) -> str:
    """Draw panels side by side, so many in a row."""
    lines = -(-len(panels) // columns)
    width, height = columns * _WIDTH, lines * _HEIGHT
    shapes = "\n".join(
        f'<g transform="translate({number % columns * _WIDTH} {number // columns * _HEIGHT})">{_panel(panel)}</g>'
        for number, panel in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        f' font-size="11">\n<rect width="{width}" height="{height}" fill="white"/>\n{shapes}\n</svg>\n'
    )


def _panel(panel: Panel) -> str:
    points = [point for curve in panel.curves.values() for point in curve]
    left, right = (log10(which(x for x, _ in points)) for which in (min, max))
    top = max(y for _, y in points) * 1.1
    least = floor(log10(min(y for _, y in points))) if panel.is_log else 0
    most = max(ceil(log10(top)), least + 1) if panel.is_log else 0

    def place(x: float, y: float) -> tuple[float, float]:
        across = (log10(x) - left) / ((right - left) or 1)
        up = (log10(y) - least) / (most - least) if panel.is_log else y / top
        return _MARGIN + across * (_WIDTH - 2 * _MARGIN), _HEIGHT - _MARGIN - up * (_HEIGHT - 2 * _MARGIN)

    bottom = _HEIGHT - _MARGIN
    marks = [10.0**power for power in range(least, most + 1)] if panel.is_log else [top / 2, top]
    shapes = [
        _text(_WIDTH / 2, 20, panel.title, "middle"),
        _text(_WIDTH / 2, _HEIGHT - 12, panel.below, "middle"),
        f'<path d="M{_MARGIN} {_MARGIN}V{bottom}H{_WIDTH - _MARGIN}" fill="none" stroke="#444"/>',
        *(_text(place(x, top)[0], bottom + 16, f"{x:,.0f}", "middle") for x in sorted({x for x, _ in points})),
        *(_text(_MARGIN - 6, place(10**left, y)[1] + 4, f"{y:.3g} {panel.unit}", "end") for y in marks),
    ]
    for number, (name, curve) in enumerate(panel.curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [place(*point) for point in curve]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        shapes.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        shapes += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        shapes.append(_text(_MARGIN + 8, _MARGIN + 14 * number, name, "start", colour))
    return "".join(shapes)


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{text}</text>'
