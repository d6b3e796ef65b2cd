"""`pdplan calibrate`: a user's own benchmark results as a catalog file that makes predictions fit his machines."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costmodel.errors import InputError
from costmodel.quoting import shown
from costmodel.words import join_words
from pdplan.console import Console, write_text
from pdplan.options import (
    PATH,
    Choice,
    catalog_option,
    console_options,
    json_option,
    pass_console,
    share_within,
    value_of,
    whole,
)
from pdplan.views import check_files
from search_spaces import bounds

if TYPE_CHECKING:
    from search_spaces.benchmark_results.calibration import Calibration
    from search_spaces.benchmark_results.deployed import Setup

DEGREE = whole(bounds.DEGREE)


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line of `pdplan calibrate`, by the names of its options."""

    model: str
    gpu: str
    catalog: Path | None
    tp: int
    pp: int
    ep: int
    dp: int
    replicas: int
    engine: str | None
    weight_dtype: str | None
    kv_dtype: str | None
    memory_fraction: float | None
    max_num_seqs: int | None


@click.command(short_help="Fit the predictions to your own benchmark results.")
@click.argument("results", type=PATH, nargs=-1, required=True)
@click.option("--model", required=True, metavar="NAME", help="Catalog name, or path to a config.json.")
@click.option("--gpu", required=True, metavar="NAME", help="Accelerator that ran it; pdplan gpus lists them.")
@catalog_option
@click.option("--tp", type=DEGREE, default=1, show_default=True, help="Tensor parallelism.")
@click.option("--pp", type=DEGREE, default=1, show_default=True, help="Pipeline parallelism.")
@click.option("--ep", type=DEGREE, default=1, show_default=True, help="Expert parallelism.")
@click.option("--dp", type=DEGREE, default=1, show_default=True, help="Data parallelism of the attention.")
@click.option("--replicas", type=DEGREE, default=1, show_default=True, help="Equal replicas that shared the load.")
@click.option("--engine", metavar="NAME", help="vllm, sglang or trtllm; default: as the results say, else vllm.")
@click.option("--weight-dtype", metavar="DTYPE", help="bf16, fp8, int8, int4 or fp4; default: the checkpoint's.")
@click.option("--kv-dtype", type=Choice(["bf16", "fp8"]), help="KV cache; default: the engine's own.")
@click.option(
    "--memory-fraction", callback=share_within(bounds.MEMORY_FRACTION), metavar="SHARE",
    help="Share of HBM that the engine used; default: the engine's.",
)  # fmt: skip
@click.option(
    "--max-num-seqs", type=whole(bounds.MAX_NUM_SEQS), help="Most requests that run at once; default: no limit."
)
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Write a catalog file with the fitted figures.")
@json_option
@click.option("--force", is_flag=True, help="Replace an existing file, and keep a fit that does not explain the data.")
@console_options
@pass_console
def calibrate(
    console: Console,
    /,
    *,
    results: tuple[Path, ...],
    output: Path | None,
    as_json: bool,
    force: bool,
    **options: Any,
) -> None:
    """Examples:

    \b
      pdplan calibrate results.json --model Llama-3.1-70B --gpu H100 --tp 4 -o overlay.yaml
      pdplan calibrate runs/*.jsonl --model Qwen3-32B --gpu H200 --engine sglang -o overlay.yaml
      pdplan calibrate agg_*.json --model DeepSeek-V3 --gpu H200 --json

    Reads the results of vllm bench serve, SGLang's bench_serving, AIPerf, GenAI-Perf, GuideLLM,
    InferenceX or Dynamo's self-benchmark and compares them with the prediction. Fits four scales: of
    arithmetic, of memory traffic, of the engine's host time and of its TTFT overhead. -o writes a catalog
    file: use it as pdplan estimate --catalog FILE, or as catalog: FILE in workload.yaml.

    Exits with 2 and writes nothing where no such machine explains the results: a flag is wrong, or the
    model does not know what ran. --force keeps the fit.
    """
    from reports.answers.calibration import calibration_dict, calibration_document
    from reports.text import plural
    from search_spaces.benchmark_results import read_results
    from search_spaces.benchmark_results.calibration import calibrate as fit

    flags = Flags(**options)
    inputs = {f"result {number}": path for number, path in enumerate(results, start=1)}
    check_files({"-o": output}, {**inputs, "--catalog": flags.catalog}, force=force)
    setup = _setup(flags)
    records = read_results(results)
    if not records:
        raise InputError(f"no results in {join_words([str(path) for path in results])}")
    console.note(f"read {plural(len(records), 'result')} from {plural(len(results), 'file')}; fitting to them")
    source = _source(results, records, setup)
    found = fit(records, setup, source)
    kept = not found.refusal or force
    if output is not None and kept:
        write_text(output, _overlay(found, source, flags, console.command), force=force)
    value = calibration_dict(found, str(output) if output is not None and kept else None)
    console.show(value if as_json else calibration_document(value))
    if not kept:
        raise InputError(f"{found.refusal} (--force keeps the fit)")
    if output is None:
        console.hint(f"{console.command} -o overlay.yaml   # writes the fitted figures as a catalog file")
    else:
        following = ["pdplan", "estimate", "--model", flags.model, "--gpu", flags.gpu, "--catalog", str(output)]
        console.note(f"\nwrote {output}\nNext: {shlex.join(following)}")


