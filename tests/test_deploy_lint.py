"""Broken files are refused, by the rule that is about what is broken; so are plans that a target cannot run."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.errors import InputError
from pdplan.api import deployment_options
from reports.deploy.checking import checked_files
from reports.deploy.files import deployment_files, recorded_options, refuse_faults, rule_faults
from reports.deploy.lint import RULES, Started
from tests.deploy_cases import (
    ENGINES,
    EXAMPLES,
    PAIR,
    Ask,
    Case,
    example,
    lengths_plan,
    options,
    plan_of,
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_sound_files_break_no_rule(name: str) -> None:
    deployment, files = example(name)
    assert rule_faults(deployment, files) == []
    assert checked_files(deployment, files, files).faults == 0


YAML, SHELL, PODS = r"workers/decode.*yaml", r"workers/.*sh", r"^(dgd\.yaml|pools/)"
PODS_TOO = ("dynamo", "llmd", "llmd-ranks", "dynamo-by-length")
DEFECTS: list[tuple[str, str, str, str, str]] = [
    ("vllm", "readable", YAML, "^gpu-memory-utilization.*\n", ""),
    ("vllm", "readable", YAML, "^(dtype:.*)", r"\1\n\1"),
    ("vllm", "readable", YAML, "^enable-prefix-caching", "disable-prefix-caching"),
    ("vllm", "readable", r"prefill-1-1.sh", "prefill-1-1.yaml", "prefill-1-0.yaml"),
    ("vllm", "settings_are_the_plans", YAML, "max-num-seqs: 128", "max-num-seqs: 512"),
    ("vllm", "engines_start", YAML, "batched-tokens: 512", "batched-tokens: 64"),
    ("vllm", "engines_start", YAML, "len: 8320", "len: 13107200"),
    ("vllm", "engines_start", YAML, "len: 8320", "len: 131200"),
    ("vllm", "pools_are_complete", YAML, "^kv-transfer-config.*\n", ""),
    ("vllm", "ends_have_connectors", YAML, "kv_consumer", "kv_both"),
    ("vllm", "ends_have_connectors", YAML, "NixlConnector", "P2pNcclConnector"),
    ("vllm", "ends_have_connectors", YAML, '{"kv_connector"', '{"kv_rank":0,"kv_connector"'),
    ("vllm", "ends_agree", YAML, "NixlConnector", "NixlPushConnector"),
    ("vllm", "ends_agree", YAML, "kv-cache-dtype: bfloat16", "kv-cache-dtype: fp8"),
    ("vllm", "ends_agree", YAML, "block-size: 16", "block-size: 64"),
    ("vllm", "ends_agree", YAML, "FLASHINFER", "FLASH_ATTN"),
    ("vllm", "ends_agree", YAML, "tensor-parallel-size: 2", "tensor-parallel-size: 3"),
    ("vllm", "ends_agree", YAML, "pipeline-parallel-size: 1", "pipeline-parallel-size: 2"),
    ("vllm", "flags_are_legal", YAML, "^dtype", "max-num-partial-prefills: 2\ndtype"),
    ("vllm", "flags_are_legal", YAML, "^host:", "hostname:"),
    ("vllm", "flags_are_legal", YAML, "chunked-prefill: true", "chunked-prefill: 7"),
    ("vllm", "gpus_are_the_engines", SHELL, "DEVICES=0,1", "DEVICES=0"),
    ("vllm", "weights_are_one_model", YAML, "meta-llama/.*", "other/model"),
    ("vllm", "routers_pass_over_the_dead", r"router\.sh", "interval-secs 5", "interval-secs 60"),
    ("vllm-by-length", "routers_pass_over_the_dead", r"router\.cfg", "inter 5s", "inter 60s"),
    ("vllm-by-length", "routers_pass_over_the_dead", r"router\.cfg", "(server colocated-1-1 .*) check.*", r"\1"),
    ("sglang", "readable", SHELL, r" --context-length \d+", ""),
    ("sglang", "settings_are_the_plans", SHELL, r"static \S+", "static 0.8"),
    ("sglang", "engines_start", SHELL, r"(prefill-size|prefill-tokens) \d+", r"\1 4"),
    ("sglang", "pools_are_complete", r"prefill.*sh", "mode prefill", "mode decode"),
    ("sglang", "ends_agree", r"decode.*sh", "backend nixl", "backend mooncake"),
    ("sglang", "ends_agree", r"decode.*sh", "page-size 64", "page-size 16"),
    ("sglang", "flags_are_legal", SHELL, "--dtype bfloat16", "--max-num-seqs 8 --dtype bfloat16"),
    ("sglang", "flags_are_legal", SHELL, r"bootstrap-port \d+", "bootstrap-port x"),
    ("sglang", "flags_are_legal", SHELL, "--dtype bfloat16", "--dtype bfloat16 --dtype bfloat16"),
    ("sglang", "routers_pass_over_the_dead", "router", "failure-threshold 2", "failure-threshold 30"),
    ("trtllm", "readable", YAML, "^ *free_gpu_memory_fraction: .*\\n", ""),
    ("trtllm", "readable", YAML, "max_seq_len", "max_sequence_length"),
    ("trtllm", "readable", YAML, "GUARANTEED_NO_EVICT", "MAX_UTILIZATION"),
    ("trtllm", "settings_are_the_plans", YAML, "max_batch_size: 128", "max_batch_size: 512"),
    ("trtllm", "pools_are_complete", YAML, r"^cache_transceiver_config:\n(  .*\n)+", ""),
    ("trtllm", "ends_agree", YAML, "tokens_per_block: 32", "tokens_per_block: 64"),
    ("dynamo", "readable", PODS, r"^ *- --max-model-len\n.*\n", ""),
    ("dynamo", "pools_are_complete", PODS, r"^ *- --disaggregation-mode\n.*\n", ""),
    ("dynamo", "flags_are_legal", PODS, r"^( *- )--dtype", r'\1--numa\n\1"2"\n\1--dtype'),
    ("dynamo", "routers_pass_over_the_dead", PODS, r"^ *- --migration-limit\n.*\n", ""),
    ("llmd-ranks", "gpus_are_the_engines", PODS, "size: 2", "size: 1"),
    *((name, "readable", PODS, r"^ *- --gpu-memory-utilization\n.*\n", "") for name in PODS_TOO),
    *((name, "settings_are_the_plans", PODS, r"(--max-num-seqs\n *- ).*", r"\1'512'") for name in PODS_TOO),
    *((name, "ends_have_connectors", PODS, r"^ *- --kv-transfer-config\n.*\n", "") for name in PODS_TOO[:1]),
    *((name, "gpus_are_the_engines", PODS, r"nvidia.com/gpu: '\d'", "nvidia.com/gpu: '3'") for name in PODS_TOO),
    *((name, "labels_are_the_gpus", PODS, "NVIDIA-H200", "H200") for name in PODS_TOO),
    *((name, "pools_are_complete", PODS, r"replicas: \d", "replicas: 7") for name in PODS_TOO),
]
"""What somebody may do to the files of a case by hand: the rule that is about it, the files, and the change."""


@pytest.mark.parametrize(("name", "rule", "paths", "old", "new"), DEFECTS)
def test_a_defect_is_refused_by_its_rule(name: str, rule: str, paths: str, old: str, new: str) -> None:
    deployment, files = example(name)
    changed = {
        path: re.sub(old, new, text, flags=re.MULTILINE) if re.search(paths, path) else text
        for path, text in files.items()
    }
    checked = checked_files(deployment, files, changed)
    assert checked.differs
    assert rule in {broken for broken, _ in checked.breaks}, checked.breaks
    with pytest.raises(InputError, match=r"^the deployment breaks the rule \w+: "):
        refuse_faults(deployment, changed)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_pool_that_is_left_out_or_added_is_refused(name: str) -> None:
    deployment, files = example(name)
    paths = [path for path in files if re.match(r"workers/|pools/", path)]
    if paths:
        fewer = {path: text for path, text in files.items() if path.partition(".")[0] != paths[0].partition(".")[0]}
        assert "pools_are_complete" in {rule for rule, _ in rule_faults(deployment, fewer)}
        more = files | {path.replace("-", "-copy-", 1): text for path, text in files.items() if path in paths}
        assert checked_files(deployment, files, more).breaks


def test_every_rule_is_broken_by_some_defect_and_says_what_it_is_about() -> None:
    assert set(RULES) - {rule for _, rule, *_ in DEFECTS} == {"names_are_short"}
    assert all((rule.__doc__ or "").strip().endswith(".") for rule in RULES.values())
    deployment, _ = example("dynamo-by-length")
    first, *others = deployment.pools
    long = replace(deployment, pools=(replace(first, name="a-name-of-20-letters"), *others))
    name = "case-a-name-of-20-letters-a-name-of-20-letters"
    sentences = list(RULES["names_are_short"](long, Started((), (), {})))
    assert sentences == [f"the name '{name}' has {len(name)} characters, and 45 are allowed"]


@pytest.mark.parametrize("target", ["dynamo", "llmd"])
@pytest.mark.parametrize("label", ["MY H100", "-H100", "H" * 64, "H100/80"])
def test_a_label_that_no_node_can_carry_is_refused(target: str, label: str) -> None:
    with pytest.raises(InputError, match=r"no node can carry the label|begins with a dash"):
        deployment_files(plan_of(), options(target, labels={"H100": label}))


def test_data_ranks_stay_whole_on_every_node() -> None:
    pools = (Case("colocated", "H200", tp=4, dp=3, ep=12, seqs=63, tokens=8190),)
    for target in ("vllm", "dynamo"):
        with pytest.raises(InputError, match="data ranks of 4 GPUs do not fill the 6 that it has on each node"):
            deployment_files(plan_of(pools, Ask("Qwen3-235B-A22B", "fp8")), options(target))


APART, ALONE, MOE = Case("prefill", pp=2, seqs=8), Case("colocated"), "Qwen3-30B-A3B"
WIDE = (Case("prefill", tp=8, seqs=8, tokens=8192), Case("decode", tp=4))
TWO_GPUS = (Case("prefill", "H200", tp=8, seqs=8), Case("decode", "B200", tp=8))
REFUSED: list[tuple[tuple[Case, ...], Ask, str, str]] = [
    (WIDE, Ask(MOE), "vllm", "ends_agree: .* TP 8 of prefill exceeds TP 4 of decode and the model's 4 KV heads"),
    ((Case("prefill", seqs=8), Case("decode", pp=2)), Ask(), "dynamo", "ends_agree: .* PP 2 of decode"),
    ((APART, Case("decode")), Ask(), "vllm 0.20.1", "needs the NixlPushConnector, which vLLM 0.20.1 lacks"),
    ((APART, Case("decode")), Ask(), "dynamo", "NVIDIA Dynamo 1.6.1 does not hand over with; plan again with pdplan "),
    ((APART, Case("decode")), Ask(), "dynamo", "or choose --target vllm or llmd, which run this plan as it is$"),
    ((Case("colocated", ep=8, dp=8, seqs=100, tokens=8192),), Ask(MOE), "vllm", "100 is not a multiple of DP 8"),
    (PAIR, Ask(engine="sglang"), "vllm", "evaluated for sglang, which target vllm does not run; .* sglang or dynamo, "),
    ((Case("colocated", tp=2, dp=2, ep=4, tokens=8192),), Ask(MOE, engine="trtllm"), "trtllm", "all ranks or none"),
    ((ALONE, Case("prefill", seqs=8), Case("decode")), Ask(), "dynamo", "in one engine and hands others over"),
    ((ALONE,), Ask(weight_dtype="int4"), "vllm", "assumes int4 weights, but Llama-3.1-8B is published in bf16"),
    (TWO_GPUS, Ask("DeepSeek-V3", "fp8", "fp8"), "vllm", "no attention kernel of vllm runs latent attention with fp8 "),
    ((Case("colocated", "MI300X"),), Ask(), "dynamo", "MI300X is a GPU of amd, .*choose --target vllm"),
]


@pytest.mark.parametrize(("pools", "ask", "target", "sentence"), REFUSED)
def test_a_plan_that_a_target_cannot_run_is_refused(
    pools: tuple[Case, ...], ask: Ask, target: str, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        deployment_files(plan_of(pools, ask), options(*target.split()))


def test_lengths_that_a_router_cannot_tell_apart_are_refused() -> None:
    plan = lengths_plan()
    first, second = plan.routing
    halves = [first, second.model_copy(update={"prefill": {"prefill-1": 0.5, "prefill-2": 0.5}})]
    with pytest.raises(
        InputError, match=r"25 % of the requests would find another prefill pool .*optimize --target dynamo"
    ):
        deployment_files(plan.model_copy(update={"routing": halves}), options("dynamo"))


def test_an_unsupported_version_names_the_supported() -> None:
    for version, way in (
        ("0.19.0", ""),
        ("latest", ""),
        ("0.34.0", "; --unchecked writes the flags of 0.33.0"),
        ("99", "; --unchecked writes the flags of 0.33.0"),
    ):
        with pytest.raises(InputError, match=rf"vLLM '{version}' is not known; known: 0\.20\.0, .*, 0\.33\.0{way}$"):
            options("vllm", version)


def test_a_newer_version_is_written_for_where_nobody_minds() -> None:
    plan = plan_of()
    asked = deployment_options(plan, target="llmd", engine_version="0.34.1", unchecked=True)
    files = deployment_files(plan, asked)
    assert "vllm/vllm-openai:v0.34.1" in "".join(files.values())
    assert "**Not checked:** llm-d 0.34.1 is newer than what pdplan knows" in files["README.md"]
    assert recorded_options(files["deployment.json"]) == asked
    assert not deployment_options(plan, engine_version="0.33.0", unchecked=True).unchecked


def test_a_checkpoint_of_ones_own_carries_the_weights() -> None:
    files = deployment_files(plan_of((Case("colocated"),), Ask(weight_dtype="int4")), options("vllm", model="my/awq"))
    config = files["workers/colocated-1-0.yaml"]
    assert "model: my/awq" in config
    assert "quantization" not in config


@pytest.mark.parametrize("name", [*ENGINES, "dynamo-by-length", "vllm-by-length", "llmd-ranks"])
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_mutilated_files_are_judged_and_never_crash(name: str, data: st.DataObject) -> None:
    """Leave out a stretch of lines, or change one character: whatever comes of it is a sentence, not a traceback."""
    deployment, files = example(name)
    path = data.draw(st.sampled_from(sorted(files)))
    lines = files[path].splitlines(keepends=True)
    first = data.draw(st.integers(0, len(lines) - 1))
    if data.draw(st.booleans()):
        mutilated = lines[:first] + lines[first + data.draw(st.integers(1, 5)) :]
    else:
        place = data.draw(st.integers(0, len(lines[first]) - 1))
        lines[first] = lines[first][:place] + data.draw(st.sampled_from("x0 :-{}[]\"'")) + lines[first][place + 1 :]
        mutilated = lines
    checked = checked_files(deployment, files, {**files, path: "".join(mutilated)})
    assert all(rule in {*RULES, "readable"} and sentence for rule, sentence in checked.breaks)
