"""`pdplan gpus` and `pdplan models`: the catalog, with the source of every figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costmodel.accelerator import PriceBasis
from costmodel.errors import InputError
from costmodel.units import GIB, GIGA, MICRO, TERA
from costmodel.words import listed, plural
from pdplan.console import Console
from pdplan.exits import ExitCode
from pdplan.options import PATH, Prices, catalog_option, force_option, json_option, with_console
from reports.document import Column, Document, Facts, Section, said, table_of
from reports.text import MISSING, count, duration, hourly, money, percent, si, signed_percent, significant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from costmodel.accelerator import Accelerator
    from search_spaces.quotes import Quote

ALL_PRICES = "all"
"""What `--prices` of `gpus` means alone."""


@click.command(short_help="List the accelerators of the catalog, or show one.")
@click.argument("name", required=False)
@catalog_option
@click.option(
    "--prices",
    type=Prices([ALL_PRICES, *(basis.value for basis in PriceBasis)]),
    is_flag=False,
    flag_value=ALL_PRICES,
    metavar="[BASIS|FILE]",
    help="After NAME, without a value: every quote, by provider and commitment, with its date. With on-demand, "
    "reserved, spot or tco: those quotes as prices. With a CSV file: your own quotes.",
)
@json_option
@with_console
def gpus(console: Console, /, *, name: str | None, catalog: Path | None, prices: str | None) -> int:
    """Examples:

    \b
      pdplan gpus
      pdplan gpus H200
      pdplan gpus H200 --prices
      pdplan gpus --catalog mine.yaml --json

    Lists the accelerators: dense peaks, memory, links, power and the median price. With NAME, shows
    every figure of one, with its source and origin.
    """
    from search_spaces.catalog import load_catalog
    from search_spaces.quotes import basis_of, shipped_quotes

    all_prices = prices == ALL_PRICES
    catalog_entries, basis = load_catalog(catalog, None if all_prices else prices), basis_of(prices)
    if name is None:
        accelerators = list(catalog_entries.accelerators.values())
        return console.answer(_gpu_list(accelerators, basis), [_entry(gpu, basis) for gpu in accelerators])
    accelerator = catalog_entries.accelerator(name)
    if all_prices or (prices is not None and basis is None):
        own = {} if all_prices else catalog_entries.own_quotes(Path(str(prices)))
        quotes = (shipped_quotes() if all_prices else own).get(accelerator.name, ())
        rows = [quote.model_dump(mode="json") for quote in quotes]
        return console.answer(_quote_page(accelerator, quotes), rows)
    entry = _entry(accelerator, basis)
    return console.answer(_gpu_page(entry), entry)


def _entry(accelerator: Accelerator, basis: PriceBasis | None) -> dict[str, Any]:
    """The accelerator ready for JSON, its price on the basis first: null where nobody quotes one."""
    from search_spaces.catalog import entry_dict, price_dict
    from search_spaces.problem import undeployed
    from search_spaces.serving_error import is_seen

    price = accelerator.price_on(basis)
    other_prices = [
        price_there for price_there in (accelerator.price, *accelerator.other_prices) if price_there is not price
    ]
    kernels = "measured on it" if accelerator.measured else "not measured on it, so error bars are wider"
    return entry_dict(accelerator) | {
        "kernels": kernels if is_seen(accelerator) else "nothing of its generation was measured: error bars are wide",
        "deployment": undeployed(accelerator),
        "price": None if price is None else price_dict(price),
        "other_prices": [price_dict(price_there) for price_there in other_prices],
    }


def _gpu_list(accelerators: Sequence[Accelerator], basis: PriceBasis | None) -> Document:
    names = ("GiB", "TB/s", "bf16", "fp8", "fp4", *WIDE[:1], "up", "out", "node", "W", "$/h", *WIDE[1:])
    columns = [Column("name"), *(Column(name, "right", optional=name in WIDE) for name in names)]
    rows = []
    for gpu in accelerators:
        price, prices = gpu.price_on(basis), (MISSING, MISSING)
        if price is not None:
            star = "*" if basis is None and price.guessed else ""
            low, high = (money(value).removeprefix("$") for value in (price.low, price.high))
            usd = listed(price.usd_per_hour).removeprefix("$").removesuffix("/h")
            prices = f"{usd}{star}", f"{low}–{high}"
        cells = (
            significant(gpu.memory / GIB),
            significant(gpu.bandwidth / TERA),
            *(significant(flops / TERA if (flops := gpu.peak_flops.get(dtype)) else None, 4) for dtype in DTYPES),
            significant(gpu.ridge_point("bf16")),
            significant(gpu.scale_up.bandwidth / GIGA),
            significant(gpu.scale_out.bandwidth / GIGA),
            str(gpu.node_size),
            significant(gpu.tdp, 4),
        )
        rows.append((gpu.name, *cells, *prices))
    star = "*: no on-demand quote of this GPU; `pdplan gpus NAME` says whose or which price it is."
    notes = (
        "GiB, TB/s: memory and its bandwidth. bf16, fp8, fp4: dense TFLOP/s. W: board power.",
        "up, out: GB/s of one GPU's link inside a node of `node` GPUs, and between nodes.",
        f"$/h: median over providers of their median {'list prices' if basis is None else f'{basis} quotes'} per GPU.",
        star if basis is None else f"{MISSING}: nobody quotes one.",
    )
    following = "pdplan gpus NAME   # sources and efficiencies of one"
    return Document((), (Section(table=table_of(columns, rows)), Section(sentences=notes)), next_step=following)


DTYPES = ("bf16", "fp8", "fp4")
WIDE = ("FLOP/byte", "cheapest–dearest")
"""Columns that only wide tables have, so their heads say all: the ridge point at bf16, and the prices of providers."""


def _quote_page(accelerator: Accelerator, quotes: Sequence[Quote]) -> Document:
    """The prices of one accelerator by commitment, and the quotes that they are the medians of."""
    from search_spaces.quotes import BASES

    rows = [
        (quote.provider or MISSING, quote.commitment, listed(quote.usd_per_hour), quote.date or MISSING, quote.source)
        for quote in sorted(quotes, key=lambda quote: (list(BASES).index(quote.commitment), quote.usd_per_hour))
    ]
    columns = ("provider", "commitment", "#$/h", "date", Column("source", shrink=True, lines=3, optional=True))
    nobody = said("" if rows else f"Nobody quotes {accelerator.name}.")
    facts = _price_facts(_entry(accelerator, None))
    return Document(
        (accelerator.name,), (Section(facts=facts), Section(sentences=nobody, table=table_of(columns, rows)))
    )


def _gpu_page(entry: dict[str, Any]) -> Document:
    """Every figure of an accelerator, then the efficiencies of its kernels."""
    peaks = ", ".join(f"{dtype} {si(flops, 'FLOP/s')}" for dtype, flops in entry["peak_flops_per_s"].items())
    ridge = ", ".join(f"{dtype} {value:.1f}" for dtype, value in entry["ridge_point_flop_per_byte"].items())
    up, label = entry["scale_up"], entry["node_label"]
    facts = (
        ("memory", f"{entry['memory_bytes'] / GIB:g} GiB at {si(entry['bandwidth_bytes_per_s'], 'B/s')}"),
        ("dense peak", peaks),
        ("ridge point", f"{ridge} FLOP/byte"),
        ("in a node" if up["gpus"] <= entry["node_size"] else "in a domain", f"{_link(up)}, {up['gpus']} GPUs joined"),
        ("between nodes", f"{_link(entry['scale_out'])}, per GPU"),
        ("node", f"{entry['node_size']} GPUs, {f'Kubernetes label {label}' if label else 'no Kubernetes label known'}"),
        ("board power", f"{entry['tdp_w']:g} W"),
        *_price_facts(entry),
        ("assumed", entry["assumed"]),
        ("kernels", entry["kernels"]),
        ("deployment", entry["deployment"]),
        ("source", f"{entry['source']} (vendor, {entry['date']})"),
    )
    rows = [
        (
            f"{kernel} {dtype}",
            percent(figures["compute"]),
            percent(figures["memory"]),
            f"{figures['launch_s'] / MICRO:.3g} µs",
            figures["origin"],
            percent(figures["error"]),
            figures["source"],
        )
        for kernel, by_dtype in entry["efficiency"].items()
        for dtype, figures in by_dtype.items()
    ]
    source = Column("source", shrink=True, lines=12, optional=True)
    columns = ("kernel class", "#of peak", "#of bandwidth", "#launch", "origin", "#error", source)
    stated = tuple((name, value) for name, value in facts if value)
    note = "of peak, of bandwidth: what a kernel approaches as it grows. Small kernels reach less."
    kernels = Section(table=table_of(columns, rows), notes=said(note * bool(rows)))
    return Document((entry["name"],), (Section(facts=stated), kernels))


def _price_facts(entry: dict[str, Any]) -> Facts:
    """Every price with its spread and origin, that of the plans first."""
    facts = [("price", "nobody quotes one")] if entry["price"] is None else []
    for price in filter(None, (entry["price"], *entry["other_prices"])):
        spread = listed(price["usd_per_hour"])
        if price["quotes"] > 1:
            span = f"from {hourly(price['low'])} to {hourly(price['high'])}"
            spread += f", {span}: the median over providers of each one's median"
        source = f"{plural(price['quotes'], 'quote')}, {price['source']} ({price['origin']}, {price['date']})"
        facts += [("" if facts else "price", spread), ("", source)]
    return tuple(facts)


def _link(link: dict[str, float]) -> str:
    return f"{si(link['bandwidth_bytes_per_s'], 'B/s')} one way, {duration(link['latency_s'])}"


@click.command(short_help="List the models of the catalog, or show one.")
@click.argument("name", required=False)
@click.option("--from", "config", metavar="CONFIG", help="The same as NAME.")
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Write an architecture file of NAME, to be completed.")
@click.option(
    "--check", is_flag=True, help="Also count the parameters of NAME with transformers (pdplan[transformers])."
)
@json_option
@force_option()
@with_console
def models(console: Console, /, *, name: str | None, config: str | None, output: Path | None, check: bool) -> ExitCode:
    """Examples:

    \b
      pdplan models
      pdplan models qwen3-235b
      pdplan models path/to/config.json
      pdplan models path/to/config.json --check
      pdplan models path/to/config.json -o my-model.yaml

    Lists the models: parameters, KV cache per token, attention, experts. With NAME, shows every figure of
    one, or all names that contain its words. NAME may be a Hugging Face config.json, to see how pdplan
    understands it, or an architecture file.

    -o writes an architecture file: the model as groups of equal layers. Fields of a config that are not
    understood are left out, and fields that are missing get a value; comments at its top name both.
    Plan with it by model: {architecture: FILE}.

    --check builds the model with transformers, without weights, and compares the parameters. The command
    ends with 3 where they differ by more than 1 %.
    """
    from search_spaces import models as model_catalog

    name = name or config
    if output is not None:
        if name is None:
            raise InputError("-o FILE writes the architecture file of one model; name it, such as a config.json")
        console.check_files({}, {"-o": output})
        model, gaps = model_catalog.model_to_edit(name)
        hint = f"; {plural(len(gaps), 'field')} to check, named at its top" if gaps else ""
        console.write(output, model_catalog.architecture_text(model, gaps), hint=hint)
        return ExitCode.DONE
    if check:
        if name is None:
            raise InputError("--check counts the parameters of one model; name it, such as a config.json")
        return _show_check(console, name)
    alike = [] if name is None or model_catalog.is_model(name) else model_catalog.names_with(name)
    if name is not None and not alike:
        entry = _model_entry(name)
        return console.answer(_model_page(entry, name), entry)
    entries = [{"written": spelling} | _model_entry(spelling) for spelling in alike or model_catalog.model_names()]
    return console.answer(_model_list(entries, brief=bool(alike)), entries)


def _model_entry(name: str) -> dict[str, Any]:
    """A model as it is listed, with the state of a request as each serving engine keeps it."""
    from search_spaces.engines import SUPPORT
    from search_spaces.models import load_model, model_entry

    model = load_model(name)
    states = {engine: model.with_states(support.state_bits).state_bytes for engine, support in SUPPORT.items()}
    return model_entry(model) | {"state_bytes_per_request": states}


def _show_check(console: Console, name: str) -> ExitCode:
    """Compare the parameters of a model with those that transformers counts."""
    from search_spaces import models as model_catalog

    if not model_catalog.has_transformers():
        raise InputError(
            "--check needs transformers and torch, which are not installed: pip install 'pdplan[transformers]'"
        )
    model = model_catalog.load_model(name)
    groups = model_catalog.counted(model)
    reference_groups, version = model_catalog.reference_count(model_catalog.config_of(name), model.name)
    reference = reference_groups.total()
    difference = model.parameters / reference - 1.0
    agrees = abs(difference) <= model_catalog.AGREEMENT
    rows = [(group, count(groups[group]), count(reference_groups[group])) for group in model_catalog.GROUPS]
    sentence = (
        f"{model.name}: pdplan counts {count(model.parameters)} parameters, transformers {version} counts "
        f"{count(reference)} ({signed_percent(difference, 2)}); they {'agree' if agrees else 'disagree'}."
    )
    table = None if agrees else table_of(("group", "#pdplan", "#transformers"), rows)
    record = {
        "name": model.name,
        "parameters": model.parameters,
        "reference_parameters": reference,
        "difference": difference,
        "groups": {group: [groups[group], reference_groups[group]] for group in model_catalog.GROUPS},
        "transformers": version,
    }
    return console.answer(Document((sentence,), (Section(table=table),) if table else (), positive=agrees), record)


def _model_list(entries: Sequence[dict[str, Any]], *, brief: bool) -> Document:
    """The models with what tells them apart; brief: names that a search found, with what tells variants apart."""
    from search_spaces.models import other_names

    rows, variants = [], []
    for entry in entries:
        size = f"{significant(entry['parameters'] / GIGA)} B"
        weights, context = entry["native_weight_dtype"], count(entry["max_position"])
        variants.append((entry["written"], size, weights, context))
        row = (
            entry["written"],
            size,
            f"{significant(entry['active_parameters'] / GIGA)} B",
            str(entry["layers"]),
            ", ".join(f"{layer['layers']} {layer['kind']}" for layer in entry["attention"]),
            f"{entry['experts_per_token']} of {entry['experts']}" if entry["experts"] else MISSING,
            count(entry["kv_bytes_per_token"]["bf16"]),
            weights,
            context,
        )
        rows.append(row)
    if brief:
        note = (
            "A name without its owner may mean the checkpoint for chats: pdplan models NAME shows what it is served as."
        )
        table = table_of(("name", "#params", "weights", "#context"), variants)
        return Document((), (Section(table=table, notes=(note,)),))
    columns = (
        "name",
        *("#params", "#active"),
        Column("layers", "right", optional=True),
        Column("attention", shrink=True, lines=12),
        *("#experts", "#KV/token"),
        Column("weights", optional=True),
        "#context",
    )
    late = [f"{entry['written']} {_late(entry, 'bf16')}" for entry in entries if _has_windows(entry)]
    note = "active: parameters that a token uses, embedding tables included. "
    note += "KV/token: bytes of bf16 KV cache that one more token adds"
    note += f"; less once sliding windows are full: {', '.join(late)}." if late else "."
    same = ", ".join(f"{name} (as {entry})" for name, entry in other_names().items())
    note += f" Models of the same shape, by other names: {same}."
    following = "pdplan models NAME   # layers and source of one"
    return Document((), (Section(table=table_of(columns, rows)), Section(sentences=(note,))), next_step=following)


def _has_windows(entry: dict[str, Any]) -> bool:
    return bool(entry["kv_bytes_per_token"] != entry["kv_bytes_per_token_beyond_windows"])


def _late(entry: dict[str, Any], dtype: str) -> str:
    """KV bytes that one more token adds once all windows are full."""
    return count(entry["kv_bytes_per_token_beyond_windows"][dtype])


def _weights(entry: dict[str, Any]) -> str:
    """The checkpoint's dtype and the parts that have it, then those of parts with one of their own."""
    own = entry["own_dtypes"]
    main = [component for component in entry["quantized_parts"] if component not in own]
    formats = [(entry["native_weight_dtype"], main)] if main or not own else []
    formats += [(dtype, [name for name in own if own[name] == dtype]) for dtype in sorted(set(own.values()))]
    return "; ".join(f"{dtype}, {' and '.join(pieces)}" if pieces else dtype for dtype, pieces in formats)


