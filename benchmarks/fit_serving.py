"""Fits the few parameters of each serving engine to measured TTFT and TPOT; says how wrong it is on held-out models.

    python benchmarks/fit_serving.py            fit, leave one model and one GPU out, print
    python benchmarks/fit_serving.py --write    and rewrite costmodel/catalog/{engines,serving_error}.yaml

Data: serving/closed_loop.csv and serving/r1_2026.csv in PDPLAN_DATA, else ../shared/data, with the flags of their
scripts. Kernels are those of the catalog: fit them first. Nineteen rows are fitted with the prefill layout of their
public recipe in place of the label (`serving_layouts`).

For all engines together: the time before a prompt starts, that of the host per step (what a request adds stays as it is
in the catalog, since no row shows it), what launching a kernel takes where no compiler saves it, and three figures of
disaggregation. For each generation of GPUs: how much later than its prompt's steps a first token comes. With r =
ln(predicted / measured), the loss is the mean of r^2 / (r^2 + c^2) (Geman and McClure 1987), which counts rows that
are near and lets go of those that no model explains (warm-up, prefix caches, mislabelled load); a pull towards PRIOR,
which is what theory says, settles what the rows leave open. One fit with all models goes into the catalog; its error
is that of the fits that never saw the model.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from itertools import chain
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from serving_intervals import Logs, Steadies, by_stratum, coverage, factors, logs_of, residuals_of  # noqa: E402
from serving_tables import (  # noqa: E402
    FILES,
    GENERATIONS,
    PREFILL_WORKER,
    Table,
    generation,
    load_tables,
    merged,
    plausible,
)

from costmodel.engine import ServingPolicy  # noqa: E402
from costmodel.queues.steady_state import Steady  # noqa: E402
from costmodel.units import MICRO  # noqa: E402
from reports.answers.accuracy import LEAST_RANKED, kendall_tau  # noqa: E402
from search_spaces.engines import ENGINES, load_serving_policy, serving_policy  # noqa: E402

Array = NDArray[np.float64]
Prior = dict[str, tuple[float, float]]

PRIOR = {
    "arrival_ms": (20.0, 0.7),
    "step_us": (400.0, 0.5),
    "launch_us": (40.0, 1.0),
    "handover_ms": (80.0, 0.5),
    "handover_burst": (0.06, 0.5),
    PREFILL_WORKER: (1.1, 0.1),
}
"""Where a parameter is drawn to, and how far (in its logarithm) it may stray cheaply: round figures."""
WITH_POLICY = tuple(name for name in PRIOR if name not in ("step_us", PREFILL_WORKER))
"""Those of them that stand with each engine's serving policy."""
COMPILED = ("vllm",)
"""Engines that compile the model by default, so that launching the kernels of a prompt one by one takes no time that
counts (vLLM: `--compilation-config`, level 3). The others launch them from PyTorch."""
FACTOR = (1.3, 0.3)
"""The same of the time until a first token over that of its prompt's steps, of every generation of GPUs."""
PULL = 0.015
"""Weight of a parameter's squared distance from its prior, in units of the second figure."""
SCALE_TTFT, SCALE_TPOT = 0.35, 0.2
"""The c of the loss: |ln ratio| at which a row counts half."""
BIAS_WEIGHT = 0.3
"""Weight of the median of r: rows that no model explains are mostly slow, and letting go of them alone would make the
rest look slow too seldom."""
SOURCE = "TTFT and TPOT at fixed concurrency (InferenceX and NVIDIA), with the catalog's kernels"
ALL_GPUS = ("B200", "H100", "MI355X")
"""Generations with a factor of their own; one that no row shows has the mean of the others."""
APART = ("handover_ms", "handover_burst", PREFILL_WORKER)
"""Parameters that only disaggregated rows show."""
STEPS, LONGEST_STEP, LAST_STEP = 12, 0.4, 0.01
"""Most steps of a search, and the longest and shortest of the logarithms of the parameters."""
TOLERANCE = 0.05
"""Relative change of a figure that fits to other rows make as well; less than that does not change the catalog."""
NUDGE = 0.03
"""By which a logarithm is moved to see what follows."""
DAMPING, LESS_DAMPED, MORE_DAMPED = 0.02, 0.3, 5.0
"""Of the first step, and what becomes of it after steps that help and that do not."""
MIDDLE = 0.3
"""Share of the rows nearest to the median whose slopes are taken for its own."""
BIAS_FLOOR = 0.02
"""Bias below which its cost grows as its square."""
CATALOG = ROOT / "costmodel" / "catalog"
ERROR_HEAD = """# How wrong the predictions are, by the residuals of models that the fit never saw; written by
# benchmarks/fit_serving.py --write. Measured lies between low and high times the prediction nine times in ten.
"""


