"""Fits the few parameters of each serving engine to measured TTFT and TPOT; says how wrong it is on held-out models.

    python benchmarks/fit_serving.py            fit, leave one model and one GPU out, print
    python benchmarks/fit_serving.py --write    and rewrite costmodel/catalog/{engines,serving_error}.yaml

Data: serving/closed_loop.csv and serving/r1_2026.csv in PDPLAN_DATA, else ../shared/data, with the flags of their
scripts. Kernels are those of the catalog: fit them first. Nineteen rows are fitted with the prefill layout of their
public recipe in place of the label (`serving_layouts`).

Per engine, ten parameters of the colocated steady state (costmodel/serving/policy.py); for all engines together, three
of disaggregation and one of data-parallel lanes. With r = ln(predicted / measured), the loss is the mean of
r^2 / (r^2 + c^2) (Geman and McClure 1987), which counts rows that are near and lets go of those that no model explains
(warm-up, prefix caches, mislabelled load); a pull towards PRIOR, which is what theory says, settles what the rows leave
open. One fit with all models goes into the catalog; its error is that of the fits that never saw the model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from itertools import chain
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from serving_intervals import Logs, Steadies, by_stratum, coverage, factors, logs_of, residuals_of  # noqa: E402
from serving_tables import FILES, Table, load_tables, plausible  # noqa: E402

from costmodel.accelerator import Origin  # noqa: E402
from costmodel.host import EngineOverhead  # noqa: E402
from costmodel.serving.policy import Scheduler, ServingPolicy  # noqa: E402
from costmodel.units import MICRO  # noqa: E402
from reports.answers.validation import LEAST_RANKED, kendall_tau  # noqa: E402
from search_spaces.engines import FittedServing, engine_names, load_serving_policy, serving_policy  # noqa: E402

Array = NDArray[np.float64]
Prior = dict[str, tuple[float, float]]

PRIOR = {
    "step_us": (400.0, 0.5),
    "request_us": (12.0, 0.4),
    "launch_us": (500.0, 0.7),
    "arrival_ms": (20.0, 0.7),
    "frontend_ms": (1.5, 0.7),
    "prefill_wait_fixed": (2.5, 0.3),
    "prefill_wait_random": (1.8, 0.3),
    "decode_wait": (1.0, 0.3),
    "interference": (1.0, 0.15),
    "burst_fixed": (0.12, 0.3),
    "burst_random": (0.17, 0.3),
}
"""Where a parameter is drawn to, and how far (in its logarithm) it may stray cheaply. A prompt waits for the rest of a
step with other prompts and then for its own; a prompt adds what it takes alone; the first of ten waves is a burst. The
times are round figures between the engines'."""
TOGETHER = {"burst_fixed": (0.9, 0.15), "burst_random": (0.25, 0.3)}
"""What differs where prompts run first: a wave of equal requests prefills as one, so it ends as one and stays one."""
SHARED_PRIOR = {
    "lane_balance": (1.2, 0.5),
    "handover_ms": (80.0, 0.5),
    "handover_wait": (1.4, 0.5),
    "handover_burst": (0.25, 0.3),
}
PULL = 0.015
"""Weight of a parameter's squared distance from its prior, in units of the second figure."""
SCALE_TTFT, SCALE_TPOT = 0.35, 0.2
"""The c of the loss: |ln ratio| at which a row counts half."""
BIAS_WEIGHT = 0.3
"""Weight of the median of r: rows that no model explains are mostly slow, and letting go of them alone would make the
rest look slow too seldom."""
SOURCE = "closed-loop TTFT and TPOT of serving/closed_loop.csv (InferenceX and NVIDIA), with the catalog's kernels"
CATALOG = ROOT / "costmodel" / "catalog"
ERROR_HEAD = """# How wrong the predictions are, by the residuals of models that the fit never saw; written by
# benchmarks/fit_serving.py --write. Measured lies between low and high times the prediction nine times in ten.
"""
LEAST_AT_ONE = ("prefill_wait_fixed", "prefill_wait_random", "lane_balance", "handover_wait")
"""Parameters that are one plus something."""


