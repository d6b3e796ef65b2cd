"""Price of every catalog accelerator from a table of quotes: the median over providers, and the spread.

    python benchmarks/make_prices.py            prints the table
    python benchmarks/make_prices.py --write    also rewrites the price blocks of costmodel/catalog/accelerators.yaml

The quotes are prices/gpu_prices.csv in ../shared/data or $PDPLAN_DATA. What counts:

- kind `on-demand` and `on-demand (secure)`, any date. Left out: historic (2025-03 and older), capacity blocks,
  estimates, and quotes that the table itself marks as conflicting with a better source, inconsistent or unconfirmed.
- Where no on-demand quote exists, the best other kind: three-year reservation, modelled TCO, assumed; the price is then
  marked `assumed`. What has no quote at all takes those of the nearest card of its market (STAND_INS).
- Beside this price, `other_prices` on every other basis of which the table has quotes for the card itself: reserved,
  spot, TCO. The table has a spot price beside an on-demand one, of the whole instance.
- A card named without its form factor counts as SXM.
- The median is taken over each provider's quotes first, then over providers, so that one provider's ten regions weigh
  no more than another's single price. Low and high are the cheapest and the dearest quote.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.folders import data_folder  # noqa: E402 -- run as a script, the repository is found first

CATALOG = ROOT / "costmodel" / "catalog" / "accelerators.yaml"
QUOTES = data_folder() / "prices" / "gpu_prices.csv"

ON_DEMAND = ("on-demand", "on-demand (secure)")
SPOT = ("spot",)
KINDS = (ON_DEMAND, ("reserved 3y",), ("modelled TCO",), ("assumed",))
"""From the best kind of quote to the worst; only the best that exists is the price."""

BASES: Mapping[str, tuple[str, int | None]] = {
    **dict.fromkeys((*ON_DEMAND, "assumed"), ("on-demand", None)),
    "reserved 3y": ("reserved", 3),
    "spot": ("spot", None),
    "modelled TCO": ("tco", None),
}
"""What a kind of quote is of, as `costmodel.accelerator.PriceBasis` has it, and its term [year]."""

DOUBTS = ("conflict", "inconsistent", "unconfirmed")

SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "A100-40": ("A100-40GB", "A100-40GB SXM", "A100 (40 GB)"),
    "A100-80": ("A100-80GB", "A100-80GB SXM", "A100 (80 GB)"),
    "A100-40-PCIe": ("A100-40GB PCIe",),
    "A100-80-PCIe": ("A100-80GB PCIe", "A100-80GB PCIe NVLink"),
    "H100": ("H100", "H100 SXM", "H100 (80 GB)", "H100 HGX (80GB)"),
    "H100-PCIe": ("H100 PCIe", "H100 PCIe NVLink", "H100 PCIe (80GB)"),
    "H100-NVL": ("H100 NVL",),
    "A800": ("A100-80GB", "A100-80GB SXM"),
    "A30": ("A10",),
    "H800": ("H800 SXM",),
    "H20": ("H800 SXM",),
    "H200-NVL": ("H200", "H200 SXM"),
    "GH200": ("GH200", "GH200 96GB"),
    "L40": ("L40",),
    "RTX-6000-Ada": ("L40",),
    "A10": ("A10",),
    "A40": ("A40",),
    "A6000": ("A6000",),
    "H200": ("H200", "H200 SXM"),
    "B200": ("B200", "B200 SXM"),
    "B300": ("B300", "B300 SXM"),
    "GB200": ("GB200",),
    "GB300": ("GB300",),
    "L40S": ("L40S",),
    "L4": ("L4", "L4 (24 GB)"),
    "A10G": ("A10G", "A10G (24 GB)"),
    "RTX-PRO-6000": ("RTX PRO 6000", "RTX PRO 6000 Server"),
    "MI300X": ("MI300X",),
    "MI325X": ("MI325X",),
    "MI350X": ("MI355X",),
    "MI355X": ("MI355X",),
}
STAND_INS = {
    "A800": "A100-80",
    "A30": "A10",
    "H20": "H800",
    "H200-NVL": "H200",
    "RTX-6000-Ada": "L40",
    "MI350X": "MI355X",
}
"""Whose quotes serve where an accelerator has none; such a price is assumed."""


@dataclass(frozen=True, slots=True)
class PriceBlock:
    """A price of one catalog entry [$/h of one GPU]."""

    basis: str
    term_years: int | None
    borrowed_from: str | None
    usd_per_hour: float
    low: float
    high: float
    quotes: int
    origin: str
    source: str
    date: str

    def lines(self) -> list[str]:
        """The keys of the block as they stand in the catalog."""
        texts = {"source", "date"}
        return [
            f'{key}: "{value}"'
            if key in texts
            else f"{key}: {value:g}"
            if isinstance(value, float)
            else f"{key}: {value}"
            for key, value in asdict(self).items()
            if value is not None
        ]


def catalog_lines(price: PriceBlock, others: Iterable[PriceBlock]) -> str:
    """The price blocks of one entry as they stand in the catalog."""
    lines = ["    price:", *(f"      {line}" for line in price.lines())]
    listed = [
        [f"      - {first}", *(f"        {line}" for line in rest)] for first, *rest in (o.lines() for o in others)
    ]
    lines += ["    other_prices:", *(line for block in listed for line in block)] if listed else []
    return "".join(f"{line}\n" for line in lines)


def read_quotes(path: Path) -> list[dict[str, str]]:
    """Rows of the price table that have a price and no doubt about it, one more for each spot price beside another."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if not any(doubt in row["note"] for doubt in DOUBTS)]
    return [row for row in rows if row["price_per_gpu_hour"]] + [
        row | {"kind": "spot", "price_per_gpu_hour": str(float(row["spot_price"]) / int(row["gpus_per_instance"]))}
        for row in rows
        if row["spot_price"] and row["kind"] in (*ON_DEMAND, *SPOT)
    ]


