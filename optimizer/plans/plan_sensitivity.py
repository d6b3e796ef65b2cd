"""How the answer moves with what it rests on, as plan.json holds it: by formula, among fleets of one or two pools."""

from __future__ import annotations

from pydantic import Field

from .plan_fields import Amount, Measure, Record, Share
from .plan_pools import EnginePool


class Flip(Record):
    """The least change of a lever, on one side of its value, after which another kind of fleet is the cheapest."""

    same_at: Measure
    """Value up to which the kind of fleet is known to be the same."""
    other_at: Measure
    """Value, beyond it, at which it is another one; that it changes once between the two is not proven."""
    pools: list[EnginePool]
    """The fleet that is the cheapest there; none where no fleet holds."""
    usd_per_hour: Amount | None


class LeverSensitivity(Record):
    """One lever with the least cost at its value, lower and higher, all else as it is."""

    lever: str
    """As `pdplan whatif` names it: price.GPU, rate_scale, ttft_scale, link_scale, step_time_quantile and so on."""
    value: Measure
    low: Measure
    high: Measure
    """In the unit of workload.yaml; factors [1] stand at 1."""
    usd_per_hour_low: Amount | None
    """Least cost with the lever at `low`; null where no fleet holds."""
    usd_per_hour_high: Amount | None
    flips: list[Flip] = Field(default_factory=list)
    """Below and above the value, where the kind of fleet changes within `low` to `high` and that was looked for."""


class PricePiece(Record):
    """From `low` to `high` [$/h of one GPU] the same fleet is the cheapest."""

    low: Measure
    high: Measure
    usd_per_hour_low: Amount | None
    """Its price at `low`; null where no fleet holds."""
    usd_per_hour_high: Amount | None
    pools: list[EnginePool]


class BreakEven(Record):
    """The cheapest fleet at any price of one accelerator, in pieces of rising price; the plan's own is among them."""

    accelerator: str
    usd_per_gpu_hour: Amount
    """The price at hand."""
    pieces: list[PricePiece]


class Sensitivity(Record):
    """How the least cost moves: levers by formula, among fleets of one or two pools; the plan's own may be another."""

    share: Share
    """By how much each lever goes either way, if its row says nothing else."""
    complete: bool
    """Whether all levers were moved, or prices and limits only."""
    usd_per_hour: Amount
    """The least cost with everything as it is."""
    pools: list[EnginePool]
    levers: list[LeverSensitivity]
    """The largest swing first."""
    break_even: list[BreakEven]
