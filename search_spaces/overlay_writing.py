"""A catalog file of the user's own, written: efficiencies of an accelerator, host times of an engine, in its format."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from costmodel.accelerator import KernelEfficiency
from costmodel.units import MICRO

from .efficiency import Pair
from .overlay import EFFICIENCY, ENGINES, EfficiencyChange

TOP = "accelerators"


def efficiency_dict(figures: Mapping[Pair, KernelEfficiency]) -> dict[str, dict[str, dict[str, Any]]]:
    """Kernel class -> dtype -> figures, all of them, in the units of the file; a missing error is left out."""
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for (kernel_class, dtype), one in sorted(figures.items()):
        table.setdefault(kernel_class, {})[dtype] = _entry(one)
    return table


def overlay_text(
    heading: Sequence[str],
    accelerator: str,
    efficiency: Mapping[str, Any],
    engines: Mapping[str, Mapping[str, Any]] | None = None,
    base: Mapping[str, Any] | None = None,
) -> str:
    """The text of an overlay.

    heading: lines of comment; accelerator: its name, as `base` writes it where it does; efficiency: as of
    `efficiency_dict`; engines: host times by engine; base: content of the overlay that this one replaces.
    """
    content: dict[str, Any] = {TOP: dict((base or {}).get(TOP) or {})}
    entry = dict(content[TOP].get(accelerator) or {})
    known = entry.get(EFFICIENCY) or {}
    entry[EFFICIENCY] = {**known, **{kind: {**known.get(kind, {}), **rows} for kind, rows in efficiency.items()}}
    content[TOP][accelerator] = entry
    hosts = dict((base or {}).get(ENGINES) or {})
    for name, figures in (engines or {}).items():
        hosts[name] = {**(hosts.get(name) or {}), **figures}
    if hosts:
        content[ENGINES] = hosts
    body = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=10_000, allow_unicode=True)
    return "".join(f"# {line}\n" for line in heading) + body


def rounded(value: float) -> float:
    """Four significant digits: more than any fit knows.

    >>> rounded(0.123456), rounded(1234567.0)
    (0.1235, 1235000.0)
    """
    return float(f"{value:.4g}")


def _entry(one: KernelEfficiency) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key in EfficiencyChange.model_fields:
        if key in {"origin", "source", "error"}:
            continue
        value = getattr(one, key.removesuffix("_us")) / (MICRO if key.endswith("_us") else 1.0)
        if value or key in {"compute", "memory", "launch_us"}:
            row[key] = rounded(value)
    row |= {"origin": str(one.origin), "source": one.source}
    if not math.isnan(one.error):
        row["error"] = rounded(one.error)
    return row
