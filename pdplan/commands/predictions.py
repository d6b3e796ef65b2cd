"""`pdplan estimate`, `calibrate`, `validate`: predictions for one replica, their fit to results, and their errors."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costmodel.errors import InputError, value_of
from costmodel.units import GIB
from costmodel.words import join_words, plural
from pdplan.api import read_fleet
from pdplan.console import Console
from pdplan.options import (
    DEGREE,
    PATH,
    Choice,
    Flags,
    Whole,
    alternative_option,
    catalog_option,
    force_option,
    json_option,
    prices_option,
    replica_options,
    share_within,
    weight_dtype_option,
    with_console,
)
from reports.document import Document, Section, table_of
from reports.text import count, duration, hourly, percent, rate, significant
from search_spaces import bounds
from search_spaces.bounds import ROUTER_SPELLINGS, ROUTERS

if TYPE_CHECKING:
    from costmodel.engine import EngineConfig
    from costmodel.estimate import Estimate, StepEstimate
    from costmodel.transformer import Transformer
    from search_spaces.calibration import Calibration, Setup
    from search_spaces.problem import Offer, Problem

LENGTH = Whole(bounds.TOKENS)
REQUESTS = Whole(bounds.MAX_NUM_SEQS)


@click.command(short_help="Show one replica in numbers: times, MFU, MBU, batch, what binds.")
@replica_options
@prices_option
@click.option(
    "--role", type=Choice(["colocated", "prefill", "decode"]), default="colocated",
    help="What the replica does.",
)  # fmt: skip
@weight_dtype_option
@click.option(
    "--kv-dtype", type=Choice(["bf16", "fp8"]),
    help="Precision of the KV cache; default: what the engine uses for this checkpoint.",
)  # fmt: skip
@click.option("--isl", type=LENGTH, default=2048, help="Input length [token].")
@click.option("--osl", type=LENGTH, default=256, help="Output length [token].")
@click.option("--batch", type=REQUESTS, help="Requests that run at once; default: all that fit.")
@click.option("--max-num-seqs", type=REQUESTS, default=1024, help="Most requests that run at once.")
@click.option(
    "--max-num-batched-tokens", type=Whole(bounds.MAX_NUM_BATCHED_TOKENS), default=8192,
    help="Most tokens in one step.",
)  # fmt: skip
@click.option(
    "--memory-fraction", callback=share_within(bounds.MEMORY_FRACTION), metavar="SHARE", default="0.9",
    help="The engine's own memory fraction.",
)  # fmt: skip
@click.option("--engine", default="vllm", metavar="NAME", help="vllm, sglang or trtllm: host time, memory.")
@json_option
@with_console
def estimate(console: Console, /, **options: Any) -> int:
    """Examples:

    \b
      pdplan estimate --model Llama-3.1-70B --gpu H100 --tp 4
      pdplan estimate --model DeepSeek-V3 --gpu H200 --tp 8 --ep 8 --isl 8192 --osl 1024
      pdplan estimate --model Llama-3.1-8B --gpu L4 --weight-dtype fp8 --batch 16 --json

    Shows one replica in its role: the time of a prefill step and of a decode step and where it goes, MFU
    and MBU, arithmetic intensity against the ridge point, KV cache per token, how many requests fit, and
    what binds.
    """
    from costmodel.estimate import estimate as predict
    from search_spaces.engines import engine_name, load_serving_policy

    with value_of("--engine"):
        flags = Flags(**options | {"engine": engine_name(options["engine"])})
    problem = _problem(flags)
    config = _config(problem, flags)
    overhead = load_serving_policy(flags.engine, problem.engine_changes).overhead
    prediction = predict(problem.model, config, overhead, flags.isl, flags.osl, batch=flags.batch)
    as_value = estimate_dict(problem.model, config, flags, prediction, problem.offers[0])
    return console.answer(_page(as_value), as_value)


def _problem(flags: Flags) -> Problem:
    """The one-engine problem whose rules say whether the engine can exist."""
    import numpy as np

    from costmodel.accelerator import PriceBasis
    from costmodel.engine import Role
    from costmodel.workload import Workload
    from search_spaces.catalog import load_catalog
    from search_spaces.engines import SUPPORT
    from search_spaces.enumeration import usual_kv_dtype
    from search_spaces.models import load_model
    from search_spaces.problem import Offer, Problem, SearchSpace
    from search_spaces.quotes import basis_of
    from search_spaces.schema import unquoted

    catalog = load_catalog(flags.catalog, flags.prices)
    with value_of("--model"):
        model = load_model(flags.model)
    weight_dtype = flags.weight_dtype or model.native_weight_dtype
    with value_of("--gpu"):
        accelerator = catalog.accelerator(flags.gpu)
    basis = basis_of(flags.prices)
    quote = accelerator.price_on(basis)
    if quote is None:
        raise InputError(unquoted(accelerator, basis or PriceBasis.ON_DEMAND))
    unit, length = np.ones(1), flags.isl + flags.osl
    if length > model.max_position:
        raise InputError(
            f"--isl {flags.isl:,} and --osl {flags.osl:,} are {length:,} tokens, which exceed the context of "
            f"{model.name}, {model.max_position:,} tokens"
        )
    return Problem(
        name="estimate",
        model=model.with_states(SUPPORT[flags.engine].state_bits),
        weight_dtype=weight_dtype,
        kv_dtype=flags.kv_dtype or usual_kv_dtype(flags.engine, model, weight_dtype),
        workload=Workload(unit * flags.isl, unit * flags.osl, unit, request_rate=1.0, max_tokens=length),
        slos=(),
        offers=(Offer(accelerator, quote.usd_per_hour, quote=quote),),
        space=SearchSpace(
            roles=(Role(flags.role),),
            tensor_parallel=(flags.tp,),
            pipeline_parallel=(flags.pp,),
            expert_parallel=(flags.ep,),
            data_parallel=(flags.dp,),
            max_num_seqs=(flags.max_num_seqs,),
            max_num_batched_tokens=(flags.max_num_batched_tokens,),
            max_gpus_per_engine=flags.tp * flags.pp * flags.dp,
        ),
        engine=flags.engine,
        engine_changes=catalog.engines,
        memory_fraction=flags.memory_fraction,
    )


def _config(problem: Problem, flags: Flags) -> EngineConfig:
    """The engine of the flags, or the rule that forbids it."""
    from costmodel.engine import Role
    from search_spaces.enumeration import candidates, engine_config, refusal

    shape = next(candidates(problem, 0))
    ruling = refusal(problem, shape)
    if ruling is not None and ruling[0] != "model_and_one_request_fit":  # `estimate` says by how much
        raise InputError(f"{problem.model.name} cannot run on {problem.offers[0].accelerator.name}: {ruling[1]}")
    seqs, chunk = flags.max_num_seqs, flags.max_num_batched_tokens
    return engine_config(problem, shape, Role(flags.role), seqs, chunk)


def estimate_dict(
    model: Transformer, config: EngineConfig, flags: Flags, prediction: Estimate, offer: Offer
) -> dict[str, Any]:
    """The estimate as JSON-ready values; units are in the keys."""
    from costmodel.memory import max_whole_requests
    from search_spaces.catalog import price_dict

    split, quote = config.parallelism, offer.quote or offer.accelerator.price
    per_second = prediction.requests_per_second
    output = flags.osl - (prediction.prefill is None)  # the first token of each request comes from its prefill
    return {
        "model": model.name,
        "accelerator": config.accelerator.name,
        "engine": flags.engine,
        "role": str(config.role),
        "gpus": config.gpus,
        "tensor_parallel": split.tensor,
        "pipeline_parallel": split.pipeline,
        "expert_parallel": split.expert,
        "data_parallel": split.data,
        "weight_dtype": config.weight_dtype,
        "kv_dtype": config.kv_dtype,
        "isl": flags.isl,
        "osl": flags.osl,
        "batch": prediction.batch,
        "max_batch": prediction.max_batch,
        "max_batch_of_whole_requests": max_whole_requests(
            model, config, flags.isl, flags.osl if prediction.decode else 0.0
        ),
        "prefill": None if prediction.prefill is None else _step_dict(prediction.prefill),
        "decode": None if prediction.decode is None else _step_dict(prediction.decode),
        "ridge_point_flop_per_byte": prediction.ridge_point,
        "kv_bytes_per_token": prediction.kv_bytes_per_token,
        "weights_bytes_per_gpu": prediction.weights_per_gpu,
        "activations_bytes_per_gpu": prediction.activations_per_gpu,
        "kv_capacity_bytes_per_gpu": prediction.kv_capacity_per_gpu,
        "requests_per_second": per_second,
        "prompt_tokens_per_second": None if prediction.prefill is None else per_second * flags.isl,
        "output_tokens_per_second": None if flags.role == "prefill" else per_second * output,
        "usd_per_hour": offer.usd_per_hour * config.gpus,
        "price": price_dict(quote),
        "price_remark": quote.remark(offer.accelerator.name),
        "binds": prediction.binds,
        "origins": [str(origin) for origin in (*prediction.origins, prediction.overhead.origin)],
        "efficiencies": [
            {"kernel_class": kernel, "dtype": dtype, "origin": str(figures.origin), "source": figures.source}
            for (kernel, dtype), figures in prediction.efficiencies.items()
        ],
    }


def _step_dict(step: StepEstimate) -> dict[str, Any]:
    return {
        "time_s": step.time,
        "split_s": dict(step.split),
        "mfu": step.mfu,
        "mbu": step.mbu,
        "arithmetic_intensity_flop_per_byte": step.arithmetic_intensity,
        "bound_by": step.bound_by,
    }


def _page(value: dict[str, Any]) -> Document:
    """The estimate: times of its steps in columns, then what it holds, gets done and costs."""
    from costmodel.engine import Parallelism
    from search_spaces.problem import target_of

    isl, osl, most, whole = (value[key] for key in ("isl", "osl", "max_batch", "max_batch_of_whole_requests"))
    heads = {"prefill": f"prefill of {count(isl)}", "decode": f"decode step of {count(value['batch'])}"}
    steps = {head: value[name] for name, head in heads.items() if value[name] is not None}
    time_parts = [
        name for name in next(iter(steps.values()))["split_s"] if any(s["split_s"][name] for s in steps.values())
    ]
    rows = [
        ["time", *(duration(step["time_s"]) for step in steps.values())],
        *([f"  {name}", *(duration(step["split_s"][name]) for step in steps.values())] for name in time_parts),
        ["MFU", *(percent(step["mfu"]) for step in steps.values())],
        ["MBU", *(percent(step["mbu"]) for step in steps.values())],
        ["FLOP/byte", *(significant(step["arithmetic_intensity_flop_per_byte"]) for step in steps.values())],
        ["bound by", *(step["bound_by"] for step in steps.values())],
    ]
    if value["decode"] is None:
        capacity = ("max prompts", f"{plural(most, 'prompt')} of {count(isl)} tokens")
    else:
        mean = f", if on average half of the output is done; {count(whole)} if all of it is"
        lengths = f"{count(isl)} + {count(osl)} tokens"
        capacity = ("max batch", f"{plural(most, 'request')} of {lengths}{mean if whole < most else ''}")
    per_second, tokens = rate(value["requests_per_second"]), value["output_tokens_per_second"]
    throughput = f"{per_second}, {significant(tokens)} output tokens/s"
    if value["role"] == "prefill":
        prompts = significant(value["prompt_tokens_per_second"])
        throughput = f"{per_second.replace('req/s', 'prompts/s')}, {prompts} prompt tokens/s"
    memory = {"weights": "weights", "activations": "activations and runtime", "kv_capacity": "KV"}
    sizes = ", ".join(f"{value[f'{key}_bytes_per_gpu'] / GIB:.1f} GiB {name}" for key, name in memory.items())
    price_note = f". {value['price_remark']}" if value["price_remark"] else " at the catalog's price"
    facts = (
        ("ridge point", f"{significant(value['ridge_point_flop_per_byte'], 4)} FLOP/byte"),
        ("KV per token", f"{count(value['kv_bytes_per_token'])} B"),
        ("memory", f"{sizes} per GPU"),
        capacity,
        ("throughput", throughput),
        ("price", f"{hourly(value['usd_per_hour'])}{price_note}"),
        ("limited by", value["binds"]),
        ("figures", ", ".join(sorted(set(value["origins"])))),
    )
    gpus = plural(value["gpus"], f"{value['accelerator']} GPU")
    split = Parallelism(*(value[f"{name}_parallel"] for name in ("tensor", "pipeline", "expert", "data")))
    title = (
        f"{value['model']} on {gpus}, {split.words}, {value['role']}, {target_of(value['engine']).title}, "
        f"{value['weight_dtype']} weights, {value['kv_dtype']} KV"
    )
    table = table_of(("", *(f"#{head}" for head in steps)), rows)
    following = "pdplan init   # a workload for pdplan optimize"
    return Document((title,), (Section(table=table), Section(facts=facts)), next_step=following)


@click.command(short_help="Fit the predictions to your own benchmark results.")
@click.argument("results", type=PATH, nargs=-1, required=True)
@replica_options
@click.option("--replicas", type=DEGREE, default=1, help="Equal replicas that shared the load.")
@click.option("--engine", metavar="NAME", help="vllm, sglang or trtllm; default: as the results say, else vllm.")
@weight_dtype_option
@click.option("--kv-dtype", type=Choice(["bf16", "fp8"]), help="Precision of the KV cache; default: the engine's own.")
@click.option(
    "--memory-fraction", callback=share_within(bounds.MEMORY_FRACTION), metavar="SHARE",
    help="Share of HBM that the engine used; default: the engine's.",
)  # fmt: skip
@click.option(
    "--max-num-seqs", type=Whole(bounds.MAX_NUM_SEQS), help="Most requests that run at once; default: no limit."
)
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Write a catalog file with the fitted figures.")
@json_option
@force_option("Replace an existing file, and keep a fit that does not explain the data.")
@with_console
def calibrate(console: Console, /, *, results: tuple[Path, ...], output: Path | None, **options: Any) -> None:
    """Examples:

    \b
      pdplan calibrate results.json --model Llama-3.1-70B --gpu H100 --tp 4 -o overlay.yaml
      pdplan calibrate runs/*.jsonl --model Qwen3-32B --gpu H200 --engine sglang -o overlay.yaml
      pdplan calibrate agg_*.json --model DeepSeek-V3 --gpu H200 --json

    Reads the results of vllm bench serve, SGLang's bench_serving, AIPerf, GenAI-Perf, GuideLLM,
    inference-perf, llm-d, InferenceX or Dynamo's self-benchmark and compares them with the prediction.
    Fits four scales: of arithmetic, of memory traffic, of the engine's host time and of its TTFT
    overhead. -o writes a catalog file: use it as pdplan estimate --catalog FILE, or as catalog: FILE in
    workload.yaml.

    Exits with 2 and writes nothing when the fit does not explain the results: a flag is wrong, or the
    cost model does not know what ran.
    """
    from reports.answers.accuracy import calibration_dict, calibration_document
    from search_spaces.benchmark_results import read_results
    from search_spaces.calibration import calibrate as fit

    catalog: Path | None = options["catalog"]
    inputs = {f"result {number}": path for number, path in enumerate(results, start=1)}
    console.check_files({**inputs, "--catalog": catalog}, {"-o": output})
    setup = _setup(options)
    records = read_results(results)
    if not records:
        raise InputError(f"no results in {join_words([str(path) for path in results])}")
    console.note(f"read {plural(len(records), 'result')} from {plural(len(results), 'file')}; fitting to them")
    tools = ", ".join(dict.fromkeys(record.source for record in records))
    more = f" and {len(results) - 1} more" if len(results) > 1 else ""
    source = f"calibrated on {len(records)} results of {setup.model.name} ({tools}; {results[0].name}{more})"
    calibration = fit(records, setup, source)
    is_kept = not calibration.refusal or console.force
    if output is not None and is_kept:
        console.write(output, _overlay(calibration, source, catalog, console.command), hint=None)
    value = calibration_dict(calibration, str(output) if output is not None and is_kept else None)
    writing = "" if output is not None else f"{console.command} -o overlay.yaml   # writes the fitted figures to a file"
    console.answer(replace(calibration_document(value), next_step=writing if is_kept else ""), value)
    if not is_kept:
        raise InputError(f"{calibration.refusal} (--force keeps the fit)")
    if output is not None:
        flags = shlex.join(["--model", setup.model_name, "--gpu", options["gpu"], "--catalog", str(output)])
        console.note(f"\nwrote {output}\nNext: pdplan estimate {flags}")


def _setup(options: dict[str, Any]) -> Setup:
    """What ran, as the options say it."""
    from costmodel.engine import Parallelism
    from search_spaces.calibration import Setup
    from search_spaces.catalog import load_catalog
    from search_spaces.engines import engine_name
    from search_spaces.enumeration import head_refusals
    from search_spaces.measurements import Workers
    from search_spaces.models import load_model

    tp, pp, ep, dp = (options[name] for name in ("tp", "pp", "ep", "dp"))
    if (tp * dp) % ep:
        raise InputError(f"--ep {ep} does not divide --tp {tp} x --dp {dp}")
    catalog = load_catalog(options["catalog"])
    with value_of("--model"):
        model = load_model(options["model"])
    with value_of("--gpu"):
        accelerator = catalog.accelerator(options["gpu"])
    with value_of("--engine"):
        engine = None if options["engine"] is None else engine_name(options["engine"])
    head_refusal = next((reason for _, reason in head_refusals(model, tp)), None)
    if head_refusal is not None:
        raise InputError(f"{model.name} cannot run on {accelerator.name}: {head_refusal}")
    workers = Workers(options["replicas"], Parallelism(tp, pp, ep, dp))
    settings = {name: options[name] for name in ("weight_dtype", "kv_dtype", "memory_fraction", "max_num_seqs")}
    return Setup(catalog, options["model"], model, accelerator, workers, engine, **settings)


def _overlay(calibration: Calibration, source: str, catalog: Path | None, command: str) -> str:
    from search_spaces.calibration import calibrated_overlay

    scales = ", ".join(f"{name} x {getattr(calibration.fit.scales, name):.3g}" for name in calibration.fit.free)
    kept_scales = f"; not seen in the data and kept: {', '.join(calibration.kept)}" if calibration.kept else ""
    heading = [
        f"catalog file written by: {command}",
        source,
        f"scales: {scales}{kept_scales}",
        "kernels that these results did not use stay as shipped",
    ]
    return calibrated_overlay(calibration, heading, source, catalog)


FILES = ("closed_loop.csv", "r1_2026.csv", "engine_steps.csv")
"""What is looked for in a data folder and in its `serving` folder: serving results and composed engine steps."""


@click.command(short_help="Recompute the prediction errors from measurements.")
@click.argument("data_dir", required=False, type=PATH)
@click.option(
    "--against",
    type=PATH,
    metavar="FILE",
    help="One CSV file of measurements, in place of DATA_DIR; with --plan: the result of a benchmark.",
)
@click.option(
    "--plan", type=PATH, metavar="PLAN",
    help="With --against: compare the benchmark of this plan's deployment with the plan's prediction.",
)  # fmt: skip
@alternative_option
@click.option(
    "--prometheus", type=PATH, metavar="FILE",
    help="With --plan: a Prometheus range query of its fleet; say whether real traffic meets the SLO.",
)  # fmt: skip
@click.option("--slo-class", metavar="NAME", help="With --plan: the class whose requests FILE is about.")
@click.option(
    "--balancing",
    type=Choice(ROUTERS, ROUTER_SPELLINGS),
    help="With --plan: how the router chose a replica of a pool; default: as in the plan.",
)
@click.option(
    "--models", type=PATH, metavar="DIR",
    help="Models that the catalog lacks: DIR/ORG/NAME/config.json; default: DATA_DIR/models.",
)  # fmt: skip
@click.option("--rows", "with_rows", is_flag=True, help="With --json: also every prediction with its interval.")
@catalog_option
@json_option
@with_console
def validate(console: Console, /, **options: Any) -> int:
    """Examples:

    \b
      pdplan validate data/
      pdplan validate --against my_results.csv --models my_models/ --json
      pdplan validate --against benchmark/results/profile_export_aiperf.json --plan plan.json
      pdplan validate --prometheus prometheus.json --plan plan.json

    Predicts every measured row and prints the errors by model, accelerator, engine and mode: median,
    90th percentile, bias, and how many measured values the 90 % intervals cover. A row that cannot be
    predicted says why.

    FILE and the files of DATA_DIR have the columns of serving/closed_loop.csv (TTFT and TPOT at fixed
    concurrency) or of serving/engine_steps.csv (single steps); the header decides. Flags of the engine
    are taken from the columns kv_dtype, memory_fraction, max_num_batched_tokens and
    scheduler_recv_interval, else from engine_settings.csv beside the file. spec_method (mtp, eagle3 or
    ngram), spec_tokens and spec_acceptance (such as 0.7 0.5) say how tokens are drafted. Exits with 2
    where no row can be predicted.

    With --plan it says whether the fleet meets the plan's SLO, and exits with 3 where it does not, or
    where that cannot be told.
    """
    from reports.answers.accuracy import validation_dict, validation_document
    from search_spaces.catalog import load_catalog
    from search_spaces.measured_engines import predict_serving, predict_steps
    from search_spaces.measurements import SCRIPTS, RowKind, read_measurements, read_scripts, with_settings

    flags = Flags(**options)
    for flag, value in (("--slo-class", flags.slo_class), ("--balancing", flags.balancing)):
        if value is not None and flags.plan is None:
            raise click.UsageError(f"{flag} goes with --plan")
    if flags.alternative > 1 and flags.plan is None:
        raise click.UsageError("--alternative goes with --plan")
    if flags.plan is not None or flags.prometheus is not None:
        return _against_plan(console, flags)
    (files, folder), catalog = _files(flags), load_catalog(flags.catalog)
    errors: dict[str, dict[str, Any]] = {}
    for file in files:
        console.note(f"predicting the rows of {file.name}")
        kind, rows = read_measurements(file)
        rows = with_settings(rows, read_scripts(file.parent / SCRIPTS))
        predict = predict_serving if kind is RowKind.SERVING else predict_steps
        errors[file.name] = validation_dict(kind, predict(rows, catalog, folder), with_rows=flags.with_rows)
    (_, first), *others = errors.items()  # those of another format stand under it, of the same under their own names
    others_by_name = {name if value["format"] == first["format"] else value["format"]: value for name, value in others}
    record = {"schema": "pdplan.validation/1", **first, **others_by_name}
    code = console.answer(validation_document(errors), record)
    for name, result in errors.items():
        if not result["rows"]:
            raise InputError(f"{name} has no rows below its header")
        if not result["predicted"]:
            line, reason = (result["refused"][0][key] for key in ("line", "reason"))
            raise InputError(f"{name}: none of its rows can be predicted; the first, line {line}: {reason}")
    return code


def _against_plan(console: Console, flags: Flags) -> int:
    """Show what a plan predicts beside what was measured, and say whether its fleet meets the SLO."""
    from reports.answers.measured import comparison_dict, comparison_document, watch_dict, watch_document
    from reports.deploy.measurement import behind
    from search_spaces.problem import Balancing

    foreign_flags = any([flags.data_dir, flags.models, flags.catalog, flags.with_rows])
    if flags.prometheus is not None:
        if flags.plan is None or flags.against is not None or foreign_flags:
            raise click.UsageError("--prometheus FILE goes with --plan PLAN alone")
        value = watch_dict(read_fleet(flags.plan, flags.alternative), flags.prometheus, flags.slo_class)
        return console.answer(watch_document(value), value)
    if flags.plan is None or flags.against is None or foreign_flags:
        raise click.UsageError("--plan goes with --against FILE alone, a benchmark's result")
    plan = read_fleet(flags.plan, flags.alternative)
    prediction = plan if flags.balancing is None else behind(plan, Balancing(flags.balancing))
    value = comparison_dict(prediction, flags.against, flags.slo_class)
    return console.answer(comparison_document(value), value)


def _files(flags: Flags) -> tuple[list[Path], Path | None]:
    """The one file that was named, else those of the data folder; and the folder of models, named or in that folder."""
    folder, models = flags.data_dir, flags.models
    if models is not None and not models.is_dir():
        raise InputError(f"--models {models} is not a directory")
    if models is None and folder and (folder / "models").is_dir():
        models = folder / "models"
    if flags.against is not None:
        return [flags.against], models
    if folder is None:
        raise click.UsageError("give DATA_DIR, or --against FILE")
    if not folder.is_dir():
        reason = "is not a folder; a single file goes behind --against" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {reason}")
    paths = [path for name in FILES for path in (folder / "serving" / name, folder / name) if path.is_file()]
    if not paths:
        raise InputError(f"{folder} has none of {', '.join(FILES)}, nor has its folder 'serving'")
    return paths, models
