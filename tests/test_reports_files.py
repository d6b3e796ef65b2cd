"""The files appear whole or not at all."""

import json
import math
from pathlib import Path

import pytest

from costmodel.errors import InputError
from optimizer.plans.plan import Plan
from reports import whole_files
from reports.answers.plan import write_outputs
from reports.json_text import plan_json

PLANS = Path(__file__).parent / "plans"


@pytest.fixture
def plan() -> Plan:
    return Plan.model_validate_json((PLANS / "colocated.json").read_bytes())


def test_both_files_are_written_and_read_back(plan: Plan, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "plan"
    assert write_outputs(plan, target) == [target / "plan.json", target / "report.html"]
    assert Plan.model_validate_json((target / "plan.json").read_bytes()) == plan
    assert (target / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert sorted(path.name for path in target.iterdir()) == ["plan.json", "report.html"]


def test_json_keeps_the_models_order_and_has_no_nan(plan: Plan) -> None:
    quantiles = plan.classes[0].ttft_s.model_copy(update={"p99": math.inf, "p95": math.nan})
    text = plan_json(plan.model_copy(update={"ttft_s": quantiles}))
    record = json.loads(text, parse_constant=pytest.fail)
    assert list(record)[:3] == ["schema", "name", "model"]
    assert record["ttft_s"]["p99"] is None
    assert record["status"] == "optimal"
    assert text.endswith("}\n")
    again = Plan.model_validate_json(text)
    assert again.ttft_s is not None
    assert math.isnan(again.ttft_s.p99)
    assert plan_json(again) == text


def test_without_force_nothing_is_replaced(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(InputError, match=r"report\.html was not written by pdplan; choose another directory, or"):
        write_outputs(plan, tmp_path, force=False)
    assert not (tmp_path / "plan.json").exists()
    (tmp_path / "plan.json").write_text(plan_json(plan), "utf-8")
    with pytest.raises(InputError, match=r"report\.html was not written by pdplan"):
        write_outputs(plan, tmp_path)
    assert (tmp_path / "report.html").read_text() == "mine"
    write_outputs(plan, tmp_path, force=True)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") != "mine"
    write_outputs(plan, tmp_path)


def test_a_failed_write_leaves_the_old_file_and_no_litter(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plan.json").write_text("old")

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(whole_files.os, "fsync", full)
    with pytest.raises(InputError, match="cannot be written: No space left on device"):
        write_outputs(plan, tmp_path, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    assert (tmp_path / "plan.json").read_text() == "old"


def test_a_file_in_the_directorys_place_is_named(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "plan").write_text("")
    with pytest.raises(InputError, match="is a file, not a directory"):
        write_outputs(plan, tmp_path / "plan")