def quotes_of(rows: Iterable[dict[str, str]], spellings: Iterable[str], kinds: Iterable[str]) -> list[dict[str, str]]:
    """Quotes of one accelerator of some kinds."""
    return [row for row in rows if row["gpu"] in set(spellings) and row["kind"] in set(kinds)]


def best_quotes(rows: Iterable[dict[str, str]], spellings: Iterable[str]) -> list[dict[str, str]]:
    """Quotes of one accelerator of the best kind that it has."""
    table = list(rows)
    best = next((quotes for kinds in KINDS if (quotes := quotes_of(table, spellings, kinds))), None)
    if best is None:
        raise SystemExit(f"no quote for any of {sorted(spellings)}")
    return best


def newest_date(quotes: Iterable[dict[str, str]], fallback: str) -> str:
    """Newest full date among the quotes; quotes that state none are as old as the whole table at most."""
    dates = [row["date/commit"] for row in quotes if re.fullmatch(r"\d{4}-\d\d-\d\d", row["date/commit"])]
    return max(dates, default=f"by {fallback}")


def price_block(name: str, quotes: list[dict[str, str]], collected: str) -> PriceBlock:
    """Median over providers of each provider's median price."""
    by_provider: dict[str, list[float]] = defaultdict(list)
    for row in quotes:
        by_provider[row["cloud"].partition(" (")[0]].append(float(row["price_per_gpu_hour"]))
    medians = {provider: median(prices) for provider, prices in by_provider.items()}
    kind = quotes[0]["kind"]
    listed = kind in (*ON_DEMAND, *SPOT) and name not in STAND_INS
    label = "on-demand list price" if kind in ON_DEMAND else f"{kind} price"
    basis, term = BASES[kind]
    substitute = f" of the {STAND_INS[name]}, for want of any quote" if name in STAND_INS else ""
    named = {row["source"] for row in quotes} if kind == "assumed" else medians
    providers = ", ".join(sorted(named, key=str.lower))
    return PriceBlock(
        basis=basis,
        term_years=term,
        borrowed_from=STAND_INS.get(name),
        usd_per_hour=round(median(medians.values()), 4),
        low=round(min(map(min, by_provider.values())), 4),
        high=round(max(map(max, by_provider.values())), 4),
        quotes=len(quotes),
        origin="vendor" if listed else "assumed",
        source=f"{label}{substitute}: {providers}",
        date=newest_date(quotes, collected),
    )


def price_blocks(path: Path) -> dict[str, tuple[PriceBlock, ...]]:
    """Price of every catalog accelerator, followed by its prices on other bases, of its own quotes alone."""
    rows = read_quotes(path)
    collected = newest_date(rows, "")
    blocks: dict[str, tuple[PriceBlock, ...]] = {}
    for name, spellings in SPELLINGS.items():
        price = price_block(name, best_quotes(rows, spellings), collected)
        kinds = [kind for kind, (basis, _) in BASES.items() if kind not in KINDS[-1] and basis != price.basis]
        by_kind = [quotes_of(rows, () if name in STAND_INS else spellings, (kind,)) for kind in kinds]
        blocks[name] = price, *(price_block(name, quotes, collected) for quotes in by_kind if quotes)
    return blocks


def rewritten(catalog: str, blocks: Mapping[str, tuple[PriceBlock, ...]]) -> str:
    """The catalog's text with these price blocks in the place of its own, all else untouched."""
    block = r"    price:\n(?:      .*\n)+(?:    other_prices:\n(?:      .*\n)+)?"
    for name, (price, *others) in blocks.items():
        pattern = re.compile(rf"(^  {re.escape(name)}:\n(?:    .*\n)*?){block}", re.MULTILINE)
        found = pattern.search(catalog)
        if found is None:
            raise SystemExit(f"{CATALOG.name}: {name} has no price block")
        lines = catalog_lines(price, others)
        catalog = catalog[: found.start()] + found.group(1) + lines + catalog[found.end() :]
    return catalog


def main() -> None:
    parser = argparse.ArgumentParser(description="Prices of the catalog's accelerators from a table of quotes.")
    parser.add_argument("--write", action="store_true", help="rewrite the price blocks of the catalog")
    write = parser.parse_args().write
    blocks = price_blocks(QUOTES)
    head = f"{'accelerator':<14}{'basis':<10}{'$/h':>8}{'low':>8}{'high':>8}{'quotes':>8}"
    print(f"{head}  origin   newest         source")
    for name, every in blocks.items():
        for block in every:
            prices = f"{block.usd_per_hour:>8.2f}{block.low:>8.2f}{block.high:>8.2f}{block.quotes:>8}"
            print(f"{name:<14}{block.basis:<10}{prices}  {block.origin:<8} {block.date:<14} {block.source}")
    if write:
        CATALOG.write_text(rewritten(CATALOG.read_text("utf-8"), blocks), "utf-8")
        print(f"wrote the prices of {len(blocks)} accelerators to {CATALOG.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
