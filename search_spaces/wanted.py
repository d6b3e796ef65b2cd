"""An engine config as a user writes it on a command line, such as `gpu=H100,tp=4,role=decode`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from costmodel.engine import Parallelism, Role
from costmodel.errors import InputError, nearest_name
from costmodel.quoting import name_list, shortened, shown

from .bounds import DEGREE, MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS, Bounds
from .catalog import normalized_name
from .enumeration import Shape
from .problem import Problem, SearchSpace
from .schema import KV_DTYPES, WEIGHT_DTYPES

DEGREES = ("tensor_parallel", "pipeline_parallel", "expert_parallel", "data_parallel")
NUMBERS: Mapping[str, Bounds] = dict.fromkeys(DEGREES, DEGREE) | {
    "max_num_seqs": MAX_NUM_SEQS,
    "max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS,
}
DTYPES: Mapping[str, tuple[str, ...]] = {"weight_dtype": WEIGHT_DTYPES, "kv_dtype": KV_DTYPES}
SHORT = {"gpu": "accelerator"} | dict(zip(("tp", "pp", "ep", "dp"), DEGREES, strict=True))
KEYS: Mapping[str, str] = SHORT | {name: name for name in ("accelerator", "role", *NUMBERS, *DTYPES)}
"""What may be written, and the setting that it means."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An engine config that somebody asks about; None: any role, batch limit or token budget of the space.

    weight_dtype, kv_dtype: None where that of the model section is meant, or the first of the space if it lacks that.

    offer: index into `Problem.offers`; unstated: degrees that are 1 because nobody said otherwise.
    """

    offer: int
    parallelism: Parallelism
    role: Role | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    unstated: tuple[str, ...] = ()

    def assumed(self, problem: Problem) -> dict[str, int | str]:
        """Settings that nobody stated, and what they are taken for."""
        shape = self.shape(problem)
        usual = {"weight_dtype": shape.weight_dtype, "kv_dtype": shape.kv_dtype}
        return dict.fromkeys(self.unstated, 1) | {
            name: dtype for name, dtype in usual.items() if name not in self.settings
        }

    def shape(self, problem: Problem) -> Shape:
        """The engine shape that is asked about."""
        weights = self.weight_dtype or _usual(problem.weight_dtype, problem.weight_dtypes)
        cache = self.kv_dtype or _usual(problem.kv_dtype, problem.kv_dtypes)
        return Shape(self.offer, self.parallelism, weights, cache)

    @property
    def settings(self) -> dict[str, int | str]:
        """The settings that are stated, by the key of the search section."""
        split = self.parallelism
        degrees = zip(DEGREES, (split.tensor, split.pipeline, split.expert, split.data), strict=True)
        others = {name: getattr(self, name) for name in ("max_num_seqs", "max_num_batched_tokens", *DTYPES)}
        return dict(degrees) | {name: value for name, value in others.items() if value is not None}


def _usual(own: str, allowed: tuple[str, ...]) -> str:
    return own if own in allowed else allowed[0]


def parse_wanted(pairs: Mapping[str, str], problem: Problem) -> Wanted:
    """Read the settings of one engine config; degrees that are left out are 1.

    Raises InputError for all unknown settings and values, one a line, each with those that are allowed.
    """
    read: dict[str, Any] = {}
    faults: list[str] = []
    for key, text in pairs.items():
        try:
            name = _name(key)
            if name in read:
                raise InputError(f"--config states {name} twice")
            read[name] = None  # stated, whatever it is worth
            read[name] = _read(name, key, text, problem)
        except InputError as error:
            faults.append(str(error))
    if "accelerator" not in read:
        faults.append("--config names no accelerator; add gpu=NAME, such as gpu=H100")
    if faults:
        raise InputError("\n".join(faults))
    unstated = tuple(name for name in DEGREES if name not in read)
    parallelism = Parallelism(*(read.pop(name, 1) for name in DEGREES))
    return Wanted(offer=read.pop("accelerator"), parallelism=parallelism, unstated=unstated, **read)


def _name(key: str) -> str:
    """The setting that a key means."""
    return KEYS.get(key.lower()) or _unknown("setting", key, KEYS)


def _read(name: str, key: str, text: str, problem: Problem) -> int | str | Role:
    """The value of one setting, written behind `key`."""
    if name in NUMBERS:
        return _number(key, text, NUMBERS[name])
    if name == "accelerator":
        return _offer(text, problem)
    if name == "role":
        roles = {role.value: role for role in Role}
        return roles.get(text.lower()) or roles[_unknown("role", text, roles)]
    allowed = DTYPES[name]
    return text.lower() if text.lower() in allowed else _unknown(key, text, dict.fromkeys(allowed))


def _offer(name: str, problem: Problem) -> int:
    names = [offer.accelerator.name for offer in problem.offers]
    offered = {normalized_name(offer): index for index, offer in enumerate(names)}
    if normalized_name(name) in offered:
        return offered[normalized_name(name)]
    near = nearest_name(name, names)
    hint = f"; did you mean {near}?" if near else ""
    raise InputError(
        f"--config gpu={shortened(name)} is not among the accelerators of the workload file: {name_list(names)}{hint}"
    )


def _number(key: str, text: str, allowed: Bounds) -> int:
    try:
        value = int(text)
    except ValueError:
        raise InputError(f"--config {key}={shortened(text)} is not a whole number") from None
    if not allowed.holds(value):
        raise InputError(f"--config {key}={shortened(text)} is out of range; {allowed.sentence()}")
    return value


def _unknown(what: str, found: str, allowed: Mapping[str, object]) -> str:
    near = nearest_name(found, allowed)
    hint = f"; did you mean {near}?" if near else ";"
    raise InputError(f"--config: unknown {what} {shown(found)}{hint} allowed: {name_list(allowed)}")


def with_wanted(problem: Problem, wanted: Wanted) -> tuple[Problem, dict[str, tuple[int | str, ...]]]:
    """The problem with the wanted settings in its search space, and the ranges that they were not in."""
    space = replace(problem.space, weight_dtype=problem.weight_dtypes, kv_dtype=problem.kv_dtypes)
    settings = wanted.settings
    missing = {name: getattr(space, name) for name, value in settings.items() if value not in getattr(space, name)}
    wider = {
        name: tuple(sorted({*values, settings[name]}, key=DTYPES[name].index if name in DTYPES else None))
        for name, values in missing.items()
    }
    roles = space.roles if wanted.role is None else tuple(role for role in Role if role in {*space.roles, wanted.role})
    gpus = max(space.max_gpus_per_engine, wanted.parallelism.gpus)
    extended: SearchSpace = replace(space, roles=roles, max_gpus_per_engine=gpus, **wider)
    return replace(problem, space=extended), missing
