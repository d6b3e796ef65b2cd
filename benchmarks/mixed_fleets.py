"""Fleets that mix two GPU types within a stage: what the search by evaluation finds, against trying every such fleet.

    python benchmarks/mixed_fleets.py [--problems 300] [--seed 0]

Draws small problems (an 8B model, engines of one GPU of two types, two or three lengths of request; every second one
of colocated engines, the others of prefill and decode engines). Of each the search's fleet is compared with the
cheapest that trying finds: every two pools of different types in a stage, up to eight engines each, every share of each
length in eighths (quarters where there are three), beside each pool of up to two engines of the other role. Prints each
problem in which the search's fleet is dearer and by how much, then counts. About two minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

CARDS = ("L40S", "A100-80", "H100", "H200")
APART, TOGETHER = "prefill and decode", "colocated"
PARTS = {2: 9, 3: 5}
"""Shares of a length that are tried, by the number of lengths."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A problem: lengths (ISL, OSL, share), requests per second, two GPU types, and the roles of its engines."""

    buckets: tuple[tuple[float, float, float], ...]
    rate: float
    cards: tuple[str, ...]
    kind: str

    def line(self) -> str:
        lengths = ", ".join(f"{isl:.0f}/{osl:.0f} {share:.0%}" for isl, osl, share in self.buckets)
        return f"{self.kind}, {self.rate:g} req/s on {' and '.join(self.cards)}, ISL/OSL share: {lengths}"


def drawn(seed: int, number: int) -> Drawn:
    random = np.random.default_rng([seed, number])
    count = 3 if number % 4 > 1 else 2
    isl = np.round(np.exp(random.uniform(np.log(100.0), np.log(7000.0), count)))
    osl = np.round(np.exp(random.uniform(np.log(20.0), np.log(400.0), count)))
    share = np.round(random.dirichlet(np.full(count, 3.0)), 2)
    share[-1] = round(1.0 - share[:-1].sum(), 2)
    rate = float(np.round(random.uniform(4.0, 40.0)))
    cards = tuple(str(card) for card in random.choice(CARDS, 2, replace=False))
    buckets = tuple(zip(isl.tolist(), osl.tolist(), share.tolist(), strict=True))
    return Drawn(buckets, rate, cards, TOGETHER if number % 2 else APART)


def costs(one: Drawn) -> tuple[float, float, bool]:
    """Cost of the search's fleet and of the cheapest known [$/h], and whether the latter mixes types in a stage."""
    from optimizer.search.mixtures import leanest
    from optimizer.search.search import unmixed
    from tests import test_mixed as tried

    roles = tried.TOGETHER if one.kind == TOGETHER else tried.APART
    given = tried.known(one.buckets, one.rate, one.cards, roles)
    found, alone = (tried.cost_of(given, search(given)) for search in (leanest, unmixed))
    best = tried.cheapest_of_any_parts(given, found, PARTS[len(one.buckets)])
    return found, best, best < alone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    mixed: dict[str, int] = defaultdict(int)
    dearer: dict[str, list[float]] = defaultdict(list)
    for number in range(arguments.problems):
        one = drawn(arguments.seed, number)
        found, best, mixes = costs(one)
        mixed[one.kind] += mixes
        if best < found:
            dearer[one.kind].append(found / best - 1.0)
            print(
                f"{number}: ${found:.2f} where ${best:.2f} would do, {dearer[one.kind][-1]:.1%}: {one.line()}",
                flush=True,
            )
    for number, kind in enumerate((APART, TOGETHER)):
        many, worst = (arguments.problems + 1 - number) // 2, max(dearer[kind], default=0.0)
        print(
            f"{kind}: {many} problems, in {mixed[kind]} a mix is cheapest; the search is dearer in"
            f" {len(dearer[kind])}, by {worst:.1%} at most"
        )


if __name__ == "__main__":
    main()