def policy_of(engine: str, own: Array, shared: Array) -> ServingPolicy:
    """The policy of an engine whose parameters are these logarithms (of the excess over 1 for LEAST_AT_ONE)."""
    named = {**_unpack(PRIOR, own), **_unpack(SHARED_PRIOR, shared)}
    step, request = named.pop("step_us"), named.pop("request_us")
    overhead = EngineOverhead(step * MICRO, request * MICRO, Origin.FITTED, "trial")
    named = {key: min(value, 1.0) if "burst" in key else value for key, value in named.items()}
    return serving_policy(engine, overhead, FittedServing(**named))


def _unpack(prior: Prior, logs: Array) -> dict[str, float]:
    return {
        name: float(np.exp(log)) + (1.0 if name in LEAST_AT_ONE else 0.0) for name, log in zip(prior, logs, strict=True)
    }


def prior_of(engine: str) -> Prior:
    """What is believed of an engine before any measurement."""
    first = load_serving_policy(engine).scheduler is Scheduler.PREFILL_FIRST
    return {**PRIOR, **TOGETHER} if first else PRIOR


def start(prior: Prior) -> Array:
    """The logarithms of the prior."""
    return np.array([np.log(value - (1.0 if name in LEAST_AT_ONE else 0.0)) for name, (value, _) in prior.items()])


def pull(prior: Prior, point: Array) -> float:
    """What the distance from the prior costs."""
    return PULL * float(np.sum(((point - start(prior)) / np.array([reach for _, reach in prior.values()])) ** 2))


def residuals(tables: Sequence[Table], policy: ServingPolicy) -> tuple[Array, Array]:
    """ln(predicted / measured) of TTFT and TPOT over all rows."""
    found = [table.predict(policy) for table in tables]
    ttft = [np.log(steady.ttft / table.ttft)[:, 0] for steady, table in zip(found, tables, strict=True)]
    tpot = [np.log(steady.tpot / table.tpot)[:, 0] for steady, table in zip(found, tables, strict=True)]
    both = np.concatenate(ttft), np.concatenate(tpot)
    return both[0][np.isfinite(both[0])], both[1][np.isfinite(both[1])]


def loss_of(ttft: Array, tpot: Array) -> float:
    """Mean of the saturating residuals, and the bias."""
    parts = ((ttft, SCALE_TTFT), (tpot, SCALE_TPOT))
    near = sum(np.mean(log**2 / (log**2 + scale**2)) for log, scale in parts)
    return float(near + BIAS_WEIGHT * (abs(np.median(ttft)) + abs(np.median(tpot))))


def minimise(loss: Callable[[Array], float], origin: Array, rounds: int = 300) -> Array:
    """The lowest point found by the simplex method of Nelder and Mead (1965)."""
    simplex = [origin, *(origin + 0.4 * axis for axis in np.eye(origin.size))]
    values = [loss(point) for point in simplex]
    for _ in range(rounds):
        order = np.argsort(values, kind="stable")
        simplex, values = [simplex[i] for i in order], [values[i] for i in order]
        centre = np.mean(simplex[:-1], axis=0)
        tried = centre + (centre - simplex[-1])
        value = loss(tried)
        if value < values[0]:
            further = centre + 2.0 * (centre - simplex[-1])
            beyond = loss(further)
            simplex[-1], values[-1] = (further, beyond) if beyond < value else (tried, value)
        elif value < values[-2]:
            simplex[-1], values[-1] = tried, value
        else:
            tried = centre + 0.5 * (simplex[-1] - centre)
            value = loss(tried)
            if value < values[-1]:
                simplex[-1], values[-1] = tried, value
            else:
                simplex = [simplex[0], *(simplex[0] + 0.5 * (point - simplex[0]) for point in simplex[1:])]
                values = [values[0], *(loss(point) for point in simplex[1:])]
    return simplex[int(np.argmin(values))]


