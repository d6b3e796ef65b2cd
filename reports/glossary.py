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
"""Words and their meanings; docs/nomenclature.md is longer."""
