"""Which GPUs, how many, in which roles, with which engine settings, serve an LLM workload for the fewest dollars.

    import pdplan

    plan = pdplan.optimize("workload.yaml", effort="quick", settings={"workload.request_rate": "5/s"})
    print(plan.status, plan.cost_usd_per_hour, plan.to_frame())
    print(pdplan.simulate(plan, rate="6/s").judgement.proven)
    print(pdplan.evaluate("fleet.yaml", effort="none").outcome)
    pdplan.deploy(plan, "deploy", target="dynamo")

Options are those of the command line; `pdplan.api` describes them.

The names in `__all__` are the whole public interface. Each is imported on first use: the solver is slow to load.
"""

import importlib as _importlib
import os as _os
from importlib.machinery import PathFinder as _PathFinder

__version__ = "0.1.0"

TYPE_CHECKING = False  # as typing has it, without the time to import that
if TYPE_CHECKING:
    from costmodel.errors import (
        ArchitectureError,
        BelowFloorError,
        InfeasibleError,
        InputError,
        PdplanError,
        UnknownNameError,
    )
    from optimizer.loads.effort import Level
    from optimizer.plans.plan import FleetEvaluation, Plan
    from optimizer.verification.simulated_plan import Simulated
    from optimizer.whatif.answer import Frontier
    from search_spaces.fleet_file import StatedFleet, load_fleet
    from search_spaces.loader import load_problem
    from search_spaces.problem import Problem

    from .api import deploy, evaluate, frontier, optimize, simulate, whatif

__all__ = [
    "ArchitectureError",
    "BelowFloorError",
    "FleetEvaluation",
    "Frontier",
    "InfeasibleError",
    "InputError",
    "Level",
    "PdplanError",
    "Plan",
    "Problem",
    "Simulated",
    "StatedFleet",
    "UnknownNameError",
    "__version__",
    "deploy",
    "evaluate",
    "frontier",
    "load_fleet",
    "load_problem",
    "optimize",
    "simulate",
    "whatif",
]

_HOMES = {
    "costmodel.errors": {
        "ArchitectureError", "BelowFloorError", "InfeasibleError", "InputError", "PdplanError", "UnknownNameError",
    },
    "optimizer.loads.effort": {"Level"},
    "optimizer.plans.plan": {"FleetEvaluation", "Plan"},
    "optimizer.whatif.answer": {"Frontier"},
    "optimizer.verification.simulated_plan": {"Simulated"},
    "search_spaces.fleet_file": {"StatedFleet", "load_fleet"},
    "search_spaces.loader": {"load_problem"},
    "search_spaces.problem": {"Problem"},
    "pdplan.api": {"deploy", "evaluate", "frontier", "optimize", "simulate", "whatif"},
}  # fmt: skip
"""Modules of the public names."""

del TYPE_CHECKING

_SIBLINGS = ("costmodel", "search_spaces", "optimizer", "reports", "templates")
"""The packages beside `pdplan`: their names are common, so another project's may stand before them on the path."""


def _check_siblings(home: str) -> None:
    """Raise one clear ImportError when Python would import a foreign package instead of the one in `home`.

    This runs before anything else does, and before Ctrl-C is looked after: hence no pathlib, which takes longer to
    import than all of this.
    """
    for name in _SIBLINGS:
        spec = _PathFinder.find_spec(name)
        expected_place = f"{home}{_os.sep}{name}"
        actual = spec.origin.rpartition(_os.sep)[0] if spec and spec.origin else None
        if actual is None or _os.path.realpath(actual) != _os.path.realpath(expected_place):
            msg = (
                f"pdplan needs its own package {name!r} at {expected_place}, but Python finds {actual or 'none'}; "
                f"move or uninstall the other one, or install pdplan in an environment of its own"
            )
            raise ImportError(msg)


_check_siblings(_os.path.realpath(f"{__file__}/../.."))


def __getattr__(name: str) -> object:
    """Import a public name from its home on first use."""
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value: object = getattr(_importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, whether imported yet or not."""
    return sorted({*globals(), *__all__})
