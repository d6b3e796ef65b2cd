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

from ._siblings import check_siblings as _check_siblings
from ._version import __version__

TYPE_CHECKING = False  # as typing has it, without the time to import that
if TYPE_CHECKING:
    from costmodel.errors import ArchitectureError, InfeasibleError, InputError, PdplanError, UnknownNameError
    from optimizer.plans.plan import FleetEvaluation, Plan
    from optimizer.recommend.search import Level
    from optimizer.whatif.frontier import Frontier
    from reports.simulated import Simulated
    from search_spaces.fleet_file import StatedFleet, load_fleet
    from search_spaces.loader import load_problem
    from search_spaces.problem import Problem

    from .api import deploy, evaluate, frontier, optimize, simulate, whatif

__all__ = [
    "ArchitectureError",
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
    "ArchitectureError": "costmodel.errors",
    "FleetEvaluation": "optimizer.plans.plan",
    "Frontier": "optimizer.whatif.frontier",
    "InfeasibleError": "costmodel.errors",
    "InputError": "costmodel.errors",
    "Level": "optimizer.recommend.search",
    "PdplanError": "costmodel.errors",
    "Plan": "optimizer.plans.plan",
    "Problem": "search_spaces.problem",
    "Simulated": "reports.simulated",
    "StatedFleet": "search_spaces.fleet_file",
    "UnknownNameError": "costmodel.errors",
    "deploy": "pdplan.api",
    "evaluate": "pdplan.api",
    "frontier": "pdplan.api",
    "load_fleet": "search_spaces.fleet_file",
    "load_problem": "search_spaces.loader",
    "optimize": "pdplan.api",
    "simulate": "pdplan.api",
    "whatif": "pdplan.api",
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
