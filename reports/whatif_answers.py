"""Break-even points, shadow prices, the tornado and near-optimal fleets: as records for JSON, and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from optimizer.plans.records import engine_counts, pool_records, unpriced
from optimizer.whatif.break_even import Piece, Pieces
from optimizer.whatif.frontier import OVER
from optimizer.whatif.scenario import Answer, answer_row, refuted_rows
from optimizer.whatif.sensitivity import NearOptimal, ShadowPrice, TornadoRow

from .numbers import hourly, is_number, percent, significant
from .sensitivity import FACTOR, exact_words, fleet_line, value_words
from .table import Column, render_table
from .text import plural, sentence, wrap
from .whatif_text import FLEET, LINES, fleet_cell, refuted_sentence, simulated_note


def break_even_record(found: Pieces) -> dict[str, Any]:
    """The pieces and the values at which the best fleet changes."""
    changes = [
        {
            "value": below.high,
            "cost_below_usd_per_hour": below.cost_high,
            "cost_above_usd_per_hour": above.cost_low,
            "below": pool_records(unpriced(below.answer.pools)),
            "above": pool_records(unpriced(above.answer.pools)),
        }
        for below, above in found.changes
    ]
    pieces = [
        {
            "from": one.low,
            "to": one.high,
            "cost_from_usd_per_hour": one.cost_low,
            "cost_to_usd_per_hour": one.cost_high,
            "gpus": dict(one.answer.gpus),
            "pools": pool_records(unpriced(one.answer.pools)),
            "status": one.answer.status.value,
            "simulated_attainment": one.answer.attainment,
        }
        for one in found.pieces
    ]
    refuted = refuted_rows(found.refuted)
    return {
        "lever": found.key, "tolerance": found.tolerance, "changes": changes, "pieces": pieces, "refuted": refuted
    }  # fmt: skip


def break_even_text(found: Pieces, width: int, *, simulable: bool) -> str:
    """The best fleet over the range, with how many GPUs it buys, and what happens at each change.

    simulable: whether fleets along the lever can be simulated.
    """
    name = found.key.partition(".")[2]
    by_price = found.key.startswith("price.")
    shown = any(one.answer.attainment is not None for one in found.pieces)
    columns = [
        Column(f"{found.key} from", "right"),
        Column("to", "right"),
        Column(f"{name} bought" if by_price else "GPUs", "right"),
        Column("cost from", "right"),
        Column("to", "right"),
        Column(FLEET, shrink=True, lines=LINES),
        *([Column("SLO met", "right")] if shown else []),
    ]
    turns = taking_turns(found.pieces)
    rows = [
        [
            exact_words(found.key, one.low),
            exact_words(found.key, last.high),
            str(_bought(one.answer, name) if by_price else sum(one.answer.gpus.values())),
            _cost(one.cost_low),
            _cost(last.cost_high),
            _with_others(turn),
            *([percent(one.answer.attainment)] if shown else []),
        ]
        for turn, one, last in ((turn, turn[0], turn[-1]) for turn in turns)
    ]
    reasons = [
        f"No fleet from {exact_words(found.key, one.low)} to {exact_words(found.key, one.high)}: {_why(one.answer)}"
        for one in found.pieces
        if one.answer.cost is None
    ]
    tolerance = exact_words(found.key, found.tolerance, 2).removeprefix(FACTOR)
    close = f"each {'price of one GPU' if by_price else 'value'} is exact to {tolerance}"
    times = {0: "One fleet is best throughout", 1: f"The best fleet changes once; {close}"}
    said = times.get(len(turns) - 1, f"The best fleet changes {len(turns) - 1} times; {close}") + "."
    if len(turns) < len(found.pieces):
        said += " Others: fleets of the same GPUs at the same cost, which take turns there; --json has each of them."
    missed = [f"Missed in simulation: {fleet_line(one.pools)} {one.fault}." for one in found.refuted]
    answers = [one.answer for one in found.pieces]
    looked = _simulated(answers)
    if looked and not (shown or simulable):
        looked = [_unseen(found.key)]
    notes = [*reasons, said, *missed, *looked]
    return "\n".join([render_table(rows, columns, width), "", *(line for note in notes for line in wrap(note, width))])


def taking_turns(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Pieces side by side whose fleets have the same GPUs and one cost, and differ in how engines are made of them."""

    def worth(one: Piece) -> object:
        flat = one.cost_low is not None and one.cost_low == one.cost_high
        return (one.cost_low, one.answer.gpus, one.answer.attainment) if flat else id(one)

    turns: list[list[Piece]] = []
    for one in pieces:
        if turns and worth(turns[-1][-1]) == worth(one):
            turns[-1].append(one)
        else:
            turns.append([one])
    return turns


def _with_others(turn: Sequence[Piece]) -> str:
    """The first fleet of some, and how many others there are."""
    others = len({engine_counts(one.answer.pools) for one in turn}) - 1
    return fleet_cell(turn[0].answer.pools) + (f", or {plural(others, 'other')}" if others else "")


def _unseen(key: str) -> str:
    """Say that no fleet along a lever is simulated, and what does it."""
    also = f", and pdplan frontier --over {key} tells how far one meets the SLO" if key in OVER else ""
    return (
        f"Not simulated: --verify is for fleets along a price, not along {key}; --simulate proves each of them, "
        f"pdplan optimize the one at hand{also}."
    )


def _simulated(answers: Sequence[Answer]) -> list[str]:
    """How many of some answers were simulated."""
    having = [one for one in answers if one.cost is not None]
    return simulated_note(sum(one.attainment is not None for one in having), len(having))


