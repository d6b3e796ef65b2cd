"""Seeded defects: what somebody may do to the files of each target by hand, and the rule that is about it."""

from __future__ import annotations

import re
from collections.abc import Callable

Files = dict[str, str]
Defect = Callable[[Files], Files]


def edit(pattern: str, old: str, new: str, *, count: int = 0) -> Defect:
    """Replace a regular expression in the files whose path matches; something must change."""

    def change(files: Files) -> Files:
        changed = {
            path: re.sub(old, new, text, count=count, flags=re.MULTILINE) if re.search(pattern, path) else text
            for path, text in files.items()
        }
        assert changed != files, f"nothing matches {old!r} in {pattern!r}"
        return changed

    return change


def drop(pattern: str) -> Defect:
    """Leave out the files whose path matches."""

    def change(files: Files) -> Files:
        kept = {path: text for path, text in files.items() if not re.search(pattern, path)}
        assert kept != files
        return kept

    return change


def line(pattern: str, start: str) -> Defect:
    """Leave out the first line that begins so."""
    return edit(pattern, rf"^ *{start}.*\n", "", count=1)


def flag(pattern: str, name: str) -> Defect:
    """Leave out a flag and its value from a list of arguments, one a line."""
    return edit(pattern, rf"^ *- {name}\n(?! *- --).*\n", "")


def value(pattern: str, name: str, new: str) -> Defect:
    """Give a flag of a list of arguments another value."""
    return edit(pattern, rf"(^ *- {name}\n *- ).*", rf"\g<1>{new}")


def both(first: Defect, second: Defect) -> Defect:
    """One defect after the other."""
    return lambda files: second(first(files))


