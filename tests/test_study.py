"""A tuning study that is kept: what it shows, how a second run goes on, and files that are refused."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

from costmodel.engine import Role
from optimizer.fleets.fleet import Fleet
from optimizer.verification.bench import Bench
from optimizer.verification.tune import Tuned, Wish, open_storage, tuned
from tests.small_fleets import pool, small


def tuning(study: str | None, looks: int = 3, rate: float = 6.0) -> Tuned:
    instance = small(rate)
    bench = Bench(instance, 0, 1000)
    winner = bench.verdict(Fleet((pool(instance, "c-1", Role.COLOCATED, 2),)))
    return tuned(bench, winner, Wish(looks, study=study))


def studies(url: str) -> list[optuna.Study]:
    storage = open_storage(url)
    names = [summary.study_name for summary in optuna.get_all_study_summaries(storage)]
    return [optuna.load_study(study_name=name, storage=storage) for name in names]


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


def test_the_study_shows_settings_as_engines_have_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tuning.db'}"
    found = tuning(url)
    (study,) = studies(url)
    assert study.study_name.startswith("small: cost, then tail, ")
    done = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    tables = small(6.0).tables
    for trial, look in zip(done, found.looks, strict=True):
        (engines,) = look.fleet.pools
        assert trial.params == {"c-1 replicas": engines.replicas, "c-1 max_num_seqs": tables.seqs[engines.seqs]}
        assert trial.user_attrs == {"usd_per_hour": look.cost, "share_of_limit": look.distance}
