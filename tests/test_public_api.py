"""`import pdplan` gives the names in `__all__` and nothing else, fast; foreign siblings are named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import pdplan
from pdplan._siblings import SIBLINGS, check_siblings
from pdplan.commands.optimize import EFFORTS
from tests.running import tiny

ROOT = Path(__file__).resolve().parent.parent


def python(code: str, cwd: Path | None = None) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=cwd)
    return done.stdout


def test_all_names_resolve_to_what_they_say() -> None:
    for name in pdplan.__all__:
        value = getattr(pdplan, name)
        assert getattr(value, "__name__", name) == name


def test_nothing_else_leaks() -> None:
    names = json.loads(python("import pdplan, json; print(json.dumps(dir(pdplan)))"))
    assert [name for name in names if not name.startswith("_")] == sorted(
        name for name in pdplan.__all__ if not name.startswith("_")
    )


def test_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'pdplan' has no attribute 'optimise'"):
        pdplan.optimise  # type: ignore[attr-defined]  # noqa: B018


def test_import_loads_nothing_slow() -> None:
    loaded = set(json.loads(python("import pdplan, sys, json; print(json.dumps(sorted(sys.modules)))")))
    assert not loaded & {"numpy", "ortools", "optuna", "pydantic", "yaml", "jinja2", "click"}


def test_siblings_are_our_own() -> None:
    check_siblings(str(ROOT))


@pytest.mark.parametrize("name", SIBLINGS)
def test_foreign_sibling_is_named(name: str, tmp_path: Path) -> None:
    foreign = tmp_path / name
    foreign.mkdir()
    (foreign / "__init__.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "pdplan", "--version"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith(f"ImportError: pdplan needs its own package '{name}' at {ROOT / name}, but Python finds")
    assert str(foreign) in last


def test_missing_sibling_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match=f"at {tmp_path / 'costmodel'}, but Python finds"):
        check_siblings(str(tmp_path))


# --- options are those of the command line --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> pdplan.Problem:
    return pdplan.load_problem(tiny(tmp_path_factory.mktemp("api")))


@pytest.mark.parametrize("level", ["quick", "QUICK", pdplan.Level.QUICK])
def test_a_level_by_its_name_is_that_level(problem: pdplan.Problem, level: pdplan.Level | str) -> None:
    plan = pdplan.optimize(problem, level=level, time_limit="90s")
    assert plan.status == "optimal"
    assert plan.simulation is None


def test_a_level_by_its_name_is_simulated_where_the_command_line_simulates(problem: pdplan.Problem) -> None:
    assert pdplan.optimize(problem, level="standard").simulation is not None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"level": "quik"}, "level: 'quik' is not known; did you mean 'quick'? allowed: quick, standard, thorough"),
        ({"level": None}, "level: nothing is not known; allowed: quick, standard, thorough"),
        ({"level": True}, "level: true is not known; allowed: quick, standard, thorough"),
        ({"time_limit": "5 parsec"}, "time_limit: '5 parsec' has the unit 'parsec', but a duration is in "),
        ({"time_limit": -1.0}, "time_limit: -1.0 is out of range; must be at least 0 and at most 1d"),
        ({"time_limit": float("nan")}, "time_limit: nan is not a finite number"),
    ],
    ids=str,
)
def test_another_value_of_an_option_is_refused(
    problem: pdplan.Problem, options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(pdplan.InputError) as caught:
        pdplan.optimize(problem, **options)  # type: ignore[arg-type]
    assert str(caught.value).startswith(sentence)


def test_the_levels_are_those_of_the_command_line() -> None:
    assert tuple(pdplan.Level) == EFFORTS
