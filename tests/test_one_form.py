"""Dollars and percentages have one form, whichever room writes them: half a cent goes up, a blank stands before %."""

import itertools
import re
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.words import dollars
from optimizer.fleets.build_plan import amount
from reports.numbers import hourly, money
from search_spaces.catalog import load_catalog
from tests.test_layering import ROOMS, ROOT, sources

PRICES = sorted({one.price.usd_per_hour for one in load_catalog().accelerators.values()})
HALF_CENTS = [price for price in PRICES if round(1000.0 * price) % 10 == 5]
WITHOUT_BLANK = re.compile(r"\d%")
ASKED = re.compile(r"^\$ .*$|`[^`]*`", re.M)
"""What a user types, where 5% is a share: commands, and code inside a sentence."""
OWN_ROUNDING = re.compile(r"\$\{[^{}]*:[,.\d]*f\}|:[-+,.<>\d]*%\}")
"""A format of dollars or of a percentage that is not the common one."""


def in_cents(exact: Decimal) -> str:
    return f"${exact.quantize(Decimal('0.01'), ROUND_HALF_UP):,}"


def test_a_fleets_price_is_rounded_alike_however_it_was_added_up() -> None:
    """Every price of the catalog bought 1 to 32 times with every one that has half cents, by product and by sum."""
    for price, other in itertools.product(PRICES, HALF_CENTS):
        total = 0.0
        for number in range(1, 33):
            total += price
            exact = Decimal(repr(price)) * number + Decimal(repr(other))
            if not Decimal("0.1") < exact < Decimal("999.99"):
                continue
            expected = in_cents(exact)
            assert {dollars(number * price + other), dollars(other + total)} == {expected}
            assert amount(total + other, "$/h") == hourly(number * price + other) == f"{expected}/h"


@given(st.decimals("0.1", "999.994", places=3), st.booleans())
@settings(deadline=None, max_examples=100)
def test_halves_go_up_on_the_decimals_that_are_read(exact: Decimal, below: bool) -> None:
    assert money(-float(exact) if below else float(exact)) == ("-" if below else "") + in_cents(exact)


@pytest.mark.parametrize("room", ROOMS)
def test_no_room_rounds_dollars_or_percentages_itself(room: str) -> None:
    found = {(str(path), line) for path in sources(room) for line in OWN_ROUNDING.findall(path.read_text("utf-8"))}
    assert found == set()


GOLDEN = [
    path
    for path in sorted((ROOT / "tests/golden").rglob("*.*"))
    if not path.name.startswith("help-") and path.name != "workload_faults.txt"  # these show how shares are typed
]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *GOLDEN]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_golden_output_and_page_has_the_blank(path: Path) -> None:
    assert WITHOUT_BLANK.findall(ASKED.sub("", path.read_text("utf-8"))) == []
