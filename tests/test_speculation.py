"""Speculative decoding: tokens of a step, the step's width and draft, memory, formula against simulation, the plan."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.reference.lone_steps import step_seconds
from costmodel.engine import Draft, EngineConfig, Speculation, draft_layer, tokens_per_step, with_draft
from costmodel.errors import InputError
from costmodel.memory import kv_bytes_per_request_per_gpu, kv_bytes_per_token_per_gpu, weight_bytes_per_gpu
from costmodel.metric import Metric, Scope, metrics_of
from costmodel.simulator.steps import cost_steps
from costmodel.step import StepLoad, step_time_one
from optimizer.fleets.error_bars import catalog_remarks
from optimizer.loads.effort import Level
from optimizer.recommend.optimize import optimize
from reports.verdict import speculation_sentence
from search_spaces.catalog import load_catalog
from search_spaces.engines import load_serving_policy
from search_spaces.loader import load_problem
from search_spaces.models import load_model
from search_spaces.problem import Problem
from tests.toy import toy_config

R1, LLAMA, QWEN = (load_model(name) for name in ("DeepSeek-R1", "Llama-3.1-8B", "Qwen3.6-27B"))
OVERHEAD = load_serving_policy("vllm").overhead
WORKLOAD = """
name: drafts
model: {{name: Llama-3.1-8B, speculation: {speculation}}}
workload:
  request_rate: 20/s
  lengths: {{isl: {{lognormal: {{median: 600, p99: 3000}}}}, osl: {{lognormal: {{median: 250, p99: 900}}}}}}