PREFILL, DECODE = r"workers/prefill.*yaml", r"workers/decode.*yaml"
VLLM: list[tuple[str, str, Defect]] = [
    ("memory fraction left out", "readable", line(DECODE, "gpu-memory-utilization")),
    ("model length left out", "readable", line(DECODE, "max-model-len")),
    ("batch of another plan", "settings_are_the_plans", edit(DECODE, "max-num-seqs: 128", "max-num-seqs: 512")),
    ("tokens below requests", "tokens_cover_requests", edit(DECODE, "batched-tokens: 512", "batched-tokens: 64")),
    ("length beyond the memory", "longest_request_fits", edit(DECODE, "len: 8320", "len: 13107200")),
    ("length beyond the model", "contexts_are_reached", edit(DECODE, "len: 8320", "len: 131200")),
    ("no connector", "pools_are_complete", line(PREFILL, "kv-transfer-config")),
    ("roles swapped", "pools_are_complete", edit(PREFILL, "kv_producer", "kv_consumer")),
    ("kv_both", "ends_have_connectors", edit(PREFILL, "kv_producer", "kv_both")),
    ("unknown connector", "ends_have_connectors", edit(PREFILL, "NixlConnector", "P2pNcclConnector")),
    ("field that went away", "ends_have_connectors", edit(PREFILL, '{"kv_connector"', '{"kv_rank":0,"kv_connector"')),
    ("push against pull", "ends_agree", edit(DECODE, "NixlConnector", "NixlPushConnector")),
    ("KV dtypes differ", "ends_agree", edit(DECODE, "kv-cache-dtype: bfloat16", "kv-cache-dtype: fp8")),
    ("block sizes differ", "ends_agree", edit(DECODE, "block-size: 16", "block-size: 64")),
    ("kernels differ", "ends_agree", edit(DECODE, "FLASHINFER", "FLASH_ATTN")),
    ("degrees do not divide", "ends_can_talk", edit(DECODE, "tensor-parallel-size: 2", "tensor-parallel-size: 3")),
    ("prefill too wide", "ends_can_talk", edit(PREFILL, "tensor-parallel-size: 2", "tensor-parallel-size: 16")),
    ("decode in stages", "ends_can_talk", edit(DECODE, "pipeline-parallel-size: 1", "pipeline-parallel-size: 2")),
    ("too few GPUs", "gpus_are_the_engines", edit(r"workers/decode.*sh", "DEVICES=0,1", "DEVICES=0")),
    ("switch of another version", "readable", edit(DECODE, "no-enable-prefix-caching", "disable-prefix-caching")),
    ("flag of another version", "flags_are_legal", edit(DECODE, "^dtype", "max-num-partial-prefills: 2\ndtype")),
    ("flag that never was", "flags_are_legal", edit(DECODE, "^host:", "hostname:")),
    ("switch with a value", "flags_are_legal", edit(DECODE, "chunked-prefill: true", "chunked-prefill: 7")),
    ("option twice", "readable", edit(DECODE, "^(dtype:.*)", r"\1\n\1")),
    ("no transport", "blocks_have_a_road", line(r"decode.*sh", "export UCX_TLS")),
    ("host without an address", "readable", line("hosts", "HOST_H200_0")),
    ("prompts in one piece", "readable", line(PREFILL, "enable-chunked-prefill")),
    ("side channel on localhost", "peers_can_find_each_other", edit(r"decode.*sh", r'HOST="\$.*"', "HOST=localhost")),
    ("one port for two", "addresses_are_free", edit(r"prefill-1-1\.yaml", "port: 8200", "port: 8100")),
    ("one side channel for two", "addresses_are_free", edit(r"prefill-1-1\.sh", "PORT=5601", "PORT=5600")),
    ("another model", "weights_are_one_model", edit(DECODE, "meta-llama/.*", "other/model")),
    ("replica left out", "pools_are_complete", drop(r"prefill-1-1")),
    ("router forgets one", "router_knows_all", edit(r"router\.sh", r' --prefill "http://\S*:8200"', "")),
    ("router does not split", "router_knows_all", edit(r"router\.sh", " --vllm-pd-disaggregation", "")),
    ("no router", "router_knows_all", drop(r"router\.sh")),
    (
        "prompts sent by turns",
        "router_balances",
        edit(r"router\.sh", "prefill-policy cache_aware", "prefill-policy round_robin"),
    ),
    ("loads that may differ", "router_balances", edit(r"router\.sh", "abs-threshold 0", "abs-threshold 64")),
    ("checked once a minute", "routers_pass_over_the_dead", edit(r"router\.sh", "interval-secs 5", "interval-secs 60")),
    ("not started again", "containers_fit_together", line(r"compose/h200", "restart: ")),
    ("another config", "readable", edit(r"prefill-1-1.sh", "prefill-1-1.yaml", "prefill-1-0.yaml")),
    ("compose leaves one out", "as_written", edit(r"compose/h200", "decode-2-0.yaml", "decode-2-9.yaml")),
    ("compose with other GPUs", "as_written", edit(r"compose/h200", '"0", "1"', '"0", "2"')),
    ("one GPU for two", "gpus_are_given_once", edit(r"prefill-1-1\.sh", "DEVICES=2,3", "DEVICES=1,2")),
    ("no containers of a host", "readable", drop(r"compose/h200")),
    (
        "no router on the second host",
        "containers_fit_together",
        edit(r"compose/h200", r"^  router:\n(    .*\n)+", ""),
    ),
    ("no router in a container", "containers_fit_together", edit(r"compose/h100", r"^  router:\n(    .*\n)+", "")),
    (
        "router of its own mind",
        "containers_fit_together",
        edit(r"compose/h100", 'prefill-policy", "cache_aware', 'prefill-policy", "random'),
    ),
    ("waits for nobody", "containers_fit_together", edit(r"compose/h100", "{prefill-1-0: {c", "{prefill-9-0: {c")),
    (
        "health that nobody checks",
        "containers_fit_together",
        edit(r"compose/h100", r"    healthcheck:\n( {6}.*\n)+", ""),
    ),
    ("health of another engine", "containers_fit_together", edit(r"compose/h100", "8200/health", "8100/health")),
    ("volume undeclared", "containers_fit_together", edit(r"compose/h200", r"- \.\./workers", "- workers")),
    ("ports published", "containers_fit_together", edit(r"compose/h200", "ipc: host", 'ipc: host\n    ports: ["1:1"]')),
    ("side channel in a container", "as_written", edit(r"compose/h100", 'PORT: "5601"', 'PORT: "5600"')),
]

