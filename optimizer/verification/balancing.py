"""The winner behind a router that counts requests, as most gateways do, and not the prompt tokens to compute."""

from __future__ import annotations

from dataclasses import replace

from costmodel.simulator import Router

from .confirm import tail_of
from .judge import Run, judge_runs
from .verdict import Bench, Verdict


def by_requests(bench: Bench, winner: Verdict) -> Verdict | None:
    """What the requests that proved the winner say of it there; None where the routers choose alike.

    They do for one engine, and for those of a problem with `fewest_requests`. It holds by the interval that decided of
    the winner.
    """
    engines = winner.judgement.engines
    if not any(pool.router is Router.LENGTH_AWARE and pool.replicas > 1 for pool in engines.pools):
        return None
    counting = replace(engines, pools=tuple(replace(pool, router=Router.LEAST_LOADED) for pool in engines.pools))
    runs = [Run.of(proof.demand, counting) for proof in winner.judgement.runs]
    held = judge_runs(bench.instance, counting, runs, tail=tail_of(max(winner.confirmation, 1))).proven
    return bench.settled(winner.fleet, judge_runs(bench.instance, counting, runs), held=held)