@dataclass(frozen=True)
class Fit:
    """Parameters as logarithms: of each engine, and shared."""

    own: dict[str, Array]
    shared: Array

    def policy(self, engine: str) -> ServingPolicy:
        """The fitted policy of an engine."""
        return policy_of(engine, self.own[engine], self.shared)


def fit(tables: Sequence[Table]) -> Fit:
    """Colocated rows decide each engine's own parameters, then all others the shared ones."""
    shared = start(SHARED_PRIOR)
    own: dict[str, Array] = {}
    for engine in engine_names():
        mine = [each for each in tables if each.batch.engine == engine and not each.batch.split]
        own[engine] = start(prior_of(engine))
        if mine:
            own[engine] = minimise(_own_loss(mine, engine, shared), own[engine])
    apart = [each for each in tables if each.batch.split or np.any(each.lanes > 1)]
    if apart:
        shared = minimise(_shared_loss(apart, own), shared, 150)
    return Fit(own, shared)


def _own_loss(tables: Sequence[Table], engine: str, shared: Array) -> Callable[[Array], float]:
    prior = prior_of(engine)

    def loss(point: Array) -> float:
        ttft, tpot = residuals(tables, policy_of(engine, point, shared))
        return loss_of(ttft, tpot) + pull(prior, point)

    return loss


def _shared_loss(tables: Sequence[Table], own: dict[str, Array]) -> Callable[[Array], float]:
    def loss(point: Array) -> float:
        both = [residuals([each], policy_of(each.batch.engine, own[each.batch.engine], point)) for each in tables]
        ttft, tpot = (np.concatenate(part) for part in zip(*both, strict=True))
        return loss_of(ttft, tpot) + pull(SHARED_PRIOR, point)

    return loss


def score(name: str, ttft: Array, tpot: Array) -> None:
    """One line of median error and bias."""
    parts = [
        f"{what} {np.median(np.abs(np.expm1(log))):6.1%} p90 {np.quantile(np.abs(np.expm1(log)), 0.9):5.0%} "
        f"bias {np.median(np.expm1(log)):+6.1%}"
        for what, log in (("TTFT", ttft), ("TPOT", tpot))
    ]
    print(f"{name:<44} {ttft.size:>5}  {'   '.join(parts)}")


def show(fitted: Fit) -> None:
    """Print the parameters."""
    for engine, logs in fitted.own.items():
        print(engine, {name: round(value, 3) for name, value in _unpack(PRIOR, logs).items()})
    print("shared", {name: round(value, 3) for name, value in _unpack(SHARED_PRIOR, fitted.shared).items()})


def groups_of(tables: Sequence[Table], most: int = 3) -> dict[str, list[int]]:
    """Indices of the tables that count together: by mode, mode and engine, and all three with the model."""
    groups: dict[str, list[int]] = {}
    for depth in range(1, most + 1):
        for index, table in enumerate(tables):
            mode = "disaggregated" if table.batch.split else "colocated"
            key = " ".join((mode, table.batch.engine, table.batch.model.name)[:depth])
            groups.setdefault(key, []).append(index)
    return dict(sorted(groups.items(), key=lambda item: (item[0].count(" "), item[0])))


def report(tables: Sequence[Table], logs: Logs, depth: int = 3) -> None:
    """Errors by mode, engine and model, or by the first `depth` of them."""
    for key, members in groups_of(tables, depth).items():
        score(key, *(np.concatenate([logs[i][part] for i in members]) for part in (0, 1)))


