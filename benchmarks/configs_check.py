"""Reads a folder of Hugging Face configs and says which are understood, with which errors of their parameter counts.

    python benchmarks/configs_check.py DIR [--json] [--transformers [--write]]

DIR: *.json configs, and parameters.csv with the columns file, text_parameters (of the text model; empty: not known).
--transformers: fills DIR first with what each class of transformers saves by default, and counts it by its reference
(pip install 'pdplan[transformers]'); --write: puts the defaults that pdplan needs into search_spaces/hf_defaults.yaml.
Exits with 1 where a count is off by more than 1 %.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from costmodel.errors import ArchitectureError, InputError  # noqa: E402
from costmodel.transformer import Transformer  # noqa: E402
from search_spaces.hf_config import ConfigFields, notation, text_section  # noqa: E402
from search_spaces.huggingface import DRAFT_LAYERS  # noqa: E402
from search_spaces.models import attention_kind, load_model, reference_count  # noqa: E402

LARGEST_ERROR = 0.01
COUNTS = "parameters.csv"
DEFAULTS = ROOT / "search_spaces" / "hf_defaults.yaml"
HEADING = """\
# What the classes of transformers {version} take for fields that a config leaves out, by model_type, under pdplan's
# names; what follows from other fields is left out. `python benchmarks/configs_check.py DIR --transformers --write`
# writes this file.
"""
WIDTH = 84
"""After which a line of the table breaks at the next field."""
SCALED = (2, 4, 0.5)
"""Factors of a number whose change shows which other defaults follow from it."""


def checked(path: Path, expected: float | None) -> dict[str, Any]:
    """One config: what is understood of it, or why it is refused."""
    row: dict[str, Any] = {"file": path.name, "expected": expected}
    try:
        model = load_model(str(path))
    except InputError as error:
        return {**row, "refused": str(error).partition(": ")[2]}
    kinds = dict.fromkeys(attention_kind(group.attention) for group in model.layers)
    return {
        **row,
        "parameters": model.parameters,
        "active": model.active_parameters,
        "error": None if expected is None else model.parameters / expected - 1.0,
        "kv_bytes_per_token": model.kv_bytes_per_token("bf16"),
        "state_bytes": model.state_bytes,
        "weight_gib": model.weight_bytes(model.native_weight_dtype) / 2**30,
        "dtype": model.native_weight_dtype,
        "attention": ", ".join(kinds),
    }


def line(row: dict[str, Any]) -> str:
    """A row to read."""
    if "refused" in row:
        return f"{row['file']:<58} refused: {row['refused']}"
    error = "" if row["error"] is None else f"{row['error']:+.2%}"
    return (
        f"{row['file']:<58} {row['parameters'] / 1e9:9.2f} B {error:>7} {row['active'] / 1e9:7.2f} B active "
        f"{row['weight_gib']:8.1f} GiB {row['dtype']:<5} {row['kv_bytes_per_token'] / 1024:7.1f} KiB/token "
        f"{row['state_bytes'] / 2**20:6.1f} MiB  {row['attention']}"
    )


def saved(config: Any) -> dict[str, Any]:
    """A config as transformers saves it."""
    content: dict[str, Any] = json.loads(config.to_json_string())
    return content


def class_configs() -> Iterator[tuple[str, Any]]:
    """The default config of every class with a model that writes text, by its model_type."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

    for model_type, kind in CONFIG_MAPPING.items():
        if kind in AutoModelForCausalLM._model_mapping or kind in AutoModelForImageTextToText._model_mapping:
            try:
                yield model_type, kind()
            except Exception as error:  # noqa: BLE001 -- some classes need an argument, and say so in any way
                print(f"{model_type}: {error!s:.80}", file=sys.stderr)


