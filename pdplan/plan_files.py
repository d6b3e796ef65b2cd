"""plan.json and fleet files as the commands find them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from costmodel.errors import InputError
from costmodel.units import MIB
from search_spaces.faults import taken_by
from search_spaces.files import read_file, shown_path

if TYPE_CHECKING:
    from optimizer.plans.plan import Plan

LARGEST_PLAN: Final = 32 * MIB
"""A plan file is some 100 kB; one larger than this [byte] is something else."""
OTHERS: Final = {
    "fleet": ("fleet file", re.compile(rb"^(pools\s*:|schema\s*:\s*pdplan\.fleet/)", re.MULTILINE)),
    "workload": ("workload", re.compile(rb"^(workload\s*:|schema\s*:\s*pdplan\.workload/)", re.MULTILINE)),
}
"""Our other files: their names, and a key by which YAML is known for one."""


def read_plan(path: Path, alternative: int = 1) -> Plan:
    """Read a plan file, or say in one sentence why it is none; alternative: see `numbered`."""
    from optimizer.plans.reading import parse_plan

    data = read_file(path, LARGEST_PLAN, "a plan.json")
    try:
        return numbered(parse_plan(data, shown_path(path)), alternative, path)
    except InputError as error:
        file = shown_path(path)
        for kind, (name, pattern) in OTHERS.items():
            if pattern.search(data) is not None:
                raise InputError(f"{file}: this is a {name}, not a plan{taken_by(kind, file)}") from error
        if path.suffix.lower() in {".yaml", ".yml"}:
            raise InputError(f"{file}: a plan is the plan.json that pdplan optimize -o DIR writes") from error
        raise


def numbered(plan: Plan, alternative: int, path: Path) -> Plan:
    """The plan of an alternative by its number in the report, from 1, the recommended one, which is the plan itself."""
    if alternative == 1:
        return plan
    from optimizer.recommend.evaluate import plan_of_alternative
    from reports.words import distinct_alternatives

    rows = distinct_alternatives(plan)
    if alternative > len(rows):
        where = f"pdplan report {shown_path(path)} -v numbers them"
        raise InputError(f"--alternative {alternative}: the plan has {len(rows)} fleets; {where}")
    found = plan_of_alternative(plan, rows[alternative - 1], path.parent)
    return found.model_copy(update={"name": f"alternative {alternative} of plan {plan.name}"})


def read_fleet(path: Path, alternative: int = 1) -> Plan:
    """Read a plan, or a fleet file (YAML) as the plan of the fleet that it states, by formula and not simulated."""
    from search_spaces.fleet_file import is_fleet_file, load_fleet

    if not is_fleet_file(path):
        return read_plan(path, alternative)
    if alternative != 1:
        raise InputError(f"--alternative {alternative}: {shown_path(path)} is a fleet file, which states one fleet")
    from optimizer.recommend.evaluate import plan_of, subject_of

    return plan_of(subject_of(load_fleet(path)))