def _setup(flags: Flags) -> Setup:
    from costmodel.transformer import DTYPE_BYTES
    from search_spaces.benchmark_results.deployed import Setup
    from search_spaces.catalog import load_catalog
    from search_spaces.engines import engine_name
    from search_spaces.measurements import Layout
    from search_spaces.models import load_model

    if flags.weight_dtype is not None and flags.weight_dtype not in DTYPE_BYTES:
        raise InputError(f"--weight-dtype {shown(flags.weight_dtype)} is not known; allowed: {', '.join(DTYPE_BYTES)}")
    if (flags.tp * flags.dp) % flags.ep:
        raise InputError(f"--ep {flags.ep} does not divide --tp {flags.tp} x --dp {flags.dp}")
    catalog = load_catalog(flags.catalog)
    with value_of("--model"):
        model = load_model(flags.model)
    with value_of("--gpu"):
        accelerator = catalog.accelerator(flags.gpu)
    with value_of("--engine"):
        engine = None if flags.engine is None else engine_name(flags.engine)
    return Setup(
        catalog=catalog,
        model_name=flags.model,
        model=model,
        accelerator=accelerator,
        layout=Layout(flags.replicas, flags.tp, flags.pp, flags.dp, flags.ep),
        engine=engine,
        weight_dtype=flags.weight_dtype,
        kv_dtype=flags.kv_dtype,
        memory_fraction=flags.memory_fraction,
        max_num_seqs=flags.max_num_seqs,
    )


def _source(results: tuple[Path, ...], records: list[Any], setup: Setup) -> str:
    """What the fitted figures rest on, for the catalog file."""
    tools = ", ".join(dict.fromkeys(str(record.tool) for record in records))
    files = results[0].name if len(results) == 1 else f"{results[0].name} and {len(results) - 1} more"
    return f"calibrated on {len(records)} results of {setup.model.name} ({tools}; {files})"


def _overlay(found: Calibration, source: str, flags: Flags, command: str) -> str:
    from search_spaces.benchmark_results.calibration import calibrated_overlay

    fitted = ", ".join(f"{name} x {getattr(found.fit.scales, name):.3g}" for name in found.fit.free)
    kept = f"; not seen in the data and kept: {', '.join(found.kept)}" if found.kept else ""
    heading = [
        f"catalog file written by: {command}",
        f"{source}",
        f"scales: {fitted}{kept}",
        "kernels that these results did not use stay as shipped",
    ]
    return calibrated_overlay(found, heading, source, flags.catalog)