def on_accelerators(tables: Sequence[Table], steadies: Steadies) -> list[dict[str, object]]:
    """Errors by accelerator and mode: of all engines, of each engine, and of each engine with each model."""
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for table, (ttft, tpot) in zip(tables, logs_of(tables, steadies), strict=True):
        mode = "disaggregated" if table.batch.split else "colocated"
        for each, *pair in zip(table.batch.deployments, ttft, tpot, strict=True):
            key = (each.prefill.accelerator.name, mode, table.batch.engine, table.batch.model.name)
            for depth in (2, 3, 4):
                groups.setdefault(key[:depth], []).append((pair[0], pair[1]))
    return [
        dict(zip(("accelerator", "mode", "engine", "model"), key, strict=False))
        | {"rows": len(pairs), **_figures(*np.expm1(np.array(pairs)).T)}
        for key, pairs in sorted(groups.items())
    ]


def _figures(ttft: Array, tpot: Array) -> dict[str, float]:
    """Median error and bias in percent."""
    return {
        f"{name}_{statistic}_pct": round(100.0 * float(np.median(value)), 1)
        for name, error in (("ttft", ttft), ("tpot", tpot))
        for statistic, value in (("median_abs", np.abs(error)), ("bias", error))
    }


def rank_correlation(tables: Sequence[Table], steadies: Steadies) -> float:
    """Kendall's tau of throughput per GPU among the configs of a model and accelerator."""
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for table, steady in zip(tables, steadies, strict=True):
        load = table.batch.load
        work = load.concurrency * load.osl
        ours = (work / (steady.ttft + load.gaps * steady.tpot))[:, 0]
        theirs = (work / (table.ttft + load.gaps * table.tpot))[:, 0]
        for each, predicted, measured in zip(table.batch.deployments, ours, theirs, strict=True):
            engines = (each.row.prefill.workers if each.decode is None else 1) / each.row.gpus
            key = (each.row.model, each.row.accelerator)
            points.setdefault(key, []).append((predicted * engines, measured * engines))
    large = [np.array(pairs) for pairs in points.values() if len(pairs) >= LEAST_RANKED]
    return float(np.average([kendall_tau(*pairs.T) for pairs in large], weights=[len(pairs) for pairs in large]))


def write_engines(fitted: Fit) -> None:
    """Put the fitted figures into engines.yaml; what is above them stays."""
    path = CATALOG / "engines.yaml"
    text = path.read_text("utf-8")
    head = text[: text.index("\nsglang:") if text.index("sglang:") < text.index("vllm:") else text.index("\nvllm:")]
    content = yaml.safe_load(text)
    for engine, logs in fitted.own.items():
        own = {name: float(f"{value:.3g}") for name, value in _unpack(PRIOR, logs).items()}
        entry = content[engine]
        entry["step_overhead_us"], entry["per_request_overhead_us"] = own.pop("step_us"), own.pop("request_us")
        entry["origin"], entry["source"] = "fitted", SOURCE
        shared = {name: float(f"{value:.3g}") for name, value in _unpack(SHARED_PRIOR, fitted.shared).items()}
        entry["serving"]["fitted"] = {**own, **shared}
    body = yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True)
    path.write_text(f"{head}\n{body}", "utf-8")


def write_errors(tables: Sequence[Table], steadies: Steadies) -> None:
    """Write serving_error.yaml from held-out predictions."""
    logs = logs_of(tables, steadies)
    groups = groups_of(tables)
    inside = coverage(tables, steadies, groups)
    held_out = []
    for key, members in groups.items():
        pair = [np.expm1(np.concatenate([logs[i][part] for i in members])) for part in (0, 1)]
        figures = _figures(*pair)
        shares = zip(("ttft", "tpot"), inside[key], strict=True)
        figures |= {f"{name}_interval90_coverage": round(share, 3) for name, share in shares}
        held_out.append({"group": key, "rows": int(pair[0].size), **figures})
    content = {
        "source": SOURCE,
        "date": date.today().isoformat(),
        "kendall_tau": round(rank_correlation(tables, steadies), 3),
        "held_out": held_out,
        "held_out_on": on_accelerators(tables, steadies),
        "quantities": {
            quantity: {key: asdict(one) for key, one in strata.items()}
            for quantity, strata in factors(list(chain(*residuals_of(tables, steadies)))).items()
        },
    }
    body = yaml.safe_dump(content, sort_keys=False, width=120, default_flow_style=None)
    (CATALOG / "serving_error.yaml").write_text(f"{ERROR_HEAD}{body}", "utf-8")