def fill(folder: Path) -> None:
    """Writes the default configs of transformers' classes, and their counts."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / COUNTS).open("w") as file:
        table = csv.writer(file)
        table.writerow(["file", "text_parameters"])
        for model_type, config in class_configs():
            name = f"tf__{model_type}.json"
            (folder / name).write_text(config.to_json_string(), "utf-8")
            try:
                count: int | str = reference_count(saved(config), name)[0].total()
            except ArchitectureError as error:
                print(error, file=sys.stderr)
                count = ""
            table.writerow([name, count])


def independent(config: Any) -> dict[str, Any]:
    """The defaults of a class that stay when any of its sizes is another one."""
    sizes = {key: value for key, value in saved(config).items() if type(value) is int and value > 1}
    kept = {key: value for key, value in saved(config).items() if isinstance(value, bool | int | str)}
    for size, value in sizes.items():
        for factor in SCALED:
            try:
                other = saved(type(config)(**{size: int(value * factor)}))
            except Exception:  # noqa: BLE001 -- the class refuses that size
                continue
            kept = {key: default for key, default in kept.items() if key == size or other.get(key) == default}
    blocks = "".join("-" if block == "dense" else "E" for block in saved(config).get("mlp_layer_types") or ())
    first_dense = len(blocks) - len(blocks.lstrip("-"))
    return kept if "-" in blocks.lstrip("-") or not first_dense else {"first_k_dense_replace": first_dense, **kept}


def understood(path: Path) -> Transformer | None:
    """The model of a config; None where it is refused."""
    try:
        return load_model(str(path))
    except InputError:
        return None


def write_defaults(folder: Path) -> None:
    """Writes the defaults of text models that pdplan understands, of the fields that its reader asks for."""
    import transformers

    get = ConfigFields.get
    with patch.object(ConfigFields, "get", autospec=True, side_effect=get) as asked:
        models = {path.name: understood(path) for path in folder.glob("*.json")}
    fields = {call.args[1] for call in asked.call_args_list}
    lines = [HEADING.format(version=transformers.__version__)]
    kinds = {
        text.model_type: (type(text), models[f"tf__{model_type}.json"])
        for model_type, config in class_configs()
        for text in (config, config.get_text_config(decoder=True))
        if text_section(saved(text)) is None
    }
    aliases, families = notation()["aliases"], notation()["families"]
    reader = "".join((ROOT / "search_spaces" / name).read_text("utf-8") for name in ("huggingface.py", "hf_config.py"))
    fields |= {field for family in families.values() for field in family.fields if f'"{field}"' in reader}
    fields -= set(DRAFT_LAYERS)  # which a checkpoint has or not, whatever its class says
    for model_type, (kind, model) in sorted(kinds.items()):
        if model is None:
            continue
        defaults = {"is_gated_act": model.layers[-1].feed_forward.gated, **independent(kind())}
        row = {
            field: defaults[name]
            for field in sorted(fields)
            for name in reversed(aliases.get(field, (field,)))
            if name in defaults and (field == "hidden_act" or not isinstance(defaults[name], str))
        }
        lines.append(yaml.safe_dump({model_type: row}, default_flow_style=None, sort_keys=False, width=WIDTH))
    DEFAULTS.write_text("".join(lines), "utf-8")


def main() -> None:
    """Print a row for each config."""
    folder = Path(sys.argv[1])
    if "--transformers" in sys.argv:
        fill(folder)
    if "--write" in sys.argv:
        write_defaults(folder)
        notation.cache_clear()
    with (folder / COUNTS).open() as file:
        counts = {row["file"]: float(row["text_parameters"] or 0.0) or None for row in csv.DictReader(file)}
    rows = [checked(path, counts.get(path.name)) for path in sorted(folder.glob("*.json"))]
    if "--json" in sys.argv:
        print(json.dumps(rows, indent=2))
    else:
        print("\n".join(map(line, rows)))
    wrong = [row for row in rows if abs(row.get("error") or 0.0) > LARGEST_ERROR]
    refused = sum("refused" in row for row in rows)
    print(
        f"{len(rows) - refused} of {len(rows)} understood, {len(wrong)} off by more than {LARGEST_ERROR:.0%}",
        file=sys.stderr,
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