DGD = r"^dgd"
DYNAMO: list[tuple[str, str, Defect]] = [
    ("memory fraction left out", "readable", flag(DGD, "--gpu-memory-utilization")),
    ("model length left out", "readable", flag(DGD, "--max-model-len")),
    ("batch of another plan", "settings_are_the_plans", value(DGD, "--max-num-seqs", "'512'")),
    ("tokens below requests", "tokens_cover_requests", value(DGD, "--max-num-batched-tokens", "'4'")),
    ("length beyond the memory", "longest_request_fits", value(DGD, "--max-model-len", "'13107200'")),
    ("no connector", "ends_have_connectors", flag(DGD, "--kv-transfer-config")),
    ("roles swapped", "ends_have_connectors", edit(DGD, "kv_producer", "kv_consumer")),
    ("mode left out", "readable", flag(DGD, "--disaggregation-mode")),
    ("field that went away", "ends_have_connectors", edit(DGD, '{"kv_connector"', '{"rank":0,"kv_connector"')),
    ("block sizes differ", "ends_agree", edit(DGD, r"(--block-size\n *- )'16'", r"\1'32'", count=1)),
    ("degrees do not divide", "ends_can_talk", edit(DGD, r"(tensor-parallel-size\n *- )'2'", r"\1'3'", count=1)),
    ("too few GPUs", "gpus_are_the_engines", edit(DGD, "nvidia.com/gpu: '2'", "nvidia.com/gpu: '1'")),
    ("more GPUs than a node has", "gpus_are_the_engines", edit(DGD, "nvidia.com/gpu: '2'", "nvidia.com/gpu: '16'")),
    ("label misspelt", "labels_are_the_gpus", edit(DGD, "NVIDIA-H200", "NVIDIA-H200-SXM")),
    ("label left out", "labels_are_the_gpus", edit(DGD, r"nodeSelector:\n.*", "nodeSelector: {}")),
    ("no RDMA device", "pods_can_move_blocks", edit(DGD, r"^ *rdma/ib: .*\n", "")),
    ("may not lock memory", "pods_can_move_blocks", edit(DGD, r"^ *add:\n *- IPC_LOCK\n", "")),
    ("small shared memory", "pods_can_move_blocks", line(DGD, "sharedMemorySize")),
    ("replicas of another plan", "pools_are_complete", edit(DGD, "replicas: 2", "replicas: 3")),
    ("switch of another version", "readable", edit(DGD, "--no-enable-prefix-caching", "--disable-prefix-caching")),
    ("flag of no version", "flags_are_legal", edit(DGD, r"^( *- )--dtype", r'\1--numa\n\1"2"\n\1--dtype')),
    ("flag of the operator", "flags_stand_once", edit(DGD, r"^( *- )--dtype", r'\1--nnodes\n\1"2"\n\1--dtype')),
    (
        "flag twice",
        "flags_stand_once",
        edit(DGD, r"^( *- )--dtype", r'\1--seed\n\1"1"\n\1--seed\n\1"1"\n\1--dtype'),
    ),
    ("manifests differ", "readable", edit(r"dgd-with", "replicas: 2", "replicas: 3")),
    (
        "planner with 2 GPUs",
        "planner_keeps_the_plan",
        edit("configmap", r'max_gpu_budget": \d+', 'max_gpu_budget": 2'),
    ),
    ("planner's own TTFT", "planner_keeps_the_plan", edit("configmap", r'ttft_ms": [\d.]+', 'ttft_ms": 500.0')),
    ("planner of an engine of 4", "planner_keeps_the_plan", edit("configmap", r'num_gpu": \d', 'num_gpu": 4')),
    ("planner without a profile", "planner_keeps_the_plan", edit("configmap", "thorough", "none")),
    ("profile left out", "readable", edit("configmap", "prefill_raw_data.json", "other.json")),
    (
        "names too long",
        "names_are_short",
        edit(DGD, "^  name: case", "  name: a-name-that-goes-on-and-on-and-on-until-it-breaks"),
    ),
    ("another model", "weights_are_one_model", edit(DGD, "meta-llama/.*", "other/model")),
    ("another namespace", "objects_share_a_namespace", edit(DGD, "namespace: default", "namespace: other")),
    ("config map elsewhere", "objects_share_a_namespace", edit("configmap", "^  namespace: .*\n", "")),
    ("wrong API version", "readable", edit(DGD, "v1beta1", "v1beta2")),
    ("field that is none", "as_written", edit(DGD, "^  components:", "  unheardOf: 1\n  components:")),
    ("planner with more engines", "as_written", edit("configmap", 'min_endpoint": 1', 'min_endpoint": 2')),
    ("profile of another engine", "as_written", edit("configmap", r'max_kv_tokens": \d', 'max_kv_tokens": 9')),
    ("no readiness probe", "pods_end_and_start_well", edit(DGD, r"^( *)readinessProbe:\n(\1  .*\n)+", "")),
    ("down for minutes", "pods_end_and_start_well", edit(DGD, "failureThreshold: 2", "failureThreshold: 60")),
    ("killed at once", "pods_end_and_start_well", line(DGD, "terminationGracePeriodSeconds")),
    ("memory not asked for", "pods_end_and_start_well", line(DGD, "memory: 1")),
    ("requests die with a worker", "requests_outlive_their_worker", flag(DGD, "--migration-limit")),
]

