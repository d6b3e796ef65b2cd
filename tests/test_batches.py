"""How many decode on an engine, and how many of them a prompt finds, against engines simulated step by step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from costmodel.beside import Beside
from costmodel.queues.erlang import wait_probability

FloatArray = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
TAU, PROMPT = 0.02, 0.1
"""A decode step, and what the one step of a prompt takes longer [s]."""


@dataclass
class Engine:
    """Requests with their last steps, prompts that wait, when the step under way ends, and whether it has a prompt."""

    decodes: list[int] = field(default_factory=list)
    prompts: int = 0
    steps: int = 0
    ends: float = np.inf
    mixed: bool = False


@dataclass(frozen=True)
class Seen:
    """Mean and variance of a batch over the steps of an engine, idle ones too, and what prompts found on average."""

    batch: float
    variance: float
    found: float


def simulated(engines: int, rate: float, lengths: FloatArray, scv: float) -> Seen:
    """Equal engines with prompts of one length behind a router that knows them, `rate` a second for each."""
    rng, pool = np.random.default_rng(7), [Engine() for _ in range(engines)]
    gaps = rng.gamma(1.0 / scv, scv / (rate * engines), lengths.size)
    now, following, found, batches, spent = 0.0, 0, [], np.zeros(3), 0.0
    arrival = gaps[0]
    while following < lengths.size:
        first = min(pool, key=lambda engine: engine.ends)
        if arrival <= first.ends:
            now = arrival
            chosen = min(pool, key=lambda engine: (engine.prompts, len(engine.decodes)))
            chosen.prompts += 1
            if chosen.ends == np.inf:
                begin(chosen, now, batches, found)
                spent += chosen.ends - now
            following += 1
            arrival += gaps[following] if following < lengths.size else np.inf
            continue
        now = first.ends
        first.steps += 1
        first.decodes = [last for last in first.decodes if last > first.steps]
        if first.mixed:
            first.prompts -= 1
            first.decodes.append(first.steps + int(lengths[len(found) - 1]))
        if first.prompts or first.decodes:
            begin(first, now, batches, found)
            spent += first.ends - now
        else:
            first.ends, first.mixed = np.inf, False
    idle = (engines * now - spent) / TAU
    mean, square = batches[1:] / (batches[0] + idle)
    return Seen(mean, square - mean**2, float(np.mean(found)))


def begin(engine: Engine, now: float, batches: FloatArray, found: list[int]) -> None:
    """The next step of an engine: it carries a prompt where one waits."""
    number = len(engine.decodes)
    engine.mixed = engine.prompts > 0
    engine.ends = now + TAU + PROMPT * engine.mixed
    batches += (1.0, number, number**2)
    if engine.mixed:
        found.append(number)


@pytest.mark.parametrize("engines", [1, 3, 12])
@pytest.mark.parametrize("scv", [1.0, 4.0])
def test_batches_and_what_prompts_find_are_as_simulated(engines: int, scv: float) -> None:
    """Of a simulation of 40,000 requests whose steps are 40 % prompts and whose lengths are as good as exponential."""
    rng, rate = np.random.default_rng(3), 4.0
    lengths = np.ceil(rng.exponential(150.0, 40_000))
    values, counts = np.unique(np.quantile(lengths, (np.arange(60) + 0.5) / 60), return_counts=True)
    busy = rate * (TAU + PROMPT)
    all_busy = float(wait_probability(float(engines), busy, scv))
    same = np.full(values.size, PROMPT)
    one = Beside(
        rate=rate,
        weight=counts / 60,
        extra=same,
        swing=1.0,
        square=same**2,
        steps=values,
        quiet=TAU,
        slope=0.0,
        busy=busy,
        sent=all_busy / busy,
        mixed_steps=np.ones(values.size),
        carried=1.0,
        lanes=1.0,
        engines=float(engines),
        arrival_scv=scv,
    )
    seen = simulated(engines, rate, lengths, scv)
    assert one.batch == pytest.approx(seen.batch, rel=0.03)
    assert one.meets - one.batch == pytest.approx(seen.found - seen.batch, abs=0.3 + 0.15 * scv)
    assert np.sqrt(one.variance) == pytest.approx(np.sqrt(seen.variance), rel=0.2)
