"""What is known of the targets: versions, images, spellings, and the flags that each engine's parser takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any, Final

import yaml

from costmodel.errors import InputError, shown
from search_spaces.problem import target_of

VERSION: Final = re.compile(r"\d+(\.\d+)*\w*")
SWITCH: Final = "switch"
"""A flag without a value."""
TEMPLATE_TOKENS: Final = 128
"""ASSUMED: most tokens that a chat template and a BOS token add to a prompt. Engines refuse a request whose prompt and
answer exceed their limit, so one that is the workload's longest needs this room; templates add ten to some 70."""


def versions_of(target: str) -> tuple[str, ...]:
    """Versions of a target that are known, the oldest first.

    >>> versions_of("vllm")[0], versions_of("vllm")[-1]
    ('0.20.0', '0.33.0')
    """
    return tuple(_target(target)["versions"])


def checked_version(target: str, version: str | None, *, unchecked: bool = False) -> str:
    """The version to write for: the newest known if none is asked for, and never another one than asked for.

    unchecked: whether one that is newer than all that are known will do; its flags are taken to be those of the newest.
    """
    versions = versions_of(target)
    if version is None or version in versions:
        return version or versions[-1]
    newer = VERSION.fullmatch(version) is not None and numbers(version) > numbers(versions[-1])
    if newer and unchecked:
        return version
    way = f"; --unchecked writes the flags of {versions[-1]}" if newer else ""
    raise InputError(f"{target_of(target).title} {shown(version)} is not known; known: {', '.join(versions)}{way}")


def scatters(target: str, *, apart: bool) -> str:
    """Why the target's router keeps no prefixes together, empty if it does; apart: in prefill pools, else colocated."""
    return str(fact("scatters").get(target, {}).get("apart" if apart else "together", ""))


def engine_version(target: str, version: str, engine: str) -> str | None:
    """Version of the serving engine that a version of a target runs; None if it runs another engine.

    >>> engine_version("vllm", "0.22.0", "vllm"), engine_version("dynamo", "1.6.1", "vllm")
    ('0.22.0', '0.31.0')
    """
    template: str | None = _target(target)["engines"].get(engine)
    return None if template is None else template.format(version=version)


def image(target: str, version: str, component: str, vendor: str = "nvidia") -> str:
    """Container image of an engine or another part of a target, for the GPUs of a vendor."""
    return str(_target(target)["images"][component][vendor]).format(version=version)


def legal_flag(engine: str, version: str, name: str, program: str | None = None) -> Any:
    """What the parser of an engine knows of a flag: its kind, or its choices; None if it does not know it.

    A version that was not dumped knows what those around it agree on. program: of Dynamo, whose programs have flags of
    their own.

    >>> legal_flag("vllm", "0.22.0", "--max-num-seqs"), legal_flag("vllm", "0.22.0", "--no-enable-prefix-caching")
    ('int', 'switch')
    """
    flags = _data("flags.json")[engine]["flags"]
    if program is not None:
        return flags[_around(flags, version)[-1]][program].get(name)
    entry = flags["names"].get(name)
    if entry is None and engine == "vllm" and name.startswith("--no-"):
        positive = name.replace("--no-", "--", 1)
        return SWITCH if legal_flag(engine, version, positive) == SWITCH else None
    if not isinstance(entry, dict):
        return entry
    kinds = [entry.get(dump) for dump in _around(flags["versions"], version)]
    choices = [kind for kind in kinds if isinstance(kind, list)]
    if choices and all(kind == "str" or kind in choices for kind in kinds):
        return [choice for choice in choices[0] if all(choice in kind for kind in choices)]
    return kinds[0] if all(kind == kinds[0] for kind in kinds) else None


def off_switch(name: str) -> str:
    """The flag that says no to a switch of vLLM, in the spelling that all its versions take.

    vLLM 0.33 names it --disable-prefix-caching in its help and accepts this one too.

    >>> off_switch("--enable-prefix-caching")
    '--no-enable-prefix-caching'
    """
    return name.replace("--", "--no-", 1)


def transfer_facts(version: str) -> dict[str, set[str]]:
    """Connectors, fields of --kv-transfer-config and environment variables of one version of vLLM."""
    transfer: dict[str, dict[str, list[str]]] = _data("flags.json")["vllm"]["transfer"]
    around = [transfer[dump] for dump in _around(transfer, version)]
    return {field: set.intersection(*(set(facts[field]) for facts in around)) for field in around[0]}


def _around(dumps: Iterable[str], version: str) -> list[str]:
    """The versions that were dumped next to a version: itself, or the ones before and after it.

    >>> _around(["0.20.1", "0.24.0", "0.31.0"], "0.22.1"), _around(["0.20.1", "0.24.0"], "0.31.0")
    (['0.20.1', '0.24.0'], ['0.24.0'])
    """
    versions = sorted(dumps, key=numbers)
    if version in versions:
        return [version]
    older = [name for name in versions if numbers(name) < numbers(version)]
    return older[-1:] + [name for name in versions if name not in older][:1]


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers that compare.

    >>> numbers("0.9.1") < numbers("0.31.0")
    True
    """
    return tuple(map(int, re.findall(r"\d+", version)))


def fact(*path: str) -> Any:
    """An entry of targets.yaml.

    >>> fact("router", "vllm")
    'vllm-router==0.1.17'
    """
    entry: Any = _data("targets.yaml")
    for name in path:
        entry = entry[name]
    return entry


def _target(name: str) -> dict[str, Any]:
    return dict(fact("targets", target_of(name).name))


@cache
def _data(name: str) -> dict[str, Any]:
    text = (resources.files("reports.deploy") / "data" / name).read_text(encoding="utf-8")
    return dict(json.loads(text) if name.endswith(".json") else yaml.safe_load(text))
