"""Files appear whole or not at all, and what cannot be written is said before the work."""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path

import pytest

from costmodel.errors import InputError
from optimizer.plans.plan import Plan
from reports import whole_files
from reports.answers.plan import write_outputs
from reports.json_text import plan_json
from reports.whole_files import check_directory, check_distinct, check_target, write_whole
from tests.report_cases import load


def test_all_files_are_written_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "plan.json", tmp_path / "report.html"
    first.write_text("old")
    synced: list[int] = []

    def full(handle: int) -> None:
        synced.append(handle)
        if len(synced) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(whole_files.os, "fsync", full)
    with pytest.raises(InputError, match=r"report\.html cannot be written: No space left on device"):
        write_whole({first: "new", second: "new"})
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    assert first.read_text() == "old"


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    place, link = tmp_path / "there" / "a.txt", tmp_path / "link"
    place.parent.mkdir()
    link.symlink_to(place)
    write_whole({link: "new"})
    assert link.is_symlink()
    assert place.read_text() == "new"
    assert stat.S_IMODE(place.stat().st_mode) == 0o666 & ~whole_files._umask()


@pytest.mark.parametrize("force", [False, True])
def test_a_target_that_is_no_file_is_refused(force: bool, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder; name a file in it"):
        check_target(tmp_path, force=force)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(InputError, match="pipe is not a regular file"):
            check_target(tmp_path / "pipe", force=force)
    with pytest.raises(InputError, match="cannot be written: No such file or directory"):
        check_target(tmp_path / "absent" / "a", force=force)
    with pytest.raises(InputError, match="cannot be written: File name too long"):
        check_target(tmp_path / ("a" * 300), force=force)


def test_a_directory_in_which_nothing_can_be_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def readonly(**_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(whole_files.tempfile, "TemporaryFile", readonly)
    with pytest.raises(InputError, match="plan cannot be written: Read-only file system"):
        check_directory(tmp_path / "plan", (), force=False)
    with pytest.raises(InputError, match="a cannot be written: Read-only file system"):
        check_target(tmp_path / "a", force=True)


def test_a_folder_in_a_files_place_is_noticed_before(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(InputError, match=r"report\.html is a folder"):
        check_directory(tmp_path, ("plan.json", "report.html"), force=False)


def test_what_leads_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "ring").symlink_to("ring")
    for name in ("link", "ring"):
        with pytest.raises(InputError, match=f"{name} is a link that leads nowhere"):
            check_target(tmp_path / name, force=True)


def test_a_link_out_of_the_folder_is_refused_even_with_force(tmp_path: Path) -> None:
    folder, outside = tmp_path / "plan", tmp_path / "outside.html"
    folder.mkdir()
    outside.write_text("mine")
    (folder / "report.html").symlink_to(outside)
    for force in (False, True):
        with pytest.raises(InputError, match=r"report\.html leads out of .*plan; nothing is written there"):
            check_directory(folder, ("plan.json", "report.html"), force=force)
    assert outside.read_text() == "mine"


def test_two_files_of_a_folder_that_are_one_are_refused_even_with_force(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"schema": "pdplan.plan/1"')
    (tmp_path / "report.html").symlink_to("plan.json")
    with pytest.raises(InputError, match=r"plan\.json and report\.html name the same file; choose another directory"):
        check_directory(tmp_path, ("plan.json", "report.html"), force=True)


@pytest.mark.parametrize("name", ["same", "./same", "link", "hard", "sub/../same"])
def test_two_names_of_one_file_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "same").touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to("same")
    (tmp_path / "hard").hardlink_to("same")
    with pytest.raises(InputError, match="--csv and --html name the same file"):
        check_distinct({"--csv": Path("same"), "--html": Path(name)}, {})
    with pytest.raises(InputError, match="FILE and --csv name the same file"):
        check_distinct({"--csv": Path(name)}, {"FILE": Path("same")})
    check_distinct({"--csv": Path("same")}, {"FILE": Path("other"), "--terms": Path("other")})


def test_names_of_a_file_that_is_not_there_yet_are_told_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("new")
    with pytest.raises(InputError, match="--csv and --html name the same file"):
        check_distinct({"--csv": tmp_path / "new", "--html": tmp_path / "link"}, {})


@pytest.fixture
def plan() -> Plan:
    return load("colocated")


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
