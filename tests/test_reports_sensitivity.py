"""The deployment files of a plan: those that are written, by the command that writes them."""

from __future__ import annotations

from pathlib import Path

from reports.answers.plan import plan_page
from reports.deploy.files import SUMS, deploy_plan
from reports.next_steps import deployment
from tests.deploy_cases import plan_of
from tests.report_cases import load, with_command

# --- deployment files -----------------------------------------------------------------------------------------------


def test_the_page_names_the_files_and_the_command_that_writes_them(tmp_path: Path) -> None:
    plan = with_command(plan_of(), "pdplan optimize w.yaml -o 'out/a b' --deploy 'out/to run'")
    files, command = deployment(plan)
    assert command == "pdplan deploy 'out/a b/plan.json' -o deploy"
    written = {path.relative_to(tmp_path).as_posix() for path in deploy_plan(plan, tmp_path)}
    assert set(files) == written - {SUMS}
    assert "README.md" in plan_page(plan)
    assert deployment(with_command(load("infeasible"), "pdplan optimize w.yaml"))[0] == ()
