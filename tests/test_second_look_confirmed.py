"""A second look takes for a fleet that holds only what requests confirm which no run before had."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from costmodel.simulator.metrics import Attainment, Overload
from optimizer.verification.bench import Bench, Verdict, make_bench
from optimizer.whatif import scenario
from tests.small_fleets import apart, small

Look = Callable[..., tuple[tuple[float, str], list[object]]]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Look:
    """Look at a fleet with scripted runs: what the short run, the confirmations and the long runs say."""
    instance = small()
    fleet = apart(instance, 2, 2)
    real = make_bench(instance).look(fleet)

    def verdict(share: float, low: float, high: float) -> Verdict:
        classes = tuple(replace(one, attainment=Attainment(share, low, high, 1000)) for one in real.judgement.classes)
        calm = Overload(overloaded=False, growth=0.0, drift=0.0, where="queue")
        judgement = replace(real.judgement, classes=classes, overload=calm)
        return replace(real, judgement=judgement, held=low >= classes[0].goal, blame=None)

    said = {
        "misses": verdict(0.85, 0.8, 0.88),
        "between": verdict(0.9, 0.88, 0.93),
        "holds": verdict(0.95, 0.93, 0.97),
    }

    def look(most: int, *script: str) -> tuple[tuple[float, str], list[object]]:
        waiting, asked = [said[one] for one in script], list[object]()

        def told(what: object) -> Verdict:
            asked.append(what)
            return waiting.pop(0)

        monkeypatch.setattr(Bench, "look", lambda _bench, _fleet: told("look"))
        monkeypatch.setattr(Bench, "verdict", lambda _bench, _fleet: told("judge"))
        monkeypatch.setattr(scenario, "confirmed_once", lambda _bench, _chosen, number: told(f"confirm {number}"))
        found = scenario.look(instance, fleet, most)
        assert not waiting
        return found, asked

    return look


@pytest.mark.parametrize(
    ("most", "script", "asked", "held"),
    [
        (8, ["misses"], ["look"], False),
        (8, ["between", "holds"], ["look", "confirm 1"], True),
        (8, ["between", "misses"], ["look", "confirm 1"], False),
        (2, ["between", "between"], ["look", "confirm 1"], False),
        (8, ["between", "between", "between"], ["look", "confirm 1", "judge"], False),
        (8, ["between", "between", "holds", "between"], ["look", "confirm 1", "judge", "confirm 2"], False),
        (8, ["between", "between", "holds", "holds"], ["look", "confirm 1", "judge", "confirm 2"], True),
    ],
)
def test_only_a_fleet_that_fresh_requests_confirm_holds(
    judged: Look, most: int, script: list[str], asked: list[object], held: bool
) -> None:
    (share, fault), seen = judged(most, *script)
    assert seen == asked
    assert (not fault) == held
    assert share == {"misses": 0.85, "between": 0.9, "holds": 0.95}[script[-1]]
