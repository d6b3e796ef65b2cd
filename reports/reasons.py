"""Tables of the sections Why, Settings and Trust: pools, hand-overs, reasons of settings, origins of figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from costmodel.errors import InputError
from costmodel.words import join_words
from optimizer.plans.plan import Plan, Pool, Transfer
from optimizer.plans.records import AccuracyRecord

from .deploy.settings import settings
from .deployable import described_by_catalog
from .document import Table, table_of
from .figures import pool_label
from .numbers import MISSING, count, duration, hourly, is_number, percent, signed_percent, significant
from .sentences import spread
from .sources import SourceRow
from .text import clean
from .words import bound_words, busiest_words, gpus_per_engine

_EFFORT: Final = re.compile(r" --effort[ =]\w+")
ORIGINS: Final = ("measured", "fitted", "vendor", "assumed")


def pools_table(plan: Plan) -> Table:
    """How each pool runs: its share of the price, what it uses of its GPUs, and what holds it up."""
    headers = ("pool", "#price", "#of all", "#MFU", "#MBU", "#FLOP/byte", "#ridge", "bound by", "busiest, on average")
    total = plan.cost_usd_per_hour
    rows = []
    for pool in sorted(plan.pools, key=lambda pool: (-pool.usd_per_hour, pool.id)):
        at = pool.operating_point
        share = percent(pool.usd_per_hour / total) if total else MISSING
        figures = (percent(at.mfu), percent(at.mbu), significant(at.arithmetic_intensity), significant(at.ridge_point))
        ends = (bound_words(at.bound_by), busiest_words(at))
        rows.append((pool_label(pool), hourly(pool.usd_per_hour), share, *figures, *ends))
    return table_of(headers, rows)


def hand_over_sentence(plan: Plan) -> str:
    """Say what share of the median TTFT the longest KV hand-over takes; empty where nothing is handed over."""
    known = [move for move in plan.transfers if is_number(move.seconds_per_request)]
    median = plan.ttft_s.p50 if plan.ttft_s is not None else None
    if not known or not is_number(median) or median <= 0:
        return ""
    longest = max(known, key=_seconds)
    return (
        f"Handing over the KV cache of a mean request takes {duration(longest.seconds_per_request)}, "
        f"{percent(longest.seconds_per_request / median)} of the median TTFT of {duration(median)}."
    )


def _seconds(move: Transfer) -> float:
    return move.seconds_per_request


def worth_hint(plan: Plan) -> str:
    """Name the command that says what serving's features are worth; empty where that is said or cannot be."""
    if plan.worth or plan.objective != "min_cost" or not plan.pools:
        return ""
    command = clean(plan.provenance.run.command, 300) or "pdplan optimize workload.yaml"
    return f"{_EFFORT.sub('', command)} --effort thorough"


def settings_table(plan: Plan) -> Table:
    """Every setting that shaped the prediction with its reason; empty where the deployment files know none.

    A plan of a model or of accelerators that only a file describes has none: the page must not depend on what lies on
    the disk.
    """
    headers = ("setting", "value", "why")
    if not described_by_catalog(plan):
        return table_of(headers, ())
    try:
        rows = settings(plan)
    except InputError:
        return table_of(headers, ())
    return table_of(headers, [(clean(row.setting), clean(row.value, 400), clean(row.why, 200)) for row in rows])


def origins_table(rows: Sequence[SourceRow], plan: Plan) -> Table:
    """How many figures of each accelerator are measured, fitted, the vendor's or assumed; those of the fleet first."""
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        counts.setdefault(row.item, Counter())[row.origin] += 1
    bought = {clean(name, 30) for name in plan.gpus}
    lines = [
        (name, "yes" if name in bought else "no", *(str(found[origin]) for origin in ORIGINS))
        for name, found in sorted(counts.items(), key=lambda item: (item[0] not in bought, item[0]))
    ]
    return table_of(("accelerator", "in the fleet", *(f"#{origin}" for origin in ORIGINS)), lines)


