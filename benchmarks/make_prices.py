"""The catalog's quotes of GPU prices, from a table of what providers ask.

    python benchmarks/make_prices.py            prints the prices that the catalog's quotes make
    python benchmarks/make_prices.py --write    also rewrites costmodel/catalog/quotes.csv

The table is prices/gpu_prices.csv in ../shared/data or $PDPLAN_DATA. What counts:

- kinds `on-demand` and `on-demand (secure)`, any date; spot, three-year reservations and modelled TCO. Left out:
  historic (2025-03 and older), capacity blocks, estimates, and quotes that the table itself marks as conflicting with a
  better source, inconsistent or unconfirmed. A price that somebody assumed counts where nothing else is there.
- The table has a spot price beside an on-demand one, of the whole instance.
- A card named without its form factor counts as SXM.

Quotes of accelerators that the table does not name stay as they are in the catalog's file.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.folders import data_folder  # noqa: E402 -- run as a script, the repository is found first
from costmodel.accelerator import Origin  # noqa: E402
from search_spaces.catalog import load_catalog  # noqa: E402
from search_spaces.quotes import Quote, shipped_quotes  # noqa: E402

CATALOG = ROOT / "costmodel" / "catalog" / "quotes.csv"
QUOTES = data_folder() / "prices" / "gpu_prices.csv"
COLUMNS = ("accelerator", "provider", "commitment", "usd_per_hour", "date", "origin", "source")

ASSUMED = "assumed"
KINDS: Mapping[str, tuple[str, Origin]] = {
    "on-demand": ("on-demand", Origin.VENDOR),
    "on-demand (secure)": ("on-demand", Origin.VENDOR),
    "spot": ("spot", Origin.VENDOR),
    "reserved 3y": ("reserved-3-years", Origin.ASSUMED),
    "modelled TCO": ("owned", Origin.ASSUMED),
    ASSUMED: ("on-demand", Origin.ASSUMED),
}
"""Kinds of quotes that count; the table's reservations and TCO are of a model, not of a provider."""
CONSTANTS = r"code constants, \w+ ids? [0-9 /]+"
DOUBTS = ("conflict", "inconsistent", "unconfirmed")

SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "A100-40": ("A100-40GB", "A100-40GB SXM", "A100 (40 GB)"),
    "A100-80": ("A100-80GB", "A100-80GB SXM", "A100 (80 GB)"),
    "A100-40-PCIe": ("A100-40GB PCIe",),
    "A100-80-PCIe": ("A100-80GB PCIe", "A100-80GB PCIe NVLink"),
    "H100": ("H100", "H100 SXM", "H100 (80 GB)", "H100 HGX (80GB)"),
    "H100-PCIe": ("H100 PCIe", "H100 PCIe NVLink", "H100 PCIe (80GB)"),
    "H100-NVL": ("H100 NVL",),
    "H800": ("H800 SXM",),
    "GH200": ("GH200", "GH200 96GB"),
    "L40": ("L40",),
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
    "MI355X": ("MI355X",),
    "TPU-v6e": ("TPU v6e",),
}


def read_table(path: Path) -> list[dict[str, str]]:
    """Rows of the price table that have a price and no doubt about it, one more for each spot price beside another."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if not any(doubt in row["note"] for doubt in DOUBTS)]
    listed = ("on-demand", "on-demand (secure)", "spot")
    return [row for row in rows if row["price_per_gpu_hour"]] + [
        row | {"kind": "spot", "price_per_gpu_hour": str(float(row["spot_price"]) / int(row["gpus_per_instance"]))}
        for row in rows
        if row["spot_price"] and row["kind"] in listed
    ]


def quotes_of(rows: Iterable[dict[str, str]]) -> Iterator[Quote]:
    """The quotes of the table by accelerator; undated ones are as old as the whole table at most."""
    table = list(rows)
    collected = max(filter(is_day, (row["date/commit"] for row in table)), default="")
    for name, spellings in SPELLINGS.items():
        own = [row for row in table if row["gpu"] in spellings and row["kind"] in KINDS]
        sure = [row for row in own if row["kind"] != ASSUMED]
        for row in sure or own:
            commitment, origin = KINDS[row["kind"]]
            assumed = row["kind"] == ASSUMED
            source = re.sub(
                r"code constants, \w+ ids? [0-9 /]*[0-9]", "listed in the code of public repositories", row["source"]
            )
            source = re.sub(r"@([0-9a-f]{8})[0-9a-f]+", r"@\1", source).replace("(search excerpt)", "").strip()
            place = " ".join(text for text in (row["instance"], row["region"]) if text not in {"", "n/a"})
            yield Quote(
                accelerator=name,
                usd_per_hour=float(f"{float(row['price_per_gpu_hour']):.6g}"),
                provider=source if assumed else row["cloud"].partition(" (")[0],
                commitment=commitment,
                date=row["date/commit"] if is_day(row["date/commit"]) else f"by {collected}",
                origin=origin,
                source=source + (f", {place}" if place and not assumed else ""),
            )


def is_day(text: str) -> bool:
    """Whether a text is a full date."""
    return re.fullmatch(r"\d{4}-\d\d-\d\d", text) is not None


def catalog_text(quotes: Iterable[Quote]) -> list[dict[str, str]]:
    """Quotes as the rows of the catalog's file."""
    return [
        {key: str(getattr(quote, key)) for key in COLUMNS} | {"usd_per_hour": f"{quote.usd_per_hour:g}"}
        for quote in quotes
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="The catalog's quotes from a table of what providers ask.")
    parser.add_argument("--write", action="store_true", help="rewrite the catalog's file of quotes")
    if parser.parse_args().write:
        kept = [quote for name, quotes in shipped_quotes().items() if name not in SPELLINGS for quote in quotes]
        rows = catalog_text([*quotes_of(read_table(QUOTES)), *kept])
        with CATALOG.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        print(f"wrote {len(rows)} quotes to {CATALOG.relative_to(ROOT)}")
        return
    print(
        f"{'accelerator':<14}{'basis':<18}{'$/h':>8}{'low':>8}{'high':>8}{'quotes':>8}  origin   newest         source"
    )
    for accelerator in load_catalog().accelerators.values():
        for price in (accelerator.price, *accelerator.other_prices):
            figures = f"{price.usd_per_hour:>8.2f}{price.low:>8.2f}{price.high:>8.2f}{price.quotes:>8}"
            print(
                f"{accelerator.name:<14}{price.basis_words:<18}{figures}  {price.origin:<8} {price.date} {price.source}"
            )


if __name__ == "__main__":
    main()
