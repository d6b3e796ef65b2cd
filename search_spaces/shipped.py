"""Files of the distribution: text, YAML tables, and the rows of these whose keys end in units."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

import yaml

from costmodel.units import GIB, MICRO, MILLI, TERA

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""With libyaml it is ten times as fast."""
SUFFIXES: Mapping[str, float] = {"_us": MICRO, "_ms": MILLI, "_gib": float(GIB), "_tb_s": TERA, "_w": 1.0}
"""Units in the keys of the catalog's files, in the base unit."""


def shipped_text(package: str, name: str) -> str:
    """The text of a file of the distribution."""
    return resources.files(package).joinpath(name).read_text("utf-8")


def shipped_table(package: str, name: str) -> Any:
    """The content of a YAML file of the distribution."""
    return yaml.load(shipped_text(package, name), Loader=_LOADER)  # noqa: S506 (a safe loader; the file is ours)


def in_base_units(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a file of the catalog, whose keys end in units, in base units and without them.

    >>> in_base_units({"launch_us": 4.0, "source": "x"})
    {'launch': 4e-06, 'source': 'x'}
    """
    plain: dict[str, Any] = {}
    for key, value in row.items():
        suffix = next((suffix for suffix in SUFFIXES if key.endswith(suffix)), "")
        plain[key.removesuffix(suffix)] = value * SUFFIXES[suffix] if suffix else value
    return plain
