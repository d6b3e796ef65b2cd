"""The files of a plan: plan.json is the product, report.html a view of it."""

from __future__ import annotations

from pathlib import Path

from optimizer.plans.plan import Plan
from reports.answers.plan import plan_page

from .json_text import plan_json
from .whole_files import PLAN_FILE, REPORT_FILE, check_directory, write_whole

__all__ = ["PLAN_FILE", "REPORT_FILE", "plan_json", "write_outputs"]


def write_outputs(plan: Plan, directory: Path, *, force: bool = False) -> list[Path]:
    """Write plan.json and report.html into the directory, which is made if need be, and return their paths.

    Both appear, whole, or neither does. Without `force`, a file of either name that pdplan did not write is an error.
    """
    texts = {directory / PLAN_FILE: plan_json(plan), directory / REPORT_FILE: plan_page(plan)}
    check_directory(directory, (PLAN_FILE, REPORT_FILE), force=force)
    write_whole(texts)
    return list(texts)
