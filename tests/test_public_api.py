"""`import pdplan` gives the names in `__all__` and nothing else, fast; foreign siblings are named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pdplan
from pdplan import _SIBLINGS
from tests.report_cases import load
from tests.running import ROOT, tiny
from tests.running import pdplan as run_program


def test_all_names_resolve_to_what_they_say() -> None:
    for name in pdplan.__all__:
        value = getattr(pdplan, name)
        assert getattr(value, "__name__", name) == name


def test_nothing_else_leaks_and_nothing_slow_is_loaded() -> None:
    code = "import pdplan, sys, json; print(json.dumps([dir(pdplan), sorted(sys.modules)]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names, loaded = json.loads(done.stdout)
    assert [name for name in names if not name.startswith("_")] == sorted(
        name for name in pdplan.__all__ if not name.startswith("_")
    )
    assert not set(loaded) & {"numpy", "ortools", "optuna", "pydantic", "yaml", "jinja2", "click"}


@pytest.mark.parametrize("name", [_SIBLINGS[0], _SIBLINGS[-1]])
def test_foreign_sibling_is_named(name: str, tmp_path: Path) -> None:
    foreign = tmp_path / name
    foreign.mkdir()
    (foreign / "__init__.py").write_text("")
    done = run_program("--version", cwd=tmp_path, PYTHONPATH=f"{tmp_path}:{ROOT}")
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith(f"ImportError: pdplan needs its own package '{name}' at {ROOT / name}, but Python finds")
    assert str(foreign) in last


# --- options are those of the command line --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> pdplan.Problem:
    return pdplan.load_problem(tiny(tmp_path_factory.mktemp("api")))


def test_a_file_takes_the_options_that_override_it(tmp_path: Path) -> None:
    file = tiny(tmp_path)
    plan = pdplan.optimize(file, effort="quick", seed=7, settings={"workload.request_rate": "1/s"})
    assert (plan.provenance.seed, plan.demand_rps) == (7, 1.0)
    with pytest.raises(pdplan.InputError, match=r"^seed: overrides a value of a file; give it to load_problem"):
        pdplan.optimize(pdplan.load_problem(file), seed=7)


def test_a_plan_goes_on_to_every_other_function(problem: pdplan.Problem, tmp_path: Path) -> None:
    plan = pdplan.optimize(problem, effort="quick")
    assert pdplan.simulate(plan, requests=500, rate="0.5/s").judgement.classes
    assert pdplan.evaluate(plan, effort="none").cheapest is None
    assert tmp_path / "deploy" / "README.md" in pdplan.deploy(plan, tmp_path / "deploy", target="vllm")
    for name in ("labels", "version"):  # label and engine_version are meant
        with pytest.raises(TypeError, match=rf"^deploy\(\) got an unexpected keyword argument '{name}'"):
            pdplan.deploy(plan, tmp_path / "other", **{name: {}})
    rows = pdplan.whatif(problem, {"rate": ["0.5/s", "1/s"]}, verify=0)
    assert [row["rate"] for row in rows] == ["0.5/s", "1/s"]
    curve = pdplan.frontier(problem, "rate", between=(0.5, 2.0), verify=0)
    assert curve.steps


def test_values_of_numpy_and_texts_with_units_are_taken_as_they_are_meant(
    problem: pdplan.Problem, tmp_path: Path
) -> None:
    settings = {"constraints.max_gpus": np.int64(8), "accelerators": ("H100",), "workload.request_rate": "1 QPS"}
    plan = pdplan.optimize(tiny(tmp_path), effort="quick", settings=settings)
    assert (plan.demand_rps, plan.provenance.inputs["constraints"]["max_gpus"]) == (1.0, 8)
    assert len(pdplan.whatif(problem, {"rate": np.array([1.0, 2.0])}, verify=0)) == 2
    curve = pdplan.frontier(problem, "ttft", between=("500ms", "2s"), verify=0)
    simulated = pdplan.simulate(plan, requests=500, seed=None)
    assert all(len(repr(item)) < 500 for item in (plan, simulated, pdplan.evaluate(plan, effort="none"), curve))
    assert len(repr(curve.steps[0])) < 2000


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("simulate", {"alternative": 0}, "alternative: 0 is out of range; must be at least 1"),
        ("simulate", {"diurnal": [1, -1]}, "diurnal: its numbers must be finite, 0 or more"),
        ("simulate", {"seed": -3}, "seed: -3 is out of range; must be at least 0$"),
        ("whatif", {"vary": "rate=1,2", "jobs": 0}, "jobs: 0 is out of range"),
        ("optimize", {"settings": ["a=1"]}, "settings: give values by dotted path"),
        ("evaluate", {"fleet": {}}, "a value of type dict is not a plan or a fleet; give the name of its file"),
    ],
)
def test_a_wrong_argument_is_named(name: str, arguments: dict[str, Any], said: str, problem: pdplan.Problem) -> None:
    plan = load("disaggregated")
    subject = () if name == "evaluate" else (plan if name == "simulate" else problem,)
    with pytest.raises(pdplan.InputError, match=said):
        getattr(pdplan, name)(*subject, **arguments)


def test_a_notebook_shows_the_verdict_and_the_fleet() -> None:
    plan = load("disaggregated")
    frame = plan.to_frame()
    assert list(frame.index) == [pool.id for pool in plan.pools]
    assert frame["gpus"].sum() == sum(plan.gpus.values())
    assert frame["usd_per_hour"].sum() == pytest.approx(plan.cost_usd_per_hour)
    page = plan._repr_html_()
    assert f"{sum(plan.gpus.values())} GPUs for ${plan.cost_usd_per_hour:,.2f}/h" in page
    assert page.count("<tr") == 1 + len(plan.pools)
    named = plan.model_copy(update={"name": "<script>"})
    assert "<script>" not in named._repr_html_()
    assert "<table" not in load("infeasible")._repr_html_()


def test_the_notebook_of_the_examples_is_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a copy of the examples, for it writes files."""
    shutil.copytree(ROOT / "examples", tmp_path, dirs_exist_ok=True)
    notebook = json.loads((tmp_path / "notebook.ipynb").read_text("utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    program = "\n".join("".join(cell["source"]) for cell in cells)
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "notebook.ipynb", "exec"), {})
    assert "files in deploy/" in capsys.readouterr().out
    assert (tmp_path / "deploy" / "README.md").is_file()
