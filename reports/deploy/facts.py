"""What is known of the targets: versions, images, spellings, and the flags that each engine's parser takes."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any, Final

import yaml

from costmodel.errors import InputError, UnknownNameError
from costmodel.quoting import shown

SWITCH: Final = "switch"
"""A flag without a value."""
TEMPLATE_TOKENS: Final = 128
"""ASSUMED: most tokens that a chat template and a BOS token add to a prompt. Engines refuse a request whose prompt and
answer exceed their limit, so one that is the workload's longest needs this room; templates add ten to some 70."""


def target_names() -> tuple[str, ...]:
    """Targets that files can be written for.

    >>> target_names()
    ('vllm', 'dynamo', 'llmd', 'sglang', 'trtllm')
    """
    return tuple(targets())


def target_title(target: str) -> str:
    """What people call a target.

    >>> target_title("llmd")
    'llm-d'
    """
    return str(_target(target)["title"])


def versions_of(target: str) -> tuple[str, ...]:
    """Versions of a target whose flags were checked.

    >>> versions_of("vllm")
    ('0.20.1', '0.24.0', '0.31.0', '0.33.0')
    """
    return tuple(_target(target)["versions"])


def checked_version(target: str, version: str | None) -> str:
    """The version to write for: the newest known if none is asked for, and never another one than asked for."""
    entry = _target(target)
    if version is None:
        return str(entry["default"])
    if version not in entry["versions"]:
        known = ", ".join(entry["versions"])
        raise InputError(
            f"{entry['title']} {shown(version)} is not supported by this version of pdplan; supported: {known}"
        )
    return version


def scatters(target: str, *, apart: bool) -> str:
    """Why the target's router keeps no prefixes together, empty if it does; apart: between prefill and decode engines.

    As seen in `benchmarks/router_policies.py --texts 12`; trtllm-serve has no colocated router at all.
    """
    if target == "vllm":
        return "vllm-router 0.1.17 sends a request to the replica with the fewest requests"
    if target == "sglang" and apart:
        return "SGLang's router 0.3.2 does not keep them together in the prefill pool"
    return "trtllm-serve's router only counts requests" if target == "trtllm" else ""


def engine_version(target: str, version: str, engine: str) -> str | None:
    """Version of the serving engine that a version of a target runs; None if it runs another engine."""
    found: str | None = _version(target, version)["engines"].get(engine)
    return found


def engines_of(target: str) -> tuple[str, ...]:
    """Serving engines whose plans a target runs."""
    return tuple(_version(target, str(_target(target)["default"]))["engines"])


def image(target: str, version: str, what: str) -> str:
    """Container image of an engine or another part of a target."""
    return str(_version(target, version)["images"][what])


def hand_over_of(target: str, version: str, every: tuple[str, ...]) -> tuple[str, ...]:
    """Connectors of vLLM that a target hands requests over with; all where it leaves that to the engine.

    >>> hand_over_of("dynamo", "1.6.1", ("NixlPushConnector",))
    ('NixlConnector',)
    """
    return tuple(_version(target, version).get("connectors", every))


def legal_flag(engine: str, version: str, name: str, program: str | None = None) -> Any:
    """What the parser of an engine knows of a flag: its kind, or its choices; None if it does not know it.

    program: of Dynamo, whose programs have flags of their own.
    """
    if program is not None:
        return _flags()[engine]["flags"][version][program].get(name)
    found = _flags()[engine]["flags"]["names"].get(name)
    return found.get(version) if isinstance(found, dict) else found


def off_switch(engine: str, version: str, name: str) -> str:
    """The flag that says no to a switch; its spelling changed between versions.

    >>> off_switch("vllm", "0.31.0", "--enable-prefix-caching"), off_switch("vllm", "0.33.0", "--enable-prefix-caching")
    ('--no-enable-prefix-caching', '--disable-prefix-caching')
    """
    spellings = (name.replace("--", "--no-", 1), name.replace("--enable-", "--disable-", 1))
    return next(other for other in spellings if legal_flag(engine, version, other) is not None)


def transfer_facts(version: str) -> dict[str, list[str]]:
    """Connectors, fields of --kv-transfer-config and environment variables of one version of vLLM."""
    found: dict[str, list[str]] = _flags()["vllm"]["transfer"][version]
    return found


def fact(*path: str) -> Any:
    """An entry of targets.yaml.

    >>> fact("kv_dtypes", "vllm", "bf16")
    'bfloat16'
    """
    found: Any = _facts()
    for part in path:
        found = found[part]
    return found


def targets() -> dict[str, Any]:
    """Every target's entry."""
    found: dict[str, Any] = _facts()["targets"]
    return found


def _target(name: str) -> dict[str, Any]:
    if name not in targets():
        raise UnknownNameError("target", name, targets())
    found: dict[str, Any] = targets()[name]
    return found


def _version(target: str, version: str) -> dict[str, Any]:
    found: dict[str, Any] = _target(target)["versions"][checked_version(target, version)]
    return found


@cache
def _facts() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(_text("targets.yaml"))
    return loaded


@cache
def _flags() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(_text("flags.json"))
    return loaded


def _text(name: str) -> str:
    return (resources.files("reports.deploy.data") / name).read_text(encoding="utf-8")