def _model_page(entry: dict[str, Any], name: str) -> Document:
    """name: as it was written: that of a checkpoint means that one."""
    from search_spaces.models import served_checkpoint

    kv = ", ".join(f"{dtype} {count(size)} B" for dtype, size in entry["kv_bytes_per_token"].items())
    late = ", ".join(f"{dtype} {_late(entry, dtype)} B" for dtype in entry["kv_bytes_per_token"])
    experts = f"{entry['experts_per_token']} of {entry['experts']} experts per token" if entry["experts"] else "dense"
    checkpoint = served_checkpoint(name) if entry["date"] else None
    sizes = entry["state_bytes_per_request"]
    state = ", ".join(f"{si(size, 'B')} ({engine})" for engine, size in sizes.items())  # as the engines keep it
    state = si(sizes["vllm"], "B") if len(set(sizes.values())) == 1 else state
    towers, drafts = entry["tower_parameters"], entry["draft_parameters"]
    tables, prompts = entry["host_table_parameters"], entry["prompt_parameters"]
    used = f"a token uses {count(entry['active_parameters'])} (with the embedding tables)"
    used += f", and of a long prompt {count(prompts)}" if prompts < entry["active_parameters"] else ""
    facts = (
        ("parameters", f"{count(entry['parameters'])}, of which {used}"),
        ("", f"and {count(tables)} in tables of n-grams, in host memory" if tables else ""),
        ("", f"and {count(towers)} in towers for images or sound, which take memory too" if towers else ""),
        (
            "",
            f"and {count(drafts)} in layers for multi-token prediction, in memory only where they draft" * (drafts > 0),
        ),
        ("layers", f"{entry['layers']}, hidden width {count(entry['hidden_size'])}, {experts}"),
        ("attention", ", ".join(f"{layer['layers']} layers {layer['kind']}" for layer in entry["attention"])),
        ("KV per token", kv),
        ("", f"{late} once all windows are full" if _has_windows(entry) else ""),
        ("served as", checkpoint or ""),
        ("state", f"{state} per request, whatever its length"),
        ("weights", _weights(entry)),
        ("vocabulary", f"{count(entry['vocabulary'])} tokens, context {count(entry['max_position'])}"),
        ("source", entry["source"] + (f" ({entry['date']})" if entry["date"] else "")),
    )
    return Document((entry["name"],), (Section(facts=tuple((name, value) for name, value in facts if value)),))