SETS = r"^pools/"
DECODE_SET = r"^pools/decode"
LLMD: list[tuple[str, str, Defect]] = [
    ("memory fraction left out", "readable", flag(SETS, "--gpu-memory-utilization")),
    ("batch of another plan", "settings_are_the_plans", value(SETS, "--max-num-seqs", "'512'")),
    ("no connector", "ends_have_connectors", flag(SETS, "--kv-transfer-config")),
    ("roles swapped", "ends_have_connectors", edit(SETS, "kv_producer", "kv_consumer")),
    ("block sizes differ", "ends_agree", value(DECODE_SET, "--block-size", "'64'")),
    ("degrees do not divide", "ends_can_talk", value(DECODE_SET, "--tensor-parallel-size", "'3'")),
    ("too few GPUs", "gpus_are_the_engines", edit(DECODE_SET, "gpu: '2'", "gpu: '1'")),
    ("port that nobody asks", "readable", value(DECODE_SET, "--port", "'8000'")),
    ("label misspelt", "labels_are_the_gpus", edit(SETS, "NVIDIA-H200", "H200")),
    ("no RDMA device", "pods_can_move_blocks", edit(SETS, r"^ *rdma/ib: .*\n", "")),
    ("may not lock memory", "pods_can_move_blocks", edit(SETS, r"^ *add:\n *- IPC_LOCK\n", "")),
    ("small shared memory", "pods_can_move_blocks", edit(SETS, r" *- name: shared-memory\n *mountPath.*\n", "")),
    (
        "side channel unset",
        "peers_can_find_each_other",
        edit(SETS, r" *- name: VLLM_NIXL_SIDE_CHANNEL_HOST\n *valueFrom:\n.*\n.*\n", ""),
    ),
    ("switch of another version", "readable", edit(SETS, "--no-enable-prefix", "--disable-prefix")),
    ("switch with a value", "flags_are_legal", edit(SETS, "chunked-prefill", "chunked-prefill=7")),
    ("replicas of another plan", "pools_are_complete", edit(SETS, "replicas: 2", "replicas: 1")),
    ("pool left out", "pools_are_complete", drop(DECODE_SET)),
    (
        "proxy left out",
        "pools_are_complete",
        edit(DECODE_SET, r"^( *)initContainers:\n((?! *containers:).*\n)+", ""),
    ),
    ("proxy of another engine", "readable", edit(DECODE_SET, "server-port=8200", "server-port=8300")),
    ("pool selects others", "as_written", edit("inferencepool", "deployment: case", "deployment: other")),
    ("pods that nobody selects", "readable", edit(SETS, "inference-serving: 'true'", "inference-serving: 'no'")),
    ("picker does not split", "readable", edit("epp", "prefill-filter\n", "decode-filter\n")),
    ("decides otherwise", "readable", edit("epp", "prefill: always-", "prefill: prefix-based-")),
    ("picker undeclared", "readable", edit("epp", "- type: active-request-scorer\n", "")),
    ("no picker", "router_knows_all", drop("epp")),
    ("router selects others", "as_written", edit("router-values", "deployment: case", "deployment: other")),
    ("router picks otherwise", "as_written", edit("router-values", "always-disagg", "prefix-based", count=1)),
    ("pool in another namespace", "objects_share_a_namespace", line("inferencepool", "namespace:")),
    ("guard in another namespace", "objects_share_a_namespace", line("support", "namespace:")),
    ("field that is none", "as_written", edit(SETS, "^  replicas:", "  unheardOf: 1\n  replicas:")),
    ("wrong API version", "readable", edit(SETS, "apps/v1", "apps/v1beta1")),
    ("model left out", "readable", edit(SETS, r"^ *- meta-llama/Llama-3.1-8B-Instruct\n(?= *- --served)", "")),
    ("never ready", "pods_end_and_start_well", edit(SETS, r"^( *)startupProbe:\n(\1  .*\n)+", "")),
    ("killed at once", "pods_end_and_start_well", line(SETS, "terminationGracePeriodSeconds")),
    ("disk not asked for", "pods_end_and_start_well", edit(SETS, r"^ *ephemeral-storage: .*\n", "")),
    ("last replica may go", "as_written", edit("support", "minAvailable: 1", "minAvailable: 0")),
]

