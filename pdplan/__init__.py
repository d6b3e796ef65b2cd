"""Which GPUs, how many, in which roles, with which engine settings, serve an LLM workload for the fewest dollars.

    import pdplan

    problem = pdplan.load_problem("workload.yaml")
    plan = pdplan.optimize(problem, level="quick")  # as --effort: quick, standard (the default) or thorough
    print(plan.status, plan.cost_usd_per_hour)
    today = pdplan.evaluate(pdplan.load_fleet("fleet.yaml"), level=None)  # level: of the search beside it
    print(today.outcome, today.plan.goodput_rps)

The names in `__all__` are the whole public interface. Each is imported on first use: the solver is slow to load.
"""

import importlib as _importlib
import os as _os

from ._siblings import check_siblings as _check_siblings
from ._version import __version__

TYPE_CHECKING = False  # as typing has it, without the time to import that
if TYPE_CHECKING:
    from costmodel.errors import ArchitectureError, InfeasibleError, InputError, PdplanError, UnknownNameError
    from optimizer.plans.plan import FleetEvaluation, Plan
    from optimizer.recommend.evaluate import evaluate
    from optimizer.recommend.optimize import optimize
    from optimizer.recommend.search import Level
    from search_spaces.fleet_file import StatedFleet, load_fleet
    from search_spaces.loader import load_problem
    from search_spaces.problem import Problem

__all__ = [
    "ArchitectureError",
    "FleetEvaluation",
    "InfeasibleError",
    "InputError",
    "Level",
    "PdplanError",
    "Plan",
    "Problem",
    "StatedFleet",
    "UnknownNameError",
    "__version__",
    "evaluate",
    "load_fleet",
    "load_problem",
    "optimize",
]

_HOMES = {
    "ArchitectureError": "costmodel.errors",
    "FleetEvaluation": "optimizer.plans.plan",
    "InfeasibleError": "costmodel.errors",
    "InputError": "costmodel.errors",
    "Level": "optimizer.recommend.search",
    "PdplanError": "costmodel.errors",
    "Plan": "optimizer.plans.plan",
    "Problem": "search_spaces.problem",
    "StatedFleet": "search_spaces.fleet_file",
    "UnknownNameError": "costmodel.errors",
    "evaluate": "optimizer.recommend.evaluate",
    "load_fleet": "search_spaces.fleet_file",
    "load_problem": "search_spaces.loader",
    "optimize": "optimizer.recommend.optimize",
}

del TYPE_CHECKING

_check_siblings(_os.path.realpath(f"{__file__}/../.."))


def __getattr__(name: str) -> object:
    """Import a public name from its home on first use."""
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value: object = getattr(_importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, whether imported yet or not."""
    return sorted({*globals(), *__all__})
