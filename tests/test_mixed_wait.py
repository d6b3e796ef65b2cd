"""What decodes add to the wait of prompts: company, seats and pipelines."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.mixed_wait import Company, Transit, with_company, with_crowd, with_transit
from costmodel.prompt_queue import Prompts, PromptWait, prompt_wait


def wait(rate: float = 2.0) -> PromptWait:
    """Of prompts of 0.1 s at one engine."""
    half = np.full(2, 0.1)
    return prompt_wait(Prompts(np.full(2, rate / 2.0), half, half, 0.1, 1.0, 1.0))


def late(of: PromptWait, t: float) -> float:
    """P(wait > t) of all."""
    return of.chance * float(of.exceeds(np.array([t, t]))[0])


def company(occupied: float, pending: float) -> Company:
    return Company(occupied, pending, 0.02, np.array([0.1, 0.1]), np.array([0.1, 0.1]), np.ones(2))


def test_company_before_and_behind() -> None:
    alone = wait()
    both = with_company(alone, company(0.25, 0.2))
    assert both.chance == pytest.approx(0.25 * 0.8 + 2.0 * 0.25 * 0.2)
    assert late(both, 0.05) == pytest.approx(0.2 * float(alone.exceeds(np.array([0.05, 0.05]))[0]) + 0.1, rel=1e-6)


def test_without_company_nothing_changes() -> None:
    assert late(with_company(wait(), company(0.0, 0.0)), 0.03) == late(wait(), 0.03)


def test_a_seat_is_waited_for_beside_everything_else() -> None:
    alone, crowded = wait(), with_crowd(wait(), 0.3, 5.0)
    assert crowded.seconds[-1] == pytest.approx(50.0)
    for t in (0.0, 0.05, 2.0):
        before = late(alone, t) if t else alone.chance
        assert late(crowded, t) == pytest.approx(before + 0.3 * (1.0 - before) * np.exp(-t / 5.0), abs=0.02)
    assert with_crowd(alone, 0.0, 5.0) is alone


def test_the_last_of_many_steps_in_transit() -> None:
    """Infinitely many servers: with steps of 0.3 s beyond the first stage, P(any there) = 1 - exp(-rate 0.3)."""
    idle = wait(1e-9)
    found = with_transit(idle, Transit(2.0, np.full(2, 0.1), np.ones(2), 4.0))
    assert found.chance == pytest.approx(1.0 - np.exp(-0.6), rel=1e-6)
    t = float(found.seconds[100])
    assert late(found, t) == pytest.approx(1.0 - np.exp(-2.0 * max(0.3 - t, 0.0)), abs=1e-3)
