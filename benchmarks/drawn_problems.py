"""Problems drawn at random over what pdplan is asked: models, GPU types, lengths, bursts, SLOs, engines and limits."""

from __future__ import annotations

import numpy as np

from benchmarks.problems import Posed

MODELS = (
    "Llama-3.1-8B",
    "Qwen3-8B",
    "Mistral-7B",
    "Qwen3-32B",
    "Gemma-3-27B",
    "Llama-3.1-70B",
    "Qwen2.5-72B",
    "Mixtral-8x7B",
    "Qwen3-30B-A3B",
    "gpt-oss-120b",
    "gpt-oss-20b",
    "Qwen3-235B-A22B",
    "GLM-4.5-Air",
    "DeepSeek-V3",
)
SMALL = frozenset({"Llama-3.1-8B", "Qwen3-8B", "Mistral-7B", "gpt-oss-20b", "Qwen3-30B-A3B"})
"""Models that run on the GPUs of LITTLE too, and get more requests."""
NATIVE = {"gpt-oss-20b": "fp4", "gpt-oss-120b": "fp4", "DeepSeek-V3": "fp8"}
"""Weights that are published in one precision; those of the others are in 16 or 8 bits."""
GPUS = (
    *("A100-80", "H100", "H200", "B200", "L40S", "MI300X"),
    *("A10", "L4", "H20", "A100-40", "GH200", "RTX-PRO-6000"),
)
LITTLE = frozenset({"A10", "L4", "A100-40"})
ENGINES = ("vllm", "vllm", "sglang", "trtllm")
BURSTS = (1.0, 1.0, 1.3, 2.0, 3.0)
PERCENTILES = ("p90", "p90", "p95", "p99")
SEED = 20_261_122
"""Of the problems that are drawn where no other is asked for."""
LIMITED = 0.15
"""Share of the problems with a spare replica in each pool, and of those with one pool [1]."""


def drawn(number: int, seed: int = SEED) -> Posed:
    """The problem of a number; the same whatever other problems are drawn."""
    random = np.random.default_rng([number, seed])
    model = str(random.choice(MODELS))
    some = [gpu for gpu in GPUS if model in SMALL or gpu not in LITTLE]
    gpus = random.choice(some, int(random.integers(1, 5)), replace=False)
    rate, burstiness = _between(random, 0.5, 60.0 if model in SMALL else 25.0), random.choice(BURSTS)
    lengths, isl, osl = _lengths(random)
    changes = {
        "model.name": model,
        "accelerators": f"[{', '.join(map(str, gpus))}]",
        "workload.request_rate": f"{rate:.3g}",
        "workload.burstiness": str(burstiness),
        "workload.lengths": lengths,
        "workload.max_tokens": "32000",
        "slo": _slo(random, isl, osl),
        "workload.prefix_hit_share": str(random.choice((0.0, 0.0, 0.1, 0.4))),
        "engine": str(random.choice(ENGINES)),
        "seed": str(random.integers(0, 1000)),
        "model.weight_dtype": NATIVE.get(model) or str(random.choice(("bf16", "fp8"))),
    }
    limits = {"constraints.headroom": "{replicas: 1}", "constraints.max_pools": "1"}
    return "chat", changes | {key: value for key, value in limits.items() if random.random() < LIMITED}


def _between(random: np.random.Generator, low: float, high: float) -> float:
    """A value whose logarithm is uniform."""
    return float(np.exp(random.uniform(np.log(low), np.log(high))))


def _lengths(random: np.random.Generator) -> tuple[str, float, float]:
    """A histogram of up to twelve lengths; the median of its ISL before they were drawn, and mean OSL [token]."""
    isl_median, isl_spread = _between(random, 150.0, 6000.0), random.uniform(0.1, 1.1)
    osl_median, osl_spread = _between(random, 30.0, 800.0), random.uniform(0.1, 0.9)
    cells = int(random.integers(1, 13))
    isl = np.clip(isl_median * np.exp(isl_spread * random.standard_normal(cells)), 20, 24_000).astype(int)
    osl = np.clip(osl_median * np.exp(osl_spread * random.standard_normal(cells)), 2, 4000).astype(int)
    share = np.round(random.dirichlet(np.full(cells, 2.0)), 4)
    share[0] += 1.0 - share.sum()
    rows = (f"{{isl: {i}, osl: {o}, share: {s:.4f}}}" for i, o, s in zip(isl, osl, share, strict=True))
    return f"{{histogram: [{', '.join(rows)}]}}", isl_median, float(osl.mean())


def _slo(random: np.random.Generator, isl: float, osl: float) -> str:
    """One class with limits on TTFT and TPOT, one on the whole in a sixth of the problems, two classes in a sixth."""
    ttft, tpot = _between(random, 0.4, 10.0) * (1.0 + isl / 4000.0), _between(random, 0.02, 0.12)
    percentile, kind = random.choice(PERCENTILES), random.integers(0, 6)
    if kind == 0:
        fast = f"{{name: fast, share: 0.4, ttft: {ttft / 2.0:.3f}s, tpot: {tpot:.4f}s, percentile: {percentile}}}"
        return (
            f"[{fast}, {{name: slow, share: 0.6, ttft: {3.0 * ttft:.3f}s, tpot: {2.0 * tpot:.4f}s, percentile: p90}}]"
        )
    if kind == 1:
        return f"{{e2e: {ttft + 1.5 * osl * tpot:.2f}s, percentile: {percentile}}}"
    return f"{{ttft: {ttft:.3f}s, tpot: {tpot:.4f}s, percentile: {percentile}}}"
