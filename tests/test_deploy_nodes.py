"""Engines that span nodes: who is told what where, and what carries the traffic between them."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Any

import pytest
import yaml

from reports.deploy import facts
from reports.deploy.files import deployment_files
from reports.deploy.flags import place_words, span_words
from reports.deploy.words import words_of
from tests.deploy_cases import DENSE, RANKS, SPARSE, STAGES, deployment_of, options, plan_of


def command(pod: dict[str, Any], index: int) -> list[str]:
    """The command line of a pod of a group, as Kubernetes, and a shell if there is one, make it."""
    container = pod["spec"]["containers"][0]
    known = {"LWS_LEADER_ADDRESS": "leader.svc", "LWS_WORKER_INDEX": str(index)}
    words = [
        re.sub(r"(?<!\$)\$\((\w+)\)", lambda found: known[found[1]], word).replace("$$(", "$(")
        for word in [*container["command"], *container["args"]]
    ]
    if words[0] != "sh":
        return words
    words[2] = words[2].replace("exec vllm serve", "printf '%s\\n' vllm serve")
    done = subprocess.run(words, env=os.environ | known, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_data_ranks_are_counted_on_over_the_nodes() -> None:
    """By the shell that workers start in, which takes no word of a user's for code."""
    nasty = "a$(touch x)'\";`id`"
    files = deployment_files(plan_of(RANKS, SPARSE), options("llmd", model=nasty))
    worker = yaml.safe_load(files["pools/decode-2.yaml"])["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    for index in (1, 2):
        words = command(worker, index)
        assert words[2] == nasty
        assert words[words.index("--data-parallel-size-local") + 1] == "8"
        assert words[-3:] == ["--headless", "--data-parallel-start-rank", str(8 * index)]


@pytest.mark.parametrize("version", facts.versions_of("vllm"))
def test_flags_of_nodes_are_those_of_every_version(version: str) -> None:
    for pools, ask in ((STAGES, DENSE), (RANKS, SPARSE)):
        for pool in deployment_of(plan_of(pools, ask), "vllm", version).pools:
            for rank in (0, 1):
                words = words_of("node", [*span_words(pool, "head", lambda _: 1), *place_words(pool, rank)])
                for name, value in words:
                    kind = facts.legal_flag("vllm", version, name)
                    assert kind is not None, name
                    assert (kind == facts.SWITCH) == (value is None), name