def scope_words(plan: Plan) -> tuple[tuple[str, str], ...]:
    """What of the workload is stated beside its lengths: where they come from, and by which rule routing is."""
    workload: Any = plan.provenance.inputs.get("workload")
    lengths = workload.get("lengths") if isinstance(workload, Mapping) else None
    source = lengths.get("source") if isinstance(lengths, Mapping) else None
    return (("lengths from", clean(str(source), 200)),) if source else ()


def engines_table(pools: Sequence[Pool]) -> Table:
    """What each pool is run with."""
    names = (
        "pool",
        "role",
        "accelerator",
        "replicas",
        "of which spare",
        "GPUs per replica",
        "tensor_parallel",
        "pipeline_parallel",
        "expert_parallel",
        "data_parallel",
        "weight_dtype",
        "kv_dtype",
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_model_len",
        "memory_fraction",
        "price",
    )
    rows = [
        (
            clean(pool.id, 20),
            pool.role,
            clean(pool.accelerator),
            count(pool.replicas),
            count(pool.spare_replicas),
            count(gpus_per_engine(pool)),
            count(pool.tensor_parallel),
            count(pool.pipeline_parallel),
            count(pool.expert_parallel),
            count(pool.data_parallel),
            clean(pool.weight_dtype, 12),
            clean(pool.kv_dtype, 12),
            count(pool.max_num_seqs),
            count(pool.max_num_batched_tokens),
            count(pool.max_model_len),
            significant(pool.memory_fraction),
            hourly(pool.usd_per_hour),
        )
        for pool in pools
    ]
    return table_of(names, tuple(rows))


def step_errors_table(plan: Plan) -> Table:
    """By which factors step times may be off, nine times in ten."""
    headers = ("accelerator", "#prompts alone", "#steps that decode", "kernels")
    rows = [
        (
            clean(row.accelerator),
            spread(row.prefill, lambda factor: f"×{factor:.2f}"),
            spread(row.decode, lambda factor: f"×{factor:.2f}"),
            "measured" if row.measured else "a relative's",
        )
        for row in plan.step_errors
    ]
    return table_of(headers, rows)


def accuracy_rows(plan: Plan) -> list[AccuracyRecord]:
    """What is on record of the fleet's accelerators and ways of serving; of all that were on offer without a fleet."""
    modes = {"colocated" if pool.role == "colocated" else "disaggregated" for pool in plan.pools}
    used = {(pool.accelerator, mode) for pool in plan.pools for mode in modes}
    return [row for row in plan.accuracy if not used or (row.accelerator, row.mode) in used]


def accuracy_sentence(plan: Plan) -> str:
    """Say on which of the fleet's accelerators serving this model with this engine was measured."""
    own = [row for row in accuracy_rows(plan) if row.model and row.engine]
    if not own:
        return ""
    what = f"{clean(plan.model)} on {clean(plan.engine, 20)}"
    measured = list(dict.fromkeys(clean(row.accelerator, 24) for row in own if row.rows))
    missing = [name for name in dict.fromkeys(clean(row.accelerator, 24) for row in own) if name not in measured]
    said = [f"Serving {what} was measured on {join_words(measured)}"] if measured else []
    none = f"no measurement of serving {what} on {join_words(missing)} is on record"
    return "; ".join([*said, *([none] if missing else [])]).replace("no m", "No m", 0 if said else 1) + "."


def accuracy_table(plan: Plan) -> Table:
    """Errors of predicted TTFT and TPOT on record, relative to the measured values."""
    headers = (
        "accelerator",
        "mode",
        "engine",
        "model",
        "#measured",
        "#TTFT off by",
        "#TTFT bias",
        "#TPOT off by",
        "#TPOT bias",
    )
    rows = [
        (
            clean(row.accelerator),
            row.mode,
            clean(row.engine, 20) or "any",
            clean(row.model) or "any",
            count(row.rows) if row.rows else "no measurement",
            percent(row.ttft_median_abs),
            signed_percent(row.ttft_bias),
            percent(row.tpot_median_abs),
            signed_percent(row.tpot_bias),
        )
        for row in accuracy_rows(plan)
    ]
    return table_of(headers, rows)