SPANNING: list[tuple[str, str, Defect]] = [
    ("memory fraction left out", "readable", flag(SETS, "--gpu-memory-utilization")),
    ("batch of another plan", "settings_are_the_plans", value(SETS, "--max-num-seqs", "'512'")),
    ("batch of workers alone", "as_written", edit(DECODE_SET, r"(?s)(workerTemplate.*)'64'\n", r"\1'32'\n", count=1)),
    ("no connector", "ends_have_connectors", flag(SETS, "--kv-transfer-config")),
    ("roles swapped", "ends_have_connectors", edit(SETS, "kv_producer", "kv_consumer")),
    ("one node of two", "gpus_are_the_engines", edit(SETS, "size: 2", "size: 1")),
    ("too few GPUs", "gpus_are_the_engines", edit(SETS, "gpu: '8'", "gpu: '4'")),
    ("groups of another plan", "pools_are_complete", edit(DECODE_SET, "  replicas: 1", "  replicas: 2")),
    ("workers of another image", "as_written", edit(DECODE_SET, r"(?s)(workerTemplate.*image: )\S+", r"\1other:1")),
    ("workers take requests", "as_written", edit(DECODE_SET, r" --data-parallel-start-rank .*\)", "")),
    (
        "workers are found",
        "readable",
        edit(SETS, r"(?s)(workerTemplate:.*?labels:\n)", r"\1          llm-d.ai/inference-serving: 'true'\n"),
    ),
    ("leaders are not found", "readable", edit(SETS, "deployment: case", "deployment: other")),
    ("wrong API version", "readable", edit(SETS, "x-k8s.io/v1", "x-k8s.io/v2")),
    ("requests end at the proxy", "readable", edit(DECODE_SET, "server-port=8200", "server-port=8001")),
    ("no RDMA device", "pods_can_move_blocks", edit(SETS, r"^ *rdma/ib: .*\n", "")),
    ("label misspelt", "labels_are_the_gpus", edit(SETS, "NVIDIA-H200", "H200")),
    ("pool left out", "pools_are_complete", drop(DECODE_SET)),
    ("side channel unset", "peers_can_find_each_other", edit(SETS, "SIDE_CHANNEL_HOST", "SIDE_CHANNEL")),
    ("another namespace", "objects_share_a_namespace", edit(SETS, "namespace: default", "namespace: other")),
    ("field that is none", "as_written", edit(SETS, "  replicas:", "  unheardOf: 1\n  replicas:")),
]

