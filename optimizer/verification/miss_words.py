"""How a fleet missed its goals when it was simulated, in words."""

from __future__ import annotations

from costmodel.words import join_words, percentage

from .judge import ClassJudgement
from .verdict import Verdict


def miss_words(found: Verdict) -> str:
    """How a fleet missed, as the end of a sentence."""
    where = "the recorded requests come in their own order" if found.replayed else "simulated"
    if found.stuck:
        return "stays behind when simulated, once its KV memory was full"
    if found.judgement.overload.overloaded:
        return f"falls behind its arrivals when {where}"
    classes = found.judgement.classes
    behind = [one for one in classes if not (one.held if found.replayed else one.proven)] or list(classes)
    shares = [
        f"{percentage(one.attainment.share, 1)} of {one.name}"
        f"{'' if found.replayed else f' ({interval_words(one)})'} where {percentage(one.goal, 1)} should"
        for one in behind
    ]
    only = "only " if any(not one.held for one in behind) else ""
    return f"keeps the SLOs of {only}{join_words(shares)} when {where}"


def interval_words(one: ClassJudgement) -> str:
    """The 95 % interval, and why it does not show that a class holds whose share reaches the goal."""
    low, high = (percentage(end, 1) for end in (one.attainment.low, one.attainment.high))
    if one.proven:
        return f"{low} to {high} at 95 %, lower at the level that confirms"
    return f"{low} to {high}, the lower end counts" if one.held else f"{low} to {high}"
