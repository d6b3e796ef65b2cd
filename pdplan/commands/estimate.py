"""`pdplan estimate`: one engine in numbers, without a search."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from costmodel.errors import InputError
from costmodel.units import GIB
from costmodel.words import plural
from pdplan.console import Console
from pdplan.options import (
    Choice,
    Flags,
    console_options,
    json_option,
    pass_console,
    prices_option,
    replica_options,
    share_within,
    value_of,
    weight_dtype_option,
    whole,
)
from reports.document import Document, Section, table_of
from reports.numbers import count, duration, hourly, percent, rate, significant
from search_spaces import bounds

if TYPE_CHECKING:
    from costmodel.engine import EngineConfig
    from costmodel.estimate import Estimate, StepEstimate
    from costmodel.transformer import Transformer
    from search_spaces.problem import Offer, Problem

LENGTH = whole(bounds.TOKENS)
REQUESTS = whole(bounds.MAX_NUM_SEQS)


@click.command(short_help="Show one replica in numbers: times, MFU, MBU, batch, what binds.")
@replica_options
@prices_option
@click.option(
    "--role", type=Choice(["colocated", "prefill", "decode"]), default="colocated", show_default=True,
    help="What the replica does.",
)  # fmt: skip
@weight_dtype_option
@click.option("--kv-dtype", type=Choice(["bf16", "fp8"]), help="Precision of the KV cache; default: as the engine's.")
@click.option("--isl", type=LENGTH, default=2048, show_default=True, help="Input length [token].")
@click.option("--osl", type=LENGTH, default=256, show_default=True, help="Output length [token].")
@click.option("--batch", type=REQUESTS, help="Requests that run at once; default: all that fit.")
@click.option("--max-num-seqs", type=REQUESTS, default=1024, show_default=True, help="Most requests that run at once.")
@click.option(
    "--max-num-batched-tokens", type=whole(bounds.MAX_NUM_BATCHED_TOKENS), default=8192, show_default=True,
    help="Most tokens in one step.",
)  # fmt: skip
@click.option(
    "--memory-fraction", callback=share_within(bounds.MEMORY_FRACTION), metavar="SHARE", default="0.9",
    show_default=True, help="The engine's own memory fraction.",
)  # fmt: skip
@click.option(
    "--engine", default="vllm", show_default=True, metavar="NAME", help="vllm, sglang or trtllm: host time, memory."
)  # fmt: skip
@json_option
@console_options
@pass_console
def estimate(console: Console, /, as_json: bool, **options: Any) -> None:
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
    from search_spaces.engines import engine_name, load_engine_overhead

    with value_of("--engine"):
        flags = Flags(**options | {"engine": engine_name(options["engine"])})
    problem = _problem(flags)
    config = _config(problem, flags)
    overhead = load_engine_overhead(flags.engine, problem.engine_changes)
    prediction = predict(problem.model, config, overhead, flags.isl, flags.osl, batch=flags.batch)
    as_value = estimate_dict(problem.model, config, flags, prediction, problem.offers[0])
    console.show(as_value if as_json else _page(as_value))


def _problem(flags: Flags) -> Problem:
    """The one-engine problem whose rules say whether the engine can exist."""
    import numpy as np

    from costmodel.accelerator import PriceBasis
    from costmodel.engine import Role
    from costmodel.workload import Workload
    from search_spaces.catalog import load_catalog
    from search_spaces.checks import unquoted
    from search_spaces.enumeration import usual_kv_dtype
    from search_spaces.models import load_model
    from search_spaces.problem import Offer, Problem, SearchSpace
    from search_spaces.quotes import basis_of

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
        model=model,
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
    memory = {"weights": "weights", "activations": "activations", "kv_capacity": "KV"}
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