slo: {slo}
accelerators: [H100]
search: {{preset: quick, tensor_parallel: [1], pipeline_parallel: [1], roles: [colocated]{search}}}
"""


def config(speculation: Speculation | None, *, tensor: int = 8) -> EngineConfig:
    h200 = load_catalog().accelerator("H200")
    return toy_config(h200, tensor=tensor, weight_dtype="fp8", max_model_len=16384, speculation=speculation)


def workload(
    folder: Path, speculation: str, search: str = "", slo: str = "{ttft: 2s, tpot: 10ms, attainment: 0.9}"
) -> Problem:
    path = folder / "drafts.yaml"
    path.write_text(WORKLOAD.format(speculation=speculation, search=search, slo=slo), encoding="utf-8")
    return load_problem(path)


@given(st.floats(0.0, 0.99), st.integers(0, 12))
def test_equal_acceptance_is_a_geometric_series(acceptance: float, tokens: int) -> None:
    expected = (1.0 - acceptance ** (tokens + 1)) / (1.0 - acceptance)
    assert tokens_per_step((acceptance,), tokens) == pytest.approx(expected)


def test_a_look_up_makes_a_step_as_wide_as_that_of_more_requests_but_reads_the_cache_once() -> None:
    """8 requests of 4 tokens each pass the matrices like 32 requests."""
    drafting = config(Speculation(Draft.NGRAM, 3, (0.5,)), tensor=1)
    plain = config(None, tensor=1)
    wide = step_time_one(LLAMA, drafting, OVERHEAD, StepLoad.decode(8.0, 4000.0))
    many = step_time_one(LLAMA, plain, OVERHEAD, StepLoad.decode(32.0, 4000.0))
    few = step_time_one(LLAMA, plain, OVERHEAD, StepLoad.decode(8.0, 4000.0))
    assert wide.gemm == pytest.approx(many.gemm)
    assert wide.communication == pytest.approx(many.communication)
    assert wide.host == pytest.approx(many.host)
    assert wide.attention_decode == pytest.approx(few.attention_decode, rel=0.05)


def test_the_host_deals_with_every_verified_token_and_launches_drafts_with_the_step() -> None:
    plain, drafting = config(None), config(Speculation(Draft.MTP, 3, (0.5,)))
    few, more = (step_time_one(R1, own, OVERHEAD, StepLoad.decode(8.0, 4000.0)).host for own in (plain, drafting))
    assert more - few == pytest.approx(3 * 8 * OVERHEAD.per_request)


def test_a_state_of_linear_attention_is_written_and_kept_for_every_verified_token() -> None:
    """A step reads it once, so that of four tokens moves five states where a plain one moves two."""
    plain, drafting = config(None, tensor=1), config(Speculation(Draft.NGRAM, 3, (0.5,)), tensor=1)
    few, more = (step_time_one(QWEN, own, OVERHEAD, StepLoad.decode(64.0, 1.0)) for own in (plain, drafting))
    moved = {float(work.attention_decode[0, 0]) for work in (few, more)}
    state = 64 * QWEN.state_bytes / plain.accelerator.bandwidth
    assert max(moved) - min(moved) == pytest.approx(3 * state, rel=0.25)
    held = kv_bytes_per_request_per_gpu(QWEN, drafting, 100.0, 0.0) - kv_bytes_per_request_per_gpu(
        QWEN, plain, 100.0, 0.0
    )
    assert held == pytest.approx(3 * QWEN.state_bytes)


@given(st.lists(st.floats(0.05, 1.0), min_size=1, max_size=5))
def test_the_steps_of_a_token_vary_as_draws_say(acceptance: list[float]) -> None:
    """Var(X) / E^3, with X drawn by hand: j tokens where the first j - 1 drafts count and the next does not."""
    chances = [math.prod(acceptance[:j]) for j in range(len(acceptance) + 1)]
    draws = [chance - after for chance, after in zip(chances, [*chances[1:], 0.0], strict=True)]
    mean = sum(draw * (j + 1) for j, draw in enumerate(draws))
    variance = sum(draw * (j + 1 - mean) ** 2 for j, draw in enumerate(draws))
    drafting = Speculation(Draft.MTP, len(acceptance), tuple(acceptance))
    assert drafting.step_variance == pytest.approx(variance / mean**3, abs=1e-9)


def test_an_mtp_layer_adds_one_layer_of_weights_and_of_cache() -> None:
    speculation = Speculation(Draft.MTP, 1, (0.8,))
    more = with_draft(R1, speculation).parameters - R1.parameters
    assert more == pytest.approx(11.5e9, rel=0.02)  # 14B on the card, with embedding and head
    one, plain = config(speculation), config(None)
    assert weight_bytes_per_gpu(R1, one) > weight_bytes_per_gpu(R1, plain) + more / 8
    cache = kv_bytes_per_token_per_gpu(R1, one) / kv_bytes_per_token_per_gpu(R1, plain)
    assert cache == pytest.approx(62 / 61)


def test_an_eagle_layer_is_dense_and_of_the_models_width() -> None:
    layer = draft_layer(LLAMA, Draft.EAGLE3)
    assert (layer.feed_forward.experts, layer.feed_forward.intermediate) == (0, 14336)
    assert draft_layer(LLAMA, Draft.NGRAM) is None


@pytest.mark.parametrize("batch", [1, 24, 200])
def test_the_simulator_counts_token_steps(batch: int) -> None:
    speculation = Speculation(Draft.MTP, 2, (0.8, 0.6))
    drafting = config(speculation)
    steps, made = cost_steps(R1, drafting, OVERHEAD), speculation.tokens_per_step
    decode = step_time_one(R1, drafting, OVERHEAD, StepLoad.decode(float(batch), 2000.0)).total.item()
    mixed = step_time_one(R1, drafting, OVERHEAD, StepLoad.of(1.0, 512.0, 0.0, batch, 2000.0)).total.item()
    assert step_seconds(steps, batch=batch, total_context=2000 * batch) == pytest.approx(decode / made, rel=0.01)
    expected = mixed - decode * (1.0 - 1.0 / made)
    assert step_seconds(steps, [512], batch=batch, total_context=2000 * batch) == pytest.approx(expected, rel=0.02)


def test_a_plan_that_drafts_nothing_says_that_drafting_was_searched(tmp_path: Path) -> None:
    plan = optimize(workload(tmp_path, "{method: eagle3, acceptance: 0.01}"), level=Level.QUICK)
    assert [pool.speculative_tokens for pool in plan.pools] == [0] * len(plan.pools)
    off = "Speculative decoding is off: no fleet that drafts tokens was found to cost less."
    assert speculation_sentence(plan) == off


def test_a_plan_drafts_where_that_saves_and_says_on_what_it_rests(tmp_path: Path) -> None:
    asked = (workload(tmp_path, "{method: eagle3, acceptance: 0.7}", s) for s in (", speculative_tokens: [0]", ""))
    slow, plan = (optimize(problem, level=Level.QUICK) for problem in asked)
    assert plan.pools[0].speculative_tokens > 0
    assert speculation_sentence(slow) == ""
    assert plan.cost_usd_per_hour < (slow.cost_usd_per_hour or math.inf)
    assert "70 % of the first eagle3 drafts are accepted, as stated in your file" in speculation_sentence(plan)
    rows = [row.cost_usd_per_hour for row in plan.alternatives if row.kind == "no_speculation"]
    assert rows == [slow.cost_usd_per_hour]


def test_a_plan_warns_where_no_layer_for_mtp_is_stated(tmp_path: Path) -> None:
    problem = workload(tmp_path, "{method: mtp}", slo="{ttft: 2s, tpot: 50ms}")
    assert any("Llama-3.1-8B states no layer of multi-token prediction" in text for text in catalog_remarks(problem))
    assert not any("multi-token prediction" in text for text in catalog_remarks(replace(problem, model=R1)))


@pytest.mark.parametrize("metric", sorted({*metrics_of(Scope.LATER)} - {Metric.TPOT}))
def test_of_later_tokens_only_tpot_can_be_limited_where_a_step_makes_several(tmp_path: Path, metric: Metric) -> None:
    with pytest.raises(InputError, match=f"limits {metric}, which is not predicted with speculative decoding"):
        workload(tmp_path, "{method: mtp}", slo=f"{{ttft: 2s, tpot: 50ms, {metric}: 50ms}}")