SHELL = r"workers/.*sh"
SGLANG: list[tuple[str, str, Defect]] = [
    ("memory fraction left out", "readable", edit(SHELL, r" --mem-fraction-static \S+", "")),
    ("another memory fraction", "settings_are_the_plans", edit(SHELL, r"static \S+", "static 0.8")),
    ("batch of another plan", "settings_are_the_plans", edit(SHELL, r"requests \d+", "requests 512")),
    (
        "tokens below requests",
        "tokens_cover_requests",
        edit(SHELL, r"(prefill-size|prefill-tokens) \d+", r"\1 4"),
    ),
    ("length left out", "readable", edit(SHELL, r" --context-length \d+", "")),
    ("length beyond the memory", "longest_request_fits", edit(SHELL, r"length \d+", "length 13107200")),
    ("length beyond the model", "contexts_are_reached", edit(SHELL, r"length \d+", "length 131200")),
    ("mode left out", "pools_are_complete", edit(r"prefill.*sh", " --disaggregation-mode prefill", "")),
    ("roles swapped", "pools_are_complete", edit(r"prefill.*sh", "mode prefill", "mode decode")),
    ("other transfer", "ends_agree", edit(r"decode.*sh", "backend nixl", "backend mooncake")),
    ("KV dtypes differ", "ends_agree", edit(r"decode.*sh", "kv-cache-dtype bf16", "kv-cache-dtype fp8_e4m3")),
    ("page sizes differ", "ends_agree", edit(r"decode.*sh", "page-size 64", "page-size 16")),
    ("kernels differ", "ends_agree", edit(r"decode.*sh", " --attention-backend flashinfer", "")),
    ("degrees do not divide", "ends_can_talk", edit(r"decode.*sh", "tp-size 2", "tp-size 3")),
    ("too few GPUs", "gpus_are_the_engines", edit(r"decode.*sh", "DEVICES=0,1", "DEVICES=0")),
    ("flag of vLLM", "flags_are_legal", edit(SHELL, "--dtype bfloat16", "--max-num-seqs 8 --dtype bfloat16")),
    ("value that is none", "flags_are_legal", edit(SHELL, r"bootstrap-port \d+", "bootstrap-port x")),
    ("flag twice", "flags_stand_once", edit(SHELL, "--dtype bfloat16", "--dtype bfloat16 --dtype bfloat16")),
    ("one port for two", "addresses_are_free", edit(r"prefill-1-1", "--port 8200", "--port 8100")),
    ("router forgets one", "router_knows_all", edit("router", r' --prefill "http://\S*:8200" 9098', "")),
    ("router does not split", "router_knows_all", edit("router", " --pd-disaggregation", "")),
    (
        "forgiving for minutes",
        "routers_pass_over_the_dead",
        edit("router", "failure-threshold 2", "failure-threshold 30"),
    ),
    ("tokens sent at random", "router_balances", edit("router", "decode-policy cache_aware", "decode-policy random")),
    ("replica left out", "pools_are_complete", drop(r"prefill-1-1")),
    ("another model", "weights_are_one_model", edit(SHELL, r"meta-llama/\S+", "other/model")),
    ("one GPU for two", "gpus_are_given_once", edit(r"prefill-1-1", "DEVICES=2,3", "DEVICES=1,2")),
    ("router on another port", "as_written", edit("router", "--port 8000", "--port 8001")),
]

