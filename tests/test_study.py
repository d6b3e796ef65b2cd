"""A tuning study that is kept: what it shows, how a second run goes on, and files that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodel.engine import Role
from optimizer.fleets.fleet import Fleet
from optimizer.verification.bench import Bench
from optimizer.verification.tune import Tuned, Wish, tuned
from tests.small_fleets import pool, small


def tuning(study: str | None, looks: int = 3, rate: float = 6.0) -> Tuned:
    instance = small(rate)
    bench = Bench(instance, 0, 1000)
    winner = bench.verdict(Fleet((pool(instance, "c-1", Role.COLOCATED, 2),)))
    return tuned(bench, winner, Wish(looks, study=study))


@pytest.mark.parametrize("form", ["sqlite:///", "journal:"])
def test_a_second_run_goes_on_from_the_first(tmp_path: Path, form: str) -> None:
    url = f"{form}{tmp_path / 'tuning'}"
    first = tuning(url)
    assert [look.distance for look in first.looks] == [look.distance for look in tuning(None).looks]
    second = tuning(url)
    assert (len(first.looks), len(second.looks)) == (3, 5)  # both look at the start
    known = {(look.fleet.pools[0].replicas, look.fleet.pools[0].seqs): look for look in second.looks}
    assert len(known) == 5
    for look in first.looks:
        again = known[look.fleet.pools[0].replicas, look.fleet.pools[0].seqs]
        assert (again.cost, again.distance) == (look.cost, look.distance)
    assert second.winner.cost <= first.winner.cost
