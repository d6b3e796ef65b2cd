"""The roofline chart: share of peak over arithmetic intensity, log-log, one roof per accelerator and dtype."""

from __future__ import annotations

from typing import Final

from .drawing import WIDTH, Box, Drawing, Log, Mark, Path, Rect, Symbol, Text, decade_range, place_label
from .figures import Roof, RooflineFigure, RooflinePoint
from .numbers import percent, si, significant

HEIGHT: Final = 300.0
_PLOT: Final = Box(46.0, 54.0, WIDTH - 8, HEIGHT - 42)
_RIDGE_NAMES: Final = Box(0.0, 16.0, WIDTH, _PLOT.top)


def draw_roofline(figure: RooflineFigure) -> Drawing:
    """Draw roofs, then each pool's operating point below its roof, then labels where they fit."""
    x, y = _scales(figure)
    at = [(x(p.intensity), y(p.mfu), y(p.attainable)) for p in figure.points]
    taken = [Box(left - 6, top - 6, left + 6, top + 6) for left, top, _ in at]
    marks = [*_axes(x, y), *(_roof(roof, x, y) for roof in figure.roofs)]
    marks.extend(Path(((left, top), (left, roof)), "drop") for left, top, roof in at)
    for point, (left, top, _) in zip(figure.points, at, strict=True):
        marks.append(Symbol(left, top, point.role, _tip(point)))
    for point, (left, top, _) in zip(figure.points, at, strict=True):
        label = place_label(left, top, point.pool, taken, plot=_PLOT, tone="halo")
        if label is not None:
            marks.append(label)
            taken.append(label.box)
    marks.extend(_ridges(figure, x, taken))
    summary = "; ".join(_tip(point) for point in figure.points[:6])
    return Drawing(WIDTH, HEIGHT, f"roofline: {summary}", tuple(marks))


def _scales(figure: RooflineFigure) -> tuple[Log, Log]:
    intensities = [p.intensity for p in figure.points] + [roof.ridge for roof in figure.roofs]
    shares = [p.mfu for p in figure.points]
    low_x, high_x = decade_range([min(intensities) / 1.5, max(intensities) * 1.5] if intensities else [1.0, 1e3])
    low_y, _ = decade_range([*(share / 1.2 for share in shares), 0.5])
    return Log(low_x, high_x, _PLOT.left, _PLOT.right), Log(low_y, 1.0, _PLOT.bottom, _PLOT.top)


def _axes(x: Log, y: Log) -> list[Mark]:
    marks: list[Mark] = []
    for decade in x.decades():
        at = x(decade)
        marks.append(Path(((at, _PLOT.top), (at, _PLOT.bottom)), "grid"))
        near_end = at > _PLOT.right - 20
        marks.append(
            Text(at + 8 * near_end, _PLOT.bottom + 18, _decade(decade), "tick", "end" if near_end else "middle")
        )
    for decade in y.decades():
        marks.append(Path(((_PLOT.left, y(decade)), (_PLOT.right, y(decade))), "grid"))
        marks.append(Text(_PLOT.left - 6, y(decade) + 4, percent(decade), "tick", "end"))
    marks.append(Rect(_PLOT.left, _PLOT.bottom, _PLOT.right - _PLOT.left, 1, "axis"))
    marks.append(Text(0, 12, "share of peak FLOP/s (MFU); above: ridge of each GPU, FLOP/byte", "muted"))
    marks.append(Text(_PLOT.right, HEIGHT - 8, "arithmetic intensity, FLOP/byte", "muted", "end"))
    return marks


def _decade(value: float) -> str:
    return si(value, "").replace(" ", "")


def _roof(roof: Roof, x: Log, y: Log) -> Path:
    """Draw min(1, intensity / ridge) from where it enters the plot."""
    start = max(x.low, y.low * roof.ridge)
    corner = (x(roof.ridge), y(1.0))
    return Path(((x(start), y(start / roof.ridge)), corner, (x(x.high), y(1.0))), "roof", _roof_words(roof))


def _roof_words(roof: Roof) -> str:
    return f"{roof.label}: ridge at {significant(roof.ridge)} FLOP/byte"


def _ridges(figure: RooflineFigure, x: Log, taken: list[Box]) -> list[Mark]:
    """Mark each ridge at the top of the plot and name it above, where names do not meet."""
    marks: list[Mark] = []
    boxes = list(taken)
    for roof in figure.roofs:
        at = x(roof.ridge)
        marks.append(Path(((at, _PLOT.top - 4), (at, _PLOT.top + 5)), "axis"))
        for base in (_PLOT.top - 8, _PLOT.top - 22):
            label = Text(at, base, f"{roof.label} {significant(roof.ridge)}", "muted", "middle")
            if label.box.inside(_RIDGE_NAMES) and not any(label.box.overlaps(box) for box in boxes):
                marks.append(label)
                boxes.append(label.box)
                break
    return marks


def _tip(point: RooflinePoint) -> str:
    return (
        f"{point.pool} ({point.role}, {point.accelerator}): {significant(point.intensity)} FLOP/byte, "
        f"{percent(point.mfu)} of peak, {percent(point.attainable)} attainable; bound by {point.bound_by}"
    )