TRTLLM: list[tuple[str, str, Defect]] = [
    ("memory fraction left out", "readable", edit(DECODE, "free_gpu_memory_fraction: [0-9.]+, ", "")),
    ("another memory fraction", "settings_are_the_plans", edit(DECODE, "fraction: [0-9.]+", "fraction: 0.5")),
    ("batch of another plan", "settings_are_the_plans", edit(DECODE, "max_batch_size: 128", "max_batch_size: 512")),
    ("tokens below requests", "tokens_cover_requests", edit(DECODE, "max_num_tokens: 512", "max_num_tokens: 64")),
    ("length left out", "readable", line(DECODE, "max_seq_len")),
    ("length beyond the memory", "longest_request_fits", edit(DECODE, "seq_len: 8320", "seq_len: 13107200")),
    ("buffer below a prompt", "readable", edit(PREFILL, "max_tokens_in_buffer: 8320", "max_tokens_in_buffer: 2048")),
    ("no transceiver", "pools_are_complete", line(DECODE, "cache_transceiver_config")),
    ("other transceiver", "readable", edit(DECODE, "backend: NIXL", "backend: MPI")),
    ("context server overlaps", "pools_are_complete", line(PREFILL, "disable_overlap_scheduler")),
    ("KV dtypes differ", "ends_agree", edit(DECODE, "dtype: auto", "dtype: fp8")),
    ("block sizes differ", "ends_agree", edit(DECODE, "tokens_per_block: 32", "tokens_per_block: 64")),
    ("degrees do not divide", "ends_can_talk", edit(DECODE, "tensor_parallel_size: 2", "tensor_parallel_size: 3")),
    ("option that never was", "readable", edit(DECODE, "max_seq_len", "max_sequence_length")),
    ("option twice", "readable", edit(DECODE, "^(max_seq_len.*)", r"\1\n\1")),
    ("too few GPUs", "gpus_are_the_engines", edit(r"decode.*sh", "DEVICES=0,1", "DEVICES=0")),
    ("one port for two", "addresses_are_free", edit(r"prefill-1-1\.sh", "--port 8200", "--port 8100")),
    ("wrong count", "readable", edit("disagg", "num_instances: 2", "num_instances: 1")),
    (
        "server forgets one",
        "router_knows_all",
        both(edit("disagg", ", [^]]*8200[^]]*", ""), edit("disagg", "instances: 2", "instances: 1")),
    ),
    ("nobody listens there", "router_knows_all", edit("disagg", "h200-0:8100", "h200-0:9999")),
    ("no server", "router_knows_all", drop("disagg")),
    ("other config", "readable", edit(r"decode.*sh", "decode-2-0.yaml", "prefill-1-0.yaml")),
    ("another model", "weights_are_one_model", edit(SHELL, r"serve \S+ --host", "serve other/model --host")),
    ("one GPU for two", "gpus_are_given_once", edit(r"prefill-1-1\.sh", "DEVICES=2,3", "DEVICES=1,2")),
    ("server on another port", "as_written", edit("disagg", "^port: 8000", "port: 8001")),
    ("engines take turns", "readable", edit("disagg", "load_balancing", "round_robin", count=1)),
    ("started requests give way", "readable", edit(DECODE, "GUARANTEED_NO_EVICT", "MAX_UTILIZATION")),
    ("whole prompts", "readable", edit(PREFILL, "chunked_prefill: true", "chunked_prefill: false")),
    (
        "graphs for a part of the batch",
        "as_written",
        edit(DECODE, "true, max_batch_size: 128", "true, max_batch_size: 16"),
    ),
]