def _refuted(answers: Sequence[Answer]) -> list[str]:
    """A sentence for every fleet that did not hold when simulated, and for which an answer has another."""
    missed = [one for answer in answers if answer.cost is not None for one in answer.refuted]
    return list(dict.fromkeys(map(refuted_sentence, missed)))


def _why(answer: Answer) -> str:
    """Why there is no fleet, as a sentence."""
    return f"{sentence(answer.binding).removesuffix('.')}."


def no_fleet_text(answer: Answer, width: int) -> str:
    """Where no fleet holds at all: the nearest miss."""
    return "\n".join(wrap(f"No fleet meets the SLO, so no limit has a price: {_why(answer)}", width))


def _bought(answer: Answer, name: str) -> int:
    return next((count for card, count in answer.gpus.items() if card.casefold() == name.casefold()), 0)


def shadow_record(rows: Sequence[ShadowPrice]) -> list[dict[str, Any]]:
    """Shadow prices as records."""
    return [asdict(row) for row in rows]


def shadow_text(rows: Sequence[ShadowPrice], width: int) -> str:
    """A table of limits and what one unit more of each is worth."""
    if not rows:
        return "\n".join(
            wrap("The file states no limit that has a shadow price: inventory, budget, power, max_gpus.", width)
        )
    columns = [
        Column("limit"),
        Column("value", "right"),
        Column("worth per unit", "right"),
        Column("solved again", "right", optional=True),
        Column("in whole fleets", shrink=True, lines=2),
    ]
    cells = [
        [
            row.limit,
            f"{significant(row.upper)} {row.unit}",
            f"{significant(row.dual)} {row.worth}",
            f"{significant(row.difference)} {row.worth}",
            _whole(row),
        ]
        for row in rows
    ]
    return render_table(cells, columns, width)


def _whole(row: ShadowPrice) -> str:
    if row.whole is None or row.wider is None:
        return "nothing tried saves anything"
    return f"{significant(row.wider)} {row.unit} more save {hourly(row.whole)}"


def tornado_record(rows: Sequence[TornadoRow]) -> list[dict[str, Any]]:
    """The tornado as records, with the swing of each lever."""
    return [
        asdict(row)
        | {"pools_low": pool_records(row.pools_low), "pools_high": pool_records(row.pools_high), "swing": row.swing}
        for row in rows
    ]


def tornado_text(rows: Sequence[TornadoRow], width: int) -> str:
    """A table of levers, the largest swing first."""
    shown = any(row.attainment is not None for row in rows)
    columns = [
        Column("lever"),
        Column("low", "right"),
        Column("cost at low", "right"),
        Column("high", "right"),
        Column("cost at high", "right"),
        Column("swing", "right"),
        *([Column("SLO met", "right")] if shown else []),
    ]
    cells = [
        [
            row.lever,
            value_words(row.lever, row.low),
            _cost(row.cost_low),
            value_words(row.lever, row.high),
            _cost(row.cost_high),
            hourly(row.swing) if is_number(row.swing) else "no fleet",
            *([percent(_least_kept(row))] if shown else []),
        ]
        for row in rows
    ]
    looked = [row for row in rows if row.attainment is not None]
    having = [row for row in rows if row.cost is not None]
    of_one = ["Prices are of one GPU."] if any(row.lever.startswith("price.") for row in rows) else []
    notes = [*of_one, *simulated_note(len(looked), len(having), "levers")]
    return "\n".join([render_table(cells, columns, width), "", *(line for note in notes for line in wrap(note, width))])


def _least_kept(row: TornadoRow) -> float | None:
    """The least share of simulated requests within their limits, of the three fleets of a lever."""
    seen = [one for one in (row.attainment, row.attainment_low, row.attainment_high) if one is not None]
    return min(seen, default=None)


def _cost(cost: float | None) -> str:
    return "no fleet" if cost is None else hourly(cost)


def alternatives_record(rows: Sequence[NearOptimal]) -> list[dict[str, Any]]:
    """Near-optimal fleets as records."""
    return [
        {"condition": row.condition, "excess": row.excess, "within_slack": row.within} | answer_row(row.answer)
        for row in rows
    ]


def alternatives_text(rows: Sequence[NearOptimal], slack: float, width: int) -> str:
    """A table of conditions, cheapest first, and how many are within the slack."""
    shown, answers = any(row.answer.attainment is not None for row in rows), [row.answer for row in rows]
    columns = [
        Column("condition"),
        Column("cost", "right"),
        Column("more", "right"),
        Column("", "left"),
        Column(FLEET, shrink=True, lines=LINES),
        *([Column("SLO met", "right")] if shown else []),
    ]
    cells = [
        [
            row.condition,
            _cost(row.answer.cost),
            percent(row.excess),
            "within" if row.within else "",
            fleet_cell(row.answer.pools),
            *([percent(row.answer.attainment)] if shown else []),
        ]
        for row in rows
    ]
    others = sum(row.within for row in rows[1:])
    who = {0: "None of the others costs", 1: "One of the others costs"}.get(others, f"{others} of the others cost")
    said = f"{who} at most {percent(slack)} more."
    reasons = [f"{row.condition}: {_why(row.answer)}" for row in rows if row.answer.cost is None]
    notes = [*reasons, said, *_refuted(answers), *_simulated(answers)]
    return "\n".join([render_table(cells, columns, width), "", *(line for note in notes for line in wrap(note, width))])
