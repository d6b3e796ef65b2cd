"""`pdplan gpus` and `pdplan models`: what the catalog knows, with the source of every figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costmodel.accelerator import PriceBasis
from costmodel.errors import InputError
from pdplan.console import Console, facts_text, write_text
from pdplan.files import check_files
from pdplan.options import (
    PATH,
    Prices,
    catalog_option,
    console_options,
    force_option,
    json_option,
    pass_console,
    value_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from costmodel.accelerator import Accelerator
    from costmodel.transformer import Transformer
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
    help="Alone behind NAME: every quote, by provider and commitment, with its date. With on-demand, reserved, spot or "
    "tco: those quotes as prices. With a CSV file: your own quotes.",
)
@json_option
@console_options
@pass_console
def gpus(console: Console, /, *, name: str | None, catalog: Path | None, prices: str | None, as_json: bool) -> None:
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

    every = prices == ALL_PRICES
    known, basis = load_catalog(catalog, None if every else prices), basis_of(prices)
    if name is not None:
        with value_of("NAME"):
            accelerator = known.accelerator(name)
        if every or (prices is not None and basis is None):
            own = {} if every else known.own_quotes(Path(str(prices)))
            quotes = (shipped_quotes() if every else own).get(accelerator.name, ())
            console.show(_quote_entries(quotes) if as_json else _quote_page(accelerator, quotes, console.width))
            return
        entry = _entry(accelerator, basis)
        console.show(entry if as_json else _page(entry, console.width))
    elif as_json:
        console.show([_entry(each, basis) for each in known.accelerators.values()])
    else:
        console.show(_table(list(known.accelerators.values()), basis, console.width))
        console.hint("pdplan gpus NAME   # sources and efficiencies of one")


def _entry(accelerator: Accelerator, basis: PriceBasis | None) -> dict[str, Any]:
    """The accelerator ready for JSON, its price on the basis first: null where nobody quotes one."""
    from search_spaces.catalog import entry_dict, price_dict
    from search_spaces.serving_error import is_seen
    from search_spaces.targets import undeployed

    price = accelerator.price_on(basis)
    others = [other for other in (accelerator.price, *accelerator.other_prices) if other is not price]
    kernels = "measured on it" if accelerator.measured else "measured on its relatives alone, so error bars are wider"
    return entry_dict(accelerator) | {
        "kernels": kernels if is_seen(accelerator) else "nothing of its generation was measured: error bars are wide",
        "deployment": undeployed(accelerator),
        "price": None if price is None else price_dict(price),
        "other_prices": [price_dict(other) for other in others],
    }


def _quote_entries(quotes: Sequence[Quote]) -> list[dict[str, Any]]:
    from dataclasses import asdict

    return [asdict(quote) for quote in quotes]


def _quote_page(accelerator: Accelerator, quotes: Sequence[Quote], width: int) -> str:
    """The prices of one accelerator by commitment, and the quotes that they are the medians of."""
    from reports.numbers import listed
    from reports.table import Column, render_table
    from search_spaces.quotes import Commitment

    facts = facts_text(_price_facts(_entry(accelerator, None)), width)
    rows = [
        [quote.provider or "–", str(quote.commitment), listed(quote.usd_per_hour), quote.date or "–", quote.source]
        for quote in sorted(quotes, key=lambda quote: (list(Commitment).index(quote.commitment), quote.usd_per_hour))
    ]
    columns = [
        *(Column(head) for head in ("provider", "commitment")),
        Column("$/h", "right"),
        Column("date"),
        Column("source", shrink=True, lines=3, optional=True),
    ]
    table = render_table(rows, columns, width) if rows else f"Nobody quotes {accelerator.name}."
    return f"{accelerator.name}\n\n{facts}\n\n{table}"


def _price_cells(accelerator: Accelerator, basis: PriceBasis | None) -> list[str]:
    """The price and its spread; a star where it is no on-demand quote though none was asked to be another."""
    from reports.numbers import MISSING, money

    price = accelerator.price_on(basis)
    if price is None:
        return [MISSING, MISSING]
    star = "*" if basis is None and price.remark(accelerator.name) else ""
    return [
        f"{money(price.usd_per_hour)}{star}".removeprefix("$"),
        f"{money(price.low)}–{money(price.high)}".replace("$", ""),
    ]


def _table(known: list[Accelerator], basis: PriceBasis | None, width: int) -> str:
    from costmodel.units import GIB, GIGA, TERA
    from reports.numbers import significant
    from reports.table import Column, kept_headers, render_table
    from reports.text import wrap

    def peak(accelerator: Accelerator, dtype: str) -> str:
        flops = accelerator.peak_flops.get(dtype)
        return "–" if flops is None else significant(flops / TERA, 4)

    rows = [
        [
            gpu.name,
            significant(gpu.memory / GIB),
            significant(gpu.bandwidth / TERA),
            peak(gpu, "bf16"),
            peak(gpu, "fp8"),
            peak(gpu, "fp4"),
            significant(gpu.ridge_point("bf16")),
            significant(gpu.scale_up.bandwidth / GIGA),
            significant(gpu.scale_out.bandwidth / GIGA),
            str(gpu.node_size),
            significant(gpu.tdp, 4),
            *_price_cells(gpu, basis),
        ]
        for gpu in known
    ]
    names = ("GiB", "TB/s", "bf16", "fp8", "fp4", "ridge", "up", "out", "node", "W", "$/h", "spread")
    columns = [Column("name"), *(Column(name, "right", optional=name in {"ridge", "spread"}) for name in names)]
    shown = kept_headers(rows, columns, width)
    ridge = " ridge: FLOP/byte at bf16." if "ridge" in shown else ""
    spread = "; spread: the cheapest and the dearest provider" if "spread" in shown else ""
    notes = (
        f"GiB, TB/s: memory and its bandwidth. bf16, fp8, fp4: dense TFLOP/s.{ridge}",
        "up, out: GB/s of one GPU's link inside a node of `node` GPUs, and between nodes. W: board power.",
        f"$/h: median {'list price' if basis is None else f'{basis} quote'} of one GPU{spread}.",
        "*: no on-demand quote of this GPU; `pdplan gpus NAME` says whose or which price it is."
        if basis is None
        else "–: nobody quotes one.",
    )
    lines = [line for note in notes for line in wrap(note, width)]
    return "\n".join([render_table(rows, columns, width), "", *lines])


def _page(entry: dict[str, Any], width: int) -> str:
    from reports.numbers import percent, si
    from reports.table import Column, render_table

    peaks = ", ".join(f"{dtype} {si(flops, 'FLOP/s')}" for dtype, flops in entry["peak_flops_per_s"].items())
    ridge = ", ".join(f"{dtype} {value:.1f}" for dtype, value in entry["ridge_point_flop_per_byte"].items())
    facts = [
        ("memory", f"{entry['memory_bytes'] / 2**30:g} GiB at {si(entry['bandwidth_bytes_per_s'], 'B/s')}"),
        ("dense peak", peaks),
        ("ridge point", f"{ridge} FLOP/byte"),
        (
            "in a node" if entry["scale_up"]["gpus"] <= entry["node_size"] else "in a domain",
            f"{_link(entry['scale_up'])}, {entry['scale_up']['gpus']} GPUs joined",
        ),
        ("between nodes", f"{_link(entry['scale_out'])}, per GPU"),
        ("node", f"{entry['node_size']} GPUs, {_label(entry)}"),
        ("board power", f"{entry['tdp_w']:g} W"),
        *_price_facts(entry),
        *([("assumed", entry["assumed"])] if entry["assumed"] else []),
        ("kernels", entry["kernels"]),
        *([("deployment", entry["deployment"])] if entry["deployment"] else []),
        ("source", f"{entry['source']} (vendor, {entry['date']})"),
    ]
    rows = [
        [
            f"{kernel} {dtype}",
            percent(figures["compute"]),
            percent(figures["memory"]),
            f"{figures['launch_s'] * 1e6:.3g} µs",
            figures["origin"],
            percent(figures["error"]),
            figures["source"],
        ]
        for kernel, by_dtype in entry["efficiency"].items()
        for dtype, figures in by_dtype.items()
    ]
    columns = [
        Column("kernel class"),
        *(Column(name, "right") for name in ("of peak", "of bandwidth", "launch")),
        Column("origin"),
        Column("error", "right"),
        Column("source", shrink=True, lines=12, optional=True),
    ]
    return f"{entry['name']}\n\n{facts_text(facts, width)}\n\n{render_table(rows, columns, width)}"


def _label(entry: dict[str, Any]) -> str:
    return f"Kubernetes label {entry['node_label']}" if entry["node_label"] else "no Kubernetes label known"


def _price_facts(entry: dict[str, Any]) -> list[tuple[str, str]]:
    """Every price with its spread and origin, that of the plans first."""
    from reports.numbers import listed
    from reports.text import plural

    facts = [("price", "nobody quotes one")] if entry["price"] is None else []
    for price in filter(None, (entry["price"], *entry["other_prices"])):
        spread = f"{listed(price['usd_per_hour'])}, from {listed(price['low'])} to {listed(price['high'])}"
        source = f"{plural(price['quotes'], 'quote')}, {price['source']} ({price['origin']}, {price['date']})"
        facts += [("" if facts else "price", spread), ("", source)]
    return facts


def _link(link: dict[str, float]) -> str:
    from reports.numbers import duration, si

    return f"{si(link['bandwidth_bytes_per_s'], 'B/s')} one way, {duration(link['latency_s'])}"


@click.command(short_help="List the models of the catalog, or show one.")
@click.argument("name", required=False)
@click.option("--from", "config", metavar="CONFIG", help="The same as NAME.")
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Write an architecture file of NAME, to be completed.")
@json_option
@force_option
@console_options
@pass_console
def models(
    console: Console,
    /,
    *,
    name: str | None,
    config: str | None,
    output: Path | None,
    as_json: bool,
    force: bool,
) -> None:
    """Examples:

    \b
      pdplan models
      pdplan models qwen3-235b
      pdplan models path/to/config.json
      pdplan models path/to/config.json -o my-model.yaml

    Lists the models: parameters, KV cache per token, attention, experts. With NAME, shows every figure of
    one, or all names that contain its words. NAME may be a Hugging Face config.json, to see how pdplan
    understands it, or an architecture file.

    -o writes an architecture file: the model as groups of equal layers. Fields of a config that are not
    understood are left out and named in comments at its top. Plan with it by model: {architecture: FILE}.
    """
    from reports.text import plural
    from search_spaces.models import (
        architecture_text,
        is_model,
        load_model,
        model_entry,
        model_names,
        model_to_edit,
        names_with,
    )

    name = name or config
    if output is not None:
        if name is None:
            raise InputError("-o FILE writes the architecture file of one model; name it, such as a config.json")
        check_files({"-o": output}, {}, force=force)
        with value_of("NAME"):
            model, gaps = model_to_edit(name)
        write_text(output, architecture_text(model, gaps), force=force)
        console.note(f"wrote {output}" + (f"; {plural(len(gaps), 'field')} not understood" if gaps else ""))
        return
    if name is not None:
        alike = names_with(name)
        if alike and not is_model(name):
            rows = [{"written": written} | model_entry(load_model(written)) for written in alike]
            console.show(rows if as_json else _found_table(rows, console.width))
            return
        with value_of("NAME"):
            entry = model_entry(load_model(name))
        console.show(entry if as_json else _model_page(entry, console.width))
        return
    known = [load_model(model_name) for model_name in model_names()]
    if as_json:
        console.show([model_entry(model) for model in known])
    else:
        console.show(_model_table(known, console.width))
        console.hint("pdplan models NAME   # layers, precision and source of one")


def _found_table(rows: list[dict[str, Any]], width: int) -> str:
    """Names that a search found, with what tells variants of one model apart."""
    from reports.numbers import count, significant
    from reports.table import Column, render_table

    cells = [
        [
            row["written"],
            f"{significant(row['parameters'] / 1e9)} B",
            row["native_weight_dtype"],
            count(row["max_position"]),
        ]
        for row in rows
    ]
    columns = [Column("name"), Column("params", "right"), Column("weights"), Column("context", "right")]
    return render_table(cells, columns, width)


def _model_table(known: list[Transformer], width: int) -> str:
    from reports.numbers import count, significant
    from reports.table import Column, render_table
    from reports.text import wrap
    from search_spaces.models import model_entry

    rows = []
    for model in known:
        entry = model_entry(model)
        rows.append(
            [
                entry["name"],
                f"{significant(entry['parameters'] / 1e9)} B",
                f"{significant(entry['active_parameters'] / 1e9)} B",
                str(entry["layers"]),
                ", ".join(f"{kind['layers']} {kind['kind']}" for kind in entry["attention"]),
                f"{entry['experts_per_token']} of {entry['experts']}" if entry["experts"] else "–",
                count(entry["kv_bytes_per_token"]["bf16"]),
                entry["native_weight_dtype"],
                count(entry["max_position"]),
            ]
        )
    columns = [
        Column("name"),
        *(Column(name, "right") for name in ("params", "active")),
        Column("layers", "right", optional=True),
        Column("attention", shrink=True, lines=12),
        *(Column(name, "right") for name in ("experts", "KV/token")),
        Column("weights", optional=True),
        Column("context", "right"),
    ]
    late = [f"{entry['name']} {_late(entry, 'bf16')}" for entry in map(model_entry, known) if _has_windows(entry)]
    note = "KV/token: bytes of bf16 KV cache that one more token adds"
    note += f"; once the windows of its layers are full: {', '.join(late)}." if late else "."
    return "\n".join([render_table(rows, columns, width), "", *wrap(note, width)])


def _has_windows(entry: dict[str, Any]) -> bool:
    return bool(entry["kv_bytes_per_token"] != entry["kv_bytes_per_token_beyond_windows"])


def _late(entry: dict[str, Any], dtype: str) -> str:
    """KV bytes that one more token adds once all windows are full."""
    from reports.numbers import count

    return count(entry["kv_bytes_per_token_beyond_windows"][dtype])


def _model_page(entry: dict[str, Any], width: int) -> str:
    from reports.numbers import count, si
    from search_spaces.models import served_checkpoint

    kv = ", ".join(f"{dtype} {count(size)} B" for dtype, size in entry["kv_bytes_per_token"].items())
    late = ", ".join(f"{dtype} {_late(entry, dtype)} B" for dtype in entry["kv_bytes_per_token"])
    experts = f"{entry['experts_per_token']} of {entry['experts']} experts per token" if entry["experts"] else "dense"
    served = served_checkpoint(entry["name"]) if entry["date"] else None
    quantized = f", {' and '.join(entry['quantized_parts'])}" if entry["quantized_parts"] else ""
    facts = [
        ("parameters", f"{count(entry['parameters'])}, of which a token meets {count(entry['active_parameters'])}"),
        ("layers", f"{entry['layers']}, hidden width {count(entry['hidden_size'])}, {experts}"),
        ("attention", ", ".join(f"{kind['layers']} layers {kind['kind']}" for kind in entry["attention"])),
        ("KV per token", kv),
        *([("", f"{late} once all windows are full")] if _has_windows(entry) else []),
        *([("served as", served)] if served else []),
        ("state", f"{si(entry['state_bytes_per_request'], 'B')} per request, whatever its length"),
        ("weights", f"{entry['native_weight_dtype']}{quantized}"),
        ("vocabulary", f"{count(entry['vocabulary'])} tokens, context {count(entry['max_position'])}"),
        ("source", entry["source"] + (f" ({entry['date']})" if entry["date"] else "")),
    ]
    return f"{entry['name']}\n\n{facts_text(facts, width)}"