POOLS = r"^pools/"
LENGTHS: list[tuple[str, str, Defect]] = [
    (
        "router of another pool",
        "as_written",
        edit("pools/prefill-1", "default-case-prefill-1", "default-case-prefill-2"),
    ),
    ("grid of another plan", "lengths_find_their_pools", edit("configmap", r"\[0\]", "[1]")),
    ("pools swapped", "lengths_find_their_pools", edit("configmap", "case-prefill-1", "case-prefill-2", count=1)),
    ("grid cannot be read", "lengths_find_their_pools", edit("configmap", "prefill_pool_mapping", "mapping")),
    ("no such pool", "lengths_find_their_pools", edit("configmap", r"\[1\]", "[7]")),
    ("no way in", "readable", drop("control")),
    ("no grid", "readable", drop("configmap")),
    ("pool left out", "pools_are_complete", drop("pools/prefill-2")),
    ("batch of another plan", "settings_are_the_plans", value(POOLS, "--max-num-seqs", "'512'")),
    ("memory fraction left out", "readable", flag(POOLS, "--gpu-memory-utilization")),
    ("no connector", "ends_have_connectors", flag(POOLS, "--kv-transfer-config")),
    ("label misspelt", "labels_are_the_gpus", edit(POOLS, "NVIDIA-H200", "H200")),
    ("too few GPUs", "gpus_are_the_engines", edit(POOLS, "gpu: '1'", "gpu: '4'")),
]
CONFIG = r"^router\.cfg"
PARTED: list[tuple[str, str, Defect]] = [
    ("edge beyond the long prompts", "lengths_find_their_pools", edit(CONFIG, "le 4096", "le 40960")),
    ("edge below the short prompts", "lengths_find_their_pools", edit(CONFIG, "le 4096", "le 409")),
    ("no edge", "lengths_find_their_pools", edit(CONFIG, r" if { req.body_size le \d+ }", "")),
    (
        "pools swapped",
        "lengths_find_their_pools",
        edit(CONFIG, "default_backend colocated-2", "default_backend colocated-1"),
    ),
    ("more of the long ones", "lengths_find_their_pools", edit(CONFIG, "lt 1000", "lt 5000")),
    ("nowhere to go", "lengths_find_their_pools", line(CONFIG, "default_backend")),
    ("an edge a little off", "as_written", edit(CONFIG, "le 4096", "le 4000")),
    ("pool that is none", "backends_are_the_pools", edit(CONFIG, "backend colocated-2", "backend other")),
    ("engine forgotten", "backends_are_the_pools", line(CONFIG, "server colocated-1-1")),
    ("engine of another pool", "backends_are_the_pools", edit(CONFIG, r"HOST_H100_0}:8100", "HOST_L40S_0}:8100")),
    ("nobody listens there", "router_knows_all", edit(CONFIG, "HOST_H100_0}:8100", "HOST_H100_0}:9100")),
    ("down and not told", "routers_pass_over_the_dead", edit(CONFIG, "(server colocated-1-1 .*) check.*", r"\1")),
    ("checked once a minute", "routers_pass_over_the_dead", edit(CONFIG, "inter 5s", "inter 60s")),
    ("host without an address", "readable", line("hosts", "HOST_H100_0")),
    ("condition of one's own", "readable", edit(CONFIG, "req.body_size", "req.ver")),
    ("broken quotes", "readable", edit(CONFIG, r'"\$', "$", count=1)),
    ("addresses not exported", "readable", line(r"router\.sh", "set -a")),
    ("another configuration", "readable", edit(r"router\.sh", "/router.cfg", "/other.cfg")),
    ("no configuration", "readable", drop(CONFIG)),
    ("no router", "router_knows_all", drop(r"^router\.sh")),
    ("patience of a web page", "as_written", edit(CONFIG, "timeout server 1h", "timeout server 30s")),
    ("tokens gathered", "as_written", line(CONFIG, "option http-no-delay")),
    ("another port", "as_written", edit(CONFIG, "bind :8000", "bind :8001")),
    ("container of another program", "containers_fit_together", edit("compose/l40s", "haproxy, ", "")),
    ("container without the file", "containers_fit_together", edit("compose/l40s", "    volumes: .*router.*\n", "")),
    ("container without an address", "containers_fit_together", line("compose/l40s", "HOST_H100_0")),
    ("no router in a container", "containers_fit_together", edit("compose/l40s", r"^  router:\n(    .*\n)+", "")),
    ("batch of another plan", "settings_are_the_plans", edit(r"colocated-1.*yaml", "seqs: 64", "seqs: 512")),
    ("replica left out", "pools_are_complete", drop(r"colocated-1-1")),
]
DEFECTS = {
    "dynamo by length": LENGTHS,
    "vllm by length": PARTED,
    "vllm": VLLM,
    "dynamo": DYNAMO,
    "llmd": LLMD,
    "llmd of nodes": SPANNING,
    "sglang": SGLANG,
    "trtllm": TRTLLM,
}
