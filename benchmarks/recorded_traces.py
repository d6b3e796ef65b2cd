"""Plans for public traces: with random arrivals as bursty as the gaps of the trace, and with its requests as recorded.

    python benchmarks/recorded_traces.py DATA [--rates 0 20] [--only conv]

For each trace and rate (0: its own) two plans of Llama-3.1-70B on A100, H100 and H200, TTFT 2 s and TPOT 50 ms for 90 %
of the requests: their cost, the share in time that proved them, and the share in time when the trace's requests come in
their own order at that rate. A quarter of an hour.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from optimizer.fleets.build_plan import fleet_of_plan  # noqa: E402 -- the repository is found first
from optimizer.loads.instance import make_instance  # noqa: E402
from optimizer.plans.plan import Plan  # noqa: E402
from optimizer.recommend.optimize import optimize  # noqa: E402
from optimizer.verification.bench import make_bench  # noqa: E402
from reports.text import money  # noqa: E402
from search_spaces.loader import load_problem  # noqa: E402
from search_spaces.problem import Problem  # noqa: E402
from search_spaces.trace_summary import read_trace  # noqa: E402

TRACES = {
    "code": "AzureLLMInferenceTrace_code_2023.csv",
    "conv": "AzureLLMInferenceTrace_conv_2023.csv",
    "mooncake": "mooncake_conversation_trace.jsonl.gz",
}


def problem_for(trace: Path, rate: float, burstiness: float | None) -> Problem:
    """The problem of a trace at a rate [1/s], 0 for its own; burstiness: of random arrivals, None for recorded ones."""
    stated = {"request_rate": rate or None, "burstiness": burstiness}
    keys = ", ".join(f"{key}: {value}" for key, value in stated.items() if value is not None)
    text = (
        f"model: Llama-3.1-70B\nworkload: {{lengths: {{trace: {{path: {str(trace.resolve())!r}}}}}, {keys}}}\n"
        "slo: {ttft: 2s, tpot: 50ms}\naccelerators: [A100-80, H100, H200]\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "workload.yaml"
        path.write_text(text, "utf-8")
        return load_problem(path)


def in_order(plan: Plan, problem: Problem) -> str:
    """Share of the recorded requests in time, in their own order; problem: with them."""
    if not plan.pools:
        return "no plan"
    bench = make_bench(make_instance(problem))
    found = bench.replayed(fleet_of_plan(plan)[1])
    assert found is not None
    return f"{found.classes[0].attainment:.1%}"


def main() -> None:
    """Print a row for each trace, rate and kind of arrivals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.0, 20.0])
    parser.add_argument("--only", choices=TRACES, nargs="+", default=list(TRACES))
    asked = parser.parse_args()
    print(f"{'trace':9} {'req/s':>6} {'arrivals':>14} {'$/h':>9} {'proven':>8} {'in order':>9}  fleet")
    for name in asked.only:
        trace = asked.data / "traces" / TRACES[name]
        for rate in asked.rates:
            recorded = problem_for(trace, rate, None)
            random = problem_for(trace, rate, read_trace(trace).arrivals.burstiness)
            for problem in (random, recorded):
                plan = optimize(problem)
                kind = "recorded" if problem.recorded is not None else "random"
                told = f"{kind}, {problem.workload.burstiness:.2f}"
                each = [f"{one.replicas} x {one.gpus // one.replicas} {one.accelerator}" for one in plan.pools]
                cost = money(plan.cost_usd_per_hour or 0.0)
                proven = "" if plan.simulation is None else f"{plan.simulation.attainment:.1%}"
                row = f"{name:9} {problem.workload.request_rate:6.3g} {told:>14} {cost:>9} {proven:>8}"
                print(f"{row} {in_order(plan, recorded):>9}  {', '.join(each)}", flush=True)


if __name__ == "__main__":
    main()