def gpus_of(table: Table) -> list[str]:
    """The GPU of every row."""
    return [each.prefill.accelerator.name for each in table.batch.deployments]


def by_gpu(tables: Sequence[Table], name: str, *, without: bool = False) -> list[Table]:
    """The rows on a GPU, or all others."""
    kept = [(table, np.array([(gpu == name) != without for gpu in gpus_of(table)])) for table in tables]
    return [table.only(keep) for table, keep in kept if keep.any()]


def predicted(tables: Sequence[Table], fitted: Fit) -> Steadies:
    """The steady states of all tables."""
    return [table.predict(fitted.policy(table.batch.engine)) for table in tables]


def report_files(title: str, tables: Sequence[Table], steadies: Steadies, depth: int) -> None:
    """Errors in each file, by mode, engine and model, or by the first `depth` of them."""
    logs = logs_of(tables, steadies)
    for file in FILES:
        here = [index for index, table in enumerate(tables) if table.file == file]
        if here:
            print(f"\n{title}: {file}")
            report([tables[i] for i in here], [logs[i] for i in here], depth)


def leave_gpus_out(tables: Sequence[Table], sound: Sequence[Table]) -> None:
    """Print the errors on each GPU with parameters fitted to all others."""
    found: list[Table] = []
    steadies: Steadies = []
    for name in sorted({gpu for table in tables for gpu in gpus_of(table)}):
        here = by_gpu(tables, name)
        found += here
        steadies += predicted(here, fit(by_gpu(sound, name, without=True)))
    report_files("leave one GPU out", found, steadies, depth=2)


def main() -> None:
    """Fit, report, and write if asked to."""
    tables, as_run = load_tables(), load_tables(corrected=True)
    sound = plausible(as_run)
    rows = [sum(table.ttft.size for table in each) for each in (tables, sound)]
    print(f"{rows[0]} rows, of which {rows[0] - rows[1]} contradict physics or themselves and are not fitted")
    everything = fit(sound)
    show(everything)
    report_files("fitted to all models", tables, predicted(tables, everything), depth=3)
    alone = fit([table for table in sound if table.file == FILES[0]])
    others = [table for table in tables if table.file != FILES[0]]
    report_files(f"fitted to {FILES[0]} alone", others, predicted(others, alone), depth=2)
    families = sorted({table.family for table in tables})
    held = {family: fit([table for table in sound if table.family != family]) for family in families}

    def left_out(each: Sequence[Table]) -> Steadies:
        return [table.predict(held[table.family].policy(table.batch.engine)) for table in each]

    steadies = left_out(tables)
    report_files("leave one model out", tables, steadies, depth=3)
    report_files("leave one model out, layouts as run, rows that contradict nothing", sound, left_out(sound), depth=2)
    leave_gpus_out(tables, sound)
    print(f"\nKendall's tau of throughput per GPU: {rank_correlation(tables, steadies):.3f}")
    print("\nheld-out rows inside 90 % intervals that come from the other models")
    for key, (ttft, tpot) in coverage(tables, steadies, groups_of(tables)).items():
        print(f"{key:<44} TTFT {ttft:4.0%}   TPOT {tpot:4.0%}")
    print("\nall rows inside the bars that they give")
    for key, (rows_there, ttft, tpot) in by_stratum(list(chain(*residuals_of(tables, steadies)))).items():
        print(f"{key:<44} {rows_there:>5}  TTFT {ttft:4.0%}   TPOT {tpot:4.0%}")
    if "--write" in sys.argv[1:]:
        write_engines(everything)
        write_errors(tables, steadies)
        print("costmodel/catalog/engines.yaml and serving_error.yaml written")


if __name__ == "__main__":
    main()
