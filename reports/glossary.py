"""What the words of the report mean, for a reader who does not serve models for a living."""

from __future__ import annotations

from typing import Final

WORDS: Final = (
    ("prefill, decode", "reading a prompt, which gives the first token; generating the other tokens one by one"),
    ("colocated", "replicas that do both; prefill replicas hand the KV cache over to decode replicas instead"),
    ("TTFT, TPOT", "time to the first token; time for each output token after it"),
    ("SLO, goal", "the limits on a request's TTFT and TPOT; the share of requests that has to keep all of them"),
    ("p90", "what nine in ten requests stay within; p50, p95 and p99 likewise"),
    ("goodput", "the highest request rate at which every SLO is met"),
    ("slack", "what is left of a limit, as a share of it; the limit with the least is what binds"),
    (
        "3 x H100 TP2 PP2",
        "three replicas, each split over 2 × 2 GPUs: layers by TP, stages by PP; EP: experts, DP: requests",
    ),
    ("KV cache", "what a replica keeps in GPU memory for every token of its running requests"),
    ("request slots", "requests that a replica runs at once (max_num_seqs); its chunk is max_num_batched_tokens"),
    ("MFU, MBU", "share of a GPU's peak FLOP/s, and of its peak memory bandwidth, that a step uses"),
    ("ridge", "FLOP per byte from which on a GPU is bound by compute, no longer by memory bandwidth"),
)
"""Words of the report and their meanings; docs/glossary.md has these and more."""

MORE: Final = (
    ("workload", "what has to be served: lengths of requests, how they arrive, prefixes that they share, SLO classes"),
    ("ISL, OSL", "input length of a request, its prompt; output length, its answer; both in tokens"),
    ("request rate", "mean number of requests that arrive per second"),
    ("burstiness", "how unevenly requests arrive; 1 is random (Poisson), 0 is like clockwork"),
    ("SLO class", "requests that share one set of limits, such as chat or batch"),
    ("attainment", "share of a class's requests that meet all of its limits"),
    ("meets, misses, undecided", "the lower end of the 95 % interval of the attainment reaches the goal; the upper end "
     "does not; the goal lies between the two ends"),
    ("engine", "vLLM, SGLang or TensorRT-LLM, with the settings that one server process group is started with"),
    ("replica", "one running copy of an engine; it may span several GPUs"),
    ("role", "what a replica does: prefill, decode, or both (colocated)"),
    ("pool", "replicas with the same settings in one role"),
    ("fleet", "all pools, and how requests are routed over them"),
    ("plan", "a fleet with its predictions, its proof and its alternatives; the file is plan.json"),
    ("alternative", "another fleet for the same workload, with a number: pdplan deploy plan.json --alternative 2"),
    ("spare replica", "a replica that the demand does not need, kept for the loss of another one"),
    ("headroom", "how much more demand the fleet serves before it misses an SLO"),
    ("by formula", "predicted by queueing formulas, in milliseconds of computing"),
    ("in simulation", "judged by simulating every request, queue, batch and KV block"),
    ("cheapest fleet found", "no fleet of one pool, or of a prefill and a decode pool, is cheaper by formula"),
    ("floor", "the least cost of fleets of any shape under this model; no fleet can cost less"),
    ("risk", "what happens if the GPUs are as slow as the worst 5 % of past predictions"),
    ("chunk", "tokens of one step; long prompts are computed in chunks between the tokens of other requests"),
    ("prefix hits", "share of the prompt tokens whose KV is in a cache already"),
    ("hand-over", "sending a request's KV cache from a prefill replica to a decode replica"),
    ("target", "what runs the fleet: plain vLLM, SGLang or TensorRT-LLM, NVIDIA Dynamo, or llm-d"),
    ("price basis", "what a price is for: on-demand, reserved, spot, or the cost of ownership (tco)"),
    ("break-even", "the value of a price or of another lever at which another fleet becomes the cheapest"),
    ("origin", "where a figure comes from: a data sheet (vendor), measured, fitted, or assumed"),
)  # fmt: skip
"""More words and their meanings, for docs/glossary.md; docs/nomenclature.md has the names and units of quantities."""
