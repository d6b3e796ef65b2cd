"""What a fleet does after a loss, as a page."""

from __future__ import annotations

from optimizer.procurement.resilience import Loss, Resilience
from optimizer.verification.judge import Judgement

from .answer_page import AnswerPage, Part, Share, draw_shares, render_answer
from .answers.resilience import losses_table, named, notes, resilience_dict, verdict
from .document import Chart, table_of
from .numbers import percent
from .words import misses_used


def render_resilience(found: Resilience, count: int, name: str, seen: str = "") -> str:
    """Return the page as one HTML document.

    name: of the plan; count: replicas or nodes that are lost at once; seen: of the same losses in other runs.
    """
    told, losses = notes(found, count, seen), losses_table(found)
    page = AnswerPage(
        name=name,
        question="Which loss breaks an SLO?",
        headline=verdict(found),
        lead=(told[0],),
        charts=(_chart(found),),
        parts=(Part("Every loss", table_of(losses.headers, losses.rows)),),
        notes=told[1:],
    )
    return render_answer(page, resilience_dict(found))


def _chart(found: Resilience) -> Chart:
    """Attainment of the class with the least room, after each loss."""
    rows = [_share("no loss", found.whole), *(_after(found, one) for one in found.losses)]
    held = sum(one.held for one in found.losses)
    return Chart(
        title=f"{held} of {len(found.losses)} losses leave every SLO met",
        caption="Share of requests that meet the SLO, of the class that suffers most; the line is its goal.",
        drawing=draw_shares(rows, "; ".join(f"{row.label} {row.note}" for row in rows)),
        table=table_of(("loss", "#SLO met", "#goal"), tuple((row.label, row.note, percent(row.goal)) for row in rows)),
    )


def _after(found: Resilience, one: Loss) -> Share:
    label = named(found, one)
    if one.judgement is None:
        return Share(label, 0.0, max(case.goal for case in found.whole.classes), "no replica left")
    return _share(label, one.judgement)


def _share(label: str, judgement: Judgement) -> Share:
    """The class with the least room."""
    worst = max(judgement.classes, key=lambda one: misses_used(one.attainment.share, one.goal))
    told = f"{percent(worst.attainment.share)}{', overloaded' if judgement.overload.overloaded else ''}"
    return Share(label, worst.attainment.share, worst.goal, told)