def prior_of(gpus: Sequence[str]) -> Prior:
    """What is believed of all parameters before any measurement."""
    return PRIOR | dict.fromkeys(gpus, FACTOR)


def start(prior: Prior) -> Array:
    """The logarithms of the prior."""
    return np.log([value for value, _ in prior.values()])


def pull(prior: Prior, point: Array) -> float:
    """What the distance from the prior costs."""
    return PULL * float(np.sum(((point - start(prior)) / np.array([reach for _, reach in prior.values()])) ** 2))


@dataclass(frozen=True)
class Fit:
    """Parameters by name: those of all engines, and the factors of GPUs."""

    values: Mapping[str, float]

    def policy(self, engine: str) -> ServingPolicy:
        """The fitted policy of an engine."""
        overhead = replace(load_serving_policy(engine).overhead, step=self.values["step_us"] * MICRO)
        return serving_policy(engine, overhead, self.figures(engine))

    def figures(self, engine: str) -> dict[str, float]:
        """The fitted figures of an engine's policy, by their keys in engines.yaml."""
        return {name: self.values[name] for name in WITH_POLICY} | ({"launch_us": 0.0} if engine in COMPILED else {})

    def predict(self, table: Table) -> Steady:
        """The steady state of a table."""
        return table.predict(self.policy(table.batch.engine), self.values)


def unpacked(prior: Prior, logs: Array) -> Fit:
    """The parameters that these logarithms stand for."""
    return Fit(dict(zip(prior, np.exp(logs).tolist(), strict=True)))


def residuals(tables: Sequence[Table], fitted: Fit) -> tuple[Array, Array]:
    """ln(predicted / measured) of TTFT and TPOT over all rows that have them."""
    found = logs_of(tables, [fitted.predict(table) for table in tables])
    ttft, tpot = (np.concatenate(part) for part in zip(*found, strict=True))
    return ttft[np.isfinite(ttft)], tpot[np.isfinite(tpot)]


def loss_of(ttft: Array, tpot: Array) -> float:
    """Mean of the saturating residuals, and the bias."""
    parts = ((ttft, SCALE_TTFT), (tpot, SCALE_TPOT))
    near = sum(np.mean(log**2 / (log**2 + scale**2)) for log, scale in parts)
    return float(near + BIAS_WEIGHT * (abs(np.median(ttft)) + abs(np.median(tpot))))


def downhill(pair: Sequence[Array], slopes: Sequence[Array]) -> tuple[Array, Array]:
    """Gradient and curvature of `loss_of`, halved: residuals reweighted (Geman and McClure), and the median's rows."""
    gradient, curvature = np.zeros(slopes[0].shape[1]), np.zeros((slopes[0].shape[1],) * 2)
    for log, slope, scale in zip(pair, slopes, (SCALE_TTFT, SCALE_TPOT), strict=True):
        weight = scale**2 / (log**2 + scale**2) ** 2 / log.size
        middle = float(np.median(log))
        away = np.abs(log - middle)
        bias = slope[away <= np.quantile(away, MIDDLE)].mean(axis=0)
        steep = 0.5 * BIAS_WEIGHT / max(abs(middle), BIAS_FLOOR)
        gradient += slope.T @ (weight * log) + steep * middle * bias
        curvature += (slope * weight[:, None]).T @ slope + steep * np.outer(bias, bias)
    return gradient, curvature


def fit(tables: Sequence[Table]) -> Fit:
    """Colocated rows decide all but what only disaggregated ones show; the latter decide that."""
    rows = merged(tables)
    gpus = sorted({generation(each) for table in tables for each in table.batch.deployments})
    belief = prior_of(gpus)
    whole = _fitted([table for table in rows if not table.batch.pools.apart], belief, start(belief), APART)
    apart = [table for table in rows if table.batch.pools.apart]
    values = dict(unpacked(belief, _fitted(apart, belief, whole, set(belief) - set(APART))).values)
    everywhere = float(np.exp(np.mean([np.log(values[gpu]) for gpu in gpus])))
    return Fit(dict.fromkeys(ALL_GPUS, everywhere) | values)


