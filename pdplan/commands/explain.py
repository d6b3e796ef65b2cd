"""`pdplan explain`: why an engine config is out, or where it ranks."""

from __future__ import annotations

from pathlib import Path

import click

from pdplan.console import Console
from pdplan.exits import ExitCode
from pdplan.options import (
    PATH,
    collected,
    console_options,
    json_option,
    pairs,
    parse_settings,
    pass_console,
    prices_option,
    set_option,
)


@click.command(short_help="Say which rule excludes an engine config, or where it ranks.")
@click.argument("file", type=PATH)
@click.option(
    "--config", "configs", required=True, multiple=True, metavar="KEY=VALUE,…",
    help="Engine config: gpu (required), role (prefill, decode or colocated; default: all), tp, pp, ep, dp (default: "
    "1), max_num_seqs, max_num_batched_tokens (default: those of FILE), weight_dtype, kv_dtype (default: FILE's). "
    "May be repeated.",
)  # fmt: skip
@prices_option
@set_option
@json_option
@console_options
@pass_console
def explain(
    console: Console,
    /,
    *,
    file: Path,
    configs: tuple[str, ...],
    prices: str | None,
    settings: tuple[str, ...],
    as_json: bool,
) -> int:
    """Examples:

    \b
      pdplan explain workload.yaml --config gpu=H100,tp=4,role=decode
      pdplan explain workload.yaml --config gpu=H200,tp=3 --config gpu=H200,tp=2
      pdplan explain workload.yaml --config gpu=H200,tp=2,max_num_seqs=64,weight_dtype=fp8 --json
      pdplan explain workload.yaml --config gpu=H100,role=prefill --config gpu=H200,role=decode

    Checks an engine config against every feasibility rule. A feasible one is ranked among all configs of
    its role by the cheapest fleet that uses it, with what its pool runs out of first. Settings outside
    the search space of FILE are tried too. For every pair of a prefill and a decode config it says, rule
    by rule, whether they can hand over KV blocks.

    Exits with 3 when no stated config is in a fleet that meets the SLOs.
    """
    from itertools import product

    from costmodel.engine import Role
    from optimizer.recommend.explain import explain_each, explain_pair
    from reports.answers.explanation import explanation_dict, explanation_document, pair_dict
    from search_spaces.loader import load_problem
    from search_spaces.wanted import parse_wanted

    problem = load_problem(file, overrides=parse_settings(settings, prices=prices))
    wanted = collected(configs, lambda config: parse_wanted(pairs(config, "--config"), problem))
    assumed = [one.assumed(problem) for one in wanted]
    found = list(zip(configs, assumed, explain_each(problem, wanted), strict=True))
    ends = [
        [(config, one) for config, one in zip(configs, wanted, strict=True) if one.role is role]
        for role in (Role.PREFILL, Role.DECODE)
    ]
    pairs_ = [(a, b, explain_pair(problem, first, second)) for (a, first), (b, second) in product(*ends)]
    if as_json:
        console.show([*(explanation_dict(*one) for one in found), *(pair_dict(*one) for one in pairs_)])
    else:
        console.show(explanation_document(found, pairs_))
    ranked = any(one.rank is not None for _, _, explanation in found for one in explanation.standings)
    return 0 if ranked else ExitCode.INFEASIBLE
