"""`pdplan models`: the models that the catalog knows, and how a config.json is understood."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pdplan.console import Console, facts_text
from pdplan.options import console_options, json_option, pass_console, value_of

if TYPE_CHECKING:
    from costmodel.transformer import Transformer


@click.command(short_help="List the models of the catalog, or show one.")
@click.argument("name", required=False)
@json_option
@console_options
@pass_console
def models(console: Console, name: str | None, as_json: bool) -> None:
    """Examples:

    \b
      pdplan models
      pdplan models Llama-3.1-70B
      pdplan models path/to/config.json

    Lists the models: parameters, KV cache per token, attention, experts. With NAME, shows every figure of
    one. NAME may be a Hugging Face config.json, to see how pdplan understands it.
    """
    from search_spaces.models import load_model, model_entry, model_names

    if name is not None:
        with value_of("NAME"):
            entry = model_entry(load_model(name))
        console.show(entry if as_json else _page(entry, console.width))
        return
    known = [load_model(each) for each in model_names()]
    if as_json:
        console.show([model_entry(model) for model in known])
    else:
        console.show(_table(known, console.width))
        console.hint("pdplan models NAME   # layers, precision and source of one")


def _table(known: list[Transformer], width: int) -> str:
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
        Column("attention", shrink=True, lines=4),
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


def _page(entry: dict[str, Any], width: int) -> str:
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
        ("source", f"{entry['source']} ({entry['date']})"),
    ]
    return f"{entry['name']}\n\n{facts_text(facts, width)}"