def _fitted(tables: Sequence[Table], belief: Prior, origin: Array, kept: Collection[str]) -> Array:
    """The parameters with the least loss over some rows; those named `kept` stay as they are.

    Damped Gauss-Newton steps (Levenberg 1944, Marquardt 1963) from the origin.
    """
    if not tables:
        return origin
    free = np.flatnonzero([name not in kept for name in belief])
    centre, stiff = start(belief)[free], PULL / np.array([reach for _, reach in belief.values()])[free] ** 2

    def seen(point: Array) -> tuple[Array, Array]:
        return residuals(tables, unpacked(belief, point))

    def cost(point: Array, pair: tuple[Array, Array]) -> float:
        return loss_of(*pair) + pull(belief, point)

    point, pair, damping = origin, seen(origin), DAMPING
    for _ in range(STEPS):
        moved = [seen(point + NUDGE * np.eye(point.size)[k]) for k in free]
        slopes = [np.stack([(part[q] - pair[q]) / NUDGE for part in moved], axis=1) for q in (0, 1)]
        gradient, curvature = downhill(pair, slopes)
        gradient, curvature = gradient + stiff * (point[free] - centre), curvature + np.diag(stiff)
        for _ in range(STEPS):
            step = np.zeros_like(point)
            damped = curvature + damping * np.diag(np.diag(curvature))
            step[free] = np.clip(-np.linalg.solve(damped, gradient), -LONGEST_STEP, LONGEST_STEP)
            trial = seen(point + step)
            if cost(point + step, trial) < cost(point, pair):
                point, pair, damping = point + step, trial, damping * LESS_DAMPED
                break
            damping *= MORE_DAMPED
        else:
            break
        if np.abs(step).max() < LAST_STEP:
            break
    return point


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
    print({name: float(f"{value:.3g}") for name, value in fitted.values.items()})


def groups_of(tables: Sequence[Table], most: int = 3) -> dict[str, list[int]]:
    """Indices of the tables that count together: by mode, mode and engine, and all three with the model."""
    groups: dict[str, list[int]] = {}
    for depth in range(1, most + 1):
        for index, table in enumerate(tables):
            mode = "disaggregated" if table.batch.pools.apart else "colocated"
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
        mode = "disaggregated" if table.batch.pools.apart else "colocated"
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
            engines = (each.row.prefill.count if each.decode is None else 1) / each.row.gpus
            key = (each.row.model, each.row.accelerator)
            points.setdefault(key, []).append((predicted * engines, measured * engines))
    large = [np.array(pairs) for pairs in points.values() if len(pairs) >= LEAST_RANKED]
    return float(np.average([kendall_tau(*pairs.T) for pairs in large], weights=[len(pairs) for pairs in large]))


def settled(before: float, after: float) -> float:
    """The figure of the catalog, or the new one where that is more than the fit can tell away from it."""
    new = float(f"{after:.3g}")
    return before if abs(new - before) <= TOLERANCE * before else new


def write_engines(fitted: Fit) -> None:
    """Put the fitted figures into engines.yaml, whose head stays, and into in_engine.yaml."""
    path = CATALOG / "engines.yaml"
    text = path.read_text("utf-8")
    head = text[: text.index("\nvllm:")]
    content = yaml.safe_load(text)
    for engine in sorted(ENGINES):
        entry = content[engine]
        entry["step_overhead_us"] = settled(entry["step_overhead_us"], fitted.values["step_us"])
        entry["origin"], entry["source"] = "fitted", SOURCE
        known = entry["serving"]["fitted"]
        fresh = fitted.figures(engine)
        entry["serving"]["fitted"] = {name: settled(known[name], value) for name, value in fresh.items()}
    body = yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True)
    path.write_text(f"{head}\n{body}", "utf-8")
    path = CATALOG / "in_engine.yaml"
    text = path.read_text("utf-8")
    gpus = yaml.safe_load(text)
    for name, entry in gpus.items():
        gpu = "H100" if name == "default" else GENERATIONS.get(name, name)
        entry["first_token"] = settled(entry["first_token"], fitted.values.get(gpu, entry["first_token"]))
        if name == "default":
            entry[PREFILL_WORKER] = float(f"{fitted.values[PREFILL_WORKER]:.3g}")
    body = "".join(f"{name}: {yaml.safe_dump(entry, default_flow_style=True)}" for name, entry in gpus.items())
    path.write_text(text[: text.index("default:")] + body, "utf-8")


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
    return [fitted.predict(table) for table in tables]


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
    sound = plausible(as_run, dict.fromkeys((*ALL_GPUS, PREFILL_WORKER), 1.0))
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
        return [held[table.family].predict(table) for table in each]

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
