"""Reads a folder of Hugging Face configs and says which are understood, with which errors of their parameter counts.

    python benchmarks/configs_check.py DIR [--json]

DIR: *.json configs, and parameters.csv with the columns file, text_parameters (of the text model; empty: not known).
Exits with 1 where a count is off by more than 1 %.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from costmodel.errors import InputError  # noqa: E402
from search_spaces.models import attention_kind, load_model  # noqa: E402

LARGEST_ERROR = 0.01


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


def main() -> None:
    """Print a row for each config."""
    folder = Path(sys.argv[1])
    with (folder / "parameters.csv").open() as file:
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
