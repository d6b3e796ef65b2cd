"""Chart of the arrivals over a day: the rates of its hours, and the one that the fleet is planned for."""

from __future__ import annotations

from optimizer.plans.plan import Plan

from .day import HOURS, Arrivals, arrivals
from .document import Chart, table_of
from .drawing import WIDTH, Box, Drawing, Mark, Path, Rect, axes, headings, plot, round_steps
from .numbers import percent, rate, significant
from .text import plural


def arrivals_chart(plan: Plan) -> Chart | None:
    """Draw the profile of a day; None where there is none."""
    figure = arrivals(plan)
    if figure is None:
        return None
    above = sum(value > figure.planned * (1 + 1e-9) for value in figure.hourly)
    over = f"; {plural(above, 'hour')} of the day {'is' if above == 1 else 'are'} above it" if above else ""
    return Chart(
        title=f"Planned for {rate(figure.planned)}, of which the day's mean uses {percent(figure.use)}{over}",
        caption="Mean rate of each hour as stated; the line is the rate that the fleet is planned for.",
        drawing=draw_arrivals(figure),
        table=table_of(("hour", "#rate"), tuple((f"{h:02d}:00", rate(v)) for h, v in enumerate(figure.hourly))),
    )


def draw_arrivals(figure: Arrivals) -> Drawing:
    """Draw a column for each hour; of one above the planned rate, the part beyond it stands out."""
    box = Box(46, 44, WIDTH - 10, 176)
    high = max(*figure.hourly, figure.planned) * 1.05
    frame = plot(box, (0.0, HOURS), (0.0, high))
    heights = [(value, significant(value)) for value in round_steps(high, 4)]
    hours = [(hour, f"{hour:02d}:00") for hour in range(0, HOURS, 6)]
    marks: list[Mark] = axes(frame, hours, heights, "", "requests per second")
    width = frame.x(1.0) - frame.x(0.0)
    limit = frame.y(figure.planned)
    for hour, value in enumerate(figure.hourly):
        x, y, tip = frame.x(hour) + 1, frame.y(value), f"{hour:02d}:00: {rate(value)}"
        marks.append(Rect(x, max(y, limit), width - 2, box.bottom - max(y, limit), "prefill", tip))
        if y < limit:
            marks.append(Rect(x, y, width - 2, limit - y, "over", tip))
    marks.append(Path(((box.left, limit), (box.right, limit)), "limit", f"planned for {rate(figure.planned)}"))
    marks += headings([(box.right - 60, f"planned {rate(figure.planned)}", "limit")], box, 14)
    summary = ", ".join(f"{hour:02d}:00 {rate(value)}" for hour, value in enumerate(figure.hourly))
    return Drawing(WIDTH, box.bottom + 26, f"arrivals by hour: {summary}", tuple(marks))
