"""Levers: short names for what `pdplan whatif` changes most, each with what it does to a problem's inputs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from costmodel.errors import InputError, nearest_name
from costmodel.metric import METRICS, Metric
from costmodel.quoting import name_list, shortened, shown

from .bounds import LATENCIES, REQUEST_RATE
from .catalog import normalized_name
from .demand import planned_rate
from .fields import refusal_of
from .quantities import Kind, QuantityError, as_share, check_plain, parse
from .schema import Diurnal

_INDEX = re.compile(r"[0-9]{1,9}")

Inputs = dict[str, Any]
Setter = Callable[[Inputs, str, Any], None]
"""Changes the inputs; told the name after the lever's dot, and the value."""

EFFICIENCIES: Mapping[str, float] = MappingProxyType({"pessimistic": 0.9, "expected": 0.0, "optimistic": -0.9})
"""Names of efficiencies: at the ends of the interval that holds nine predictions in ten, or between."""


@dataclass(frozen=True, slots=True)
class Lever:
    """A lever: what it does, an example for the command line, what it says; kind: of its values, None: plain ones.

    classes: whether a name after its dot is that of an SLO class, and may be left out.
    """

    setter: Setter
    example: str
    says: str
    kind: Kind | None = None
    classes: bool = False

    def apply(self, inputs: Inputs, key: str, value: Any) -> None:
        """Change the inputs; key: of the lever, with a name after its dot where the example has one."""
        head, _, name = key.partition(".")
        stated = self.example.partition("=")[0]
        if name and not self.classes and "." not in stated:
            raise InputError(f"{head} stands alone, but {shown(name)} follows it")
        if "." in stated and not name:
            noun = "months" if head == "growth" else "accelerator"
            raise InputError(f"name the {noun}, such as {stated}={value}")
        self.setter(inputs, name, value)


def below(here: Any, name: str, key_path: str) -> Any:
    """What stands under one part of a dotted path; items of lists are told by their name or number."""
    if isinstance(here, dict) and name in here:
        return here[name]
    if isinstance(here, list):
        return here[place_in(here, name, key_path)]
    raise InputError(
        f"{shortened(key_path)}: there is no {shown(name)}{_name_hint(name, LEVERS) or ';'} levers: {name_list(LEVERS)}"
    )


def place_in(items: list[Any], key: str, key_path: str) -> int:
    """Where in a list an item stands that is told by its name or number."""
    if _INDEX.fullmatch(key) and int(key) < len(items):
        return int(key)
    labels = ((at, item.get("name") if isinstance(item, dict) else item) for at, item in enumerate(items))
    names = {at: name for at, name in labels if isinstance(name, str)}
    places = [at for at, name in names.items() if normalized_name(name) == normalized_name(key)]
    if places:
        return places[0]
    if re.fullmatch("[0-9]+", key) or not names:
        raise InputError(
            f"{shortened(key_path)}: {shortened(key)} is not one of the {len(items)} items (0 is the first)"
        )
    words = list(names.values())
    raise InputError(f"{shortened(key_path)}: {shown(key)} is not one of {name_list(words)}{_name_hint(key, words)}")


def _name_hint(key: str, names: Iterable[str]) -> str:
    near = nearest_name(key, names)
    return f"; did you mean {shown(near)}?" if near else ""


def _offer_value(*keys: str) -> Setter:
    """A lever on one accelerator: NAME.GPU = value."""

    def apply(inputs: Inputs, name: str, value: Any) -> None:
        entry = below(inputs["accelerators"], name, f"accelerators.{name}")
        for key in keys[:-1]:
            entry = entry[key]
        entry[keys[-1]] = value

    return apply


def _value_at(*path: str) -> Setter:
    """A lever that is one value of the inputs."""

    def apply(inputs: Inputs, _name: str, value: Any) -> None:
        here = inputs
        for key in path[:-1]:
            here = here[key]
        here[path[-1]] = value

    return apply


def _one_dtype(key: str) -> Setter:
    """A precision that the model is served in, whatever the search might choose from."""

    def apply(inputs: Inputs, _name: str, value: Any) -> None:
        inputs["model"][key] = value
        inputs["search"].pop(key, None)

    return apply


def _of_classes(key: str) -> Setter:
    """A lever on a limit of every SLO class, or of the class named: ttft = value, ttft.CLASS = value."""

    def apply(inputs: Inputs, name: str, value: Any) -> None:
        for slo in [below(inputs["slo"], name, f"slo.{name}")] if name else inputs["slo"]:
            slo[key] = f"{value!r}s" if isinstance(value, float) and key != "attainment" else value

    return apply


def _scaled_lengths(key: str) -> Setter:
    """A lever that multiplies all prompts or all outputs; the longest request grows in step."""

    def apply(inputs: Inputs, _name: str, value: Any) -> None:
        factor, load = _factor(f"{key}_scale", value), inputs["workload"]
        rows = _histogram(key, load)
        longest = max(row["isl"] + row["osl"] for row in rows)
        for row in rows:
            row[key] = max(row[key] * factor, 1.0)
        grown = max(row["isl"] + row["osl"] for row in rows) / longest
        load["max_tokens"] = max(math.ceil(load["max_tokens"] * grown), 1)

    return apply


def _histogram(key: str, load: Mapping[str, Any]) -> list[dict[str, float]]:
    """The rows of the lengths, which sessions have none of."""
    if "lengths" not in load:
        raise InputError(
            f"{key}: the lengths follow from the sessions; state workload.sessions.user_tokens, for example"
        )
    rows: list[dict[str, float]] = load["lengths"]["histogram"]
    return rows


def _mean_length(key: str) -> Setter:
    """A lever on the mean of all prompts or all outputs [tokens], by whose ratio to the stated mean each is longer."""

    def apply(inputs: Inputs, _name: str, value: Any) -> None:
        rows = _histogram(key, inputs["workload"])
        mean = sum(row["share"] * row[key] for row in rows) / sum(row["share"] for row in rows)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < math.inf:
            raise InputError(f"{key}={shortened(str(value))} is not a number of tokens above zero")
        _scaled_lengths(key)(inputs, "", value / mean)

    return apply


def _rate(inputs: Inputs, _name: str, value: Any) -> None:
    """The rate to plan for."""
    rate = _quantity("rate", value, Kind.RATE)
    if not REQUEST_RATE.holds(rate):
        raise InputError(f"rate={shortened(str(value))} is out of range; it {REQUEST_RATE.sentence()}")
    _demand(inputs["workload"], lambda _: rate)


def _scaled_rate(inputs: Inputs, _name: str, value: Any) -> None:
    """The demand times a factor."""
    factor = _factor("rate_scale", value)
    _demand(inputs["workload"], lambda rate: rate * factor)


def _growing(inputs: Inputs, months: str, value: Any) -> None:
    """The demand after so many months of growth: growth.MONTHS = share per month."""
    if not months.isdigit():
        raise InputError(f"name the months, such as growth.6={value}")
    share = _share(value)
    if share is None or not -1.0 < share < math.inf:
        raise InputError(f"growth.{months}={shortened(str(value))} is not a share per month such as 0.05 or 5%")
    _scaled_rate(inputs, "", (1.0 + share) ** int(months))


def _demand(load: Inputs, change: Callable[[float], float]) -> None:
    """Change the rate that is planned for [1/s]; of a daily profile, every hour in proportion.

    An earlier change of the scenario may have written either.
    """
    if load["diurnal"] is None:
        load["request_rate"] = change(_quantity("workload.request_rate", load["request_rate"], Kind.RATE))
        return
    try:
        day = Diurnal.model_validate(load["diurnal"])
    except ValidationError as error:
        raise InputError("; ".join(f"workload.diurnal: {refusal_of(details)}" for details in error.errors())) from None
    old_rate = planned_rate(day)
    rate = change(old_rate)
    hours = [rate * (hour / old_rate) for hour in day.requests_per_second_by_hour]  # the hour planned for: rate exactly
    load["diurnal"] = {"requests_per_second_by_hour": hours, "percentile": day.percentile}


def _quantity(key: str, value: Any, kind: Kind) -> float:
    """A value in the base unit of its kind, which an earlier change of the scenario may have written as a text."""
    try:
        return parse(value, kind)
    except QuantityError as error:
        raise InputError(f"{key}: {error}") from None


def _scaled_limits(name: str, *keys: str) -> Setter:
    """A lever that multiplies latency limits of every class."""

    def apply(inputs: Inputs, _name: str, value: Any) -> None:
        factor = _factor(name, value)
        for slo in inputs["slo"]:
            for key in keys:
                if slo.get(key) is not None:
                    slo[key] = f"{_quantity(f'slo.{key}', slo[key], Kind.DURATION) * factor!r}s"

    return apply


def _scaled_links(inputs: Inputs, _name: str, value: Any) -> None:
    """A lever that multiplies the bandwidth of every accelerator's link out of its node."""
    factor = _factor("link_scale", value)
    for entry in inputs["accelerators"]:
        link = entry["scale_out"]
        link["bandwidth"] = _quantity("scale_out.bandwidth", link["bandwidth"], Kind.BANDWIDTH) * factor


def _prices(inputs: Inputs, _name: str, value: Any) -> None:
    """Take other quotes of the catalog; a price that the user stated, or a lever has changed, stays."""
    inputs["prices"] = value
    for entry in inputs["accelerators"]:
        if entry.get("price") == entry.get("catalog_price"):
            entry["price"] = None


def _without(inputs: Inputs, name: str, value: Any) -> None:
    """Leave an accelerator out."""
    entry = below(inputs["accelerators"], name, f"accelerators.{name}")
    if value not in {True, False}:
        raise InputError(f"without.{name}={shortened(str(value))} is neither true nor false")
    if value:
        inputs["accelerators"].remove(entry)


def _add_offer(inputs: Inputs, name: str, value: Any) -> None:
    """Offer one more accelerator of the catalog at a price [$/h]."""
    inputs["accelerators"].append({"name": name, "price": value})


def _efficiency(inputs: Inputs, _name: str, value: Any) -> None:
    """How quick the engines are within what past predictions were wrong by."""
    if value not in EFFICIENCIES:
        raise InputError(f"efficiency={shortened(str(value))} is not one of {', '.join(EFFICIENCIES)}")
    inputs["confidence"] = EFFICIENCIES[value]


def _share(value: Any) -> float | None:
    """A number, or a text such as 5%; None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        share = as_share(value) if isinstance(value, str) else None
        return float(value) if share is None else share
    except (TypeError, ValueError, OverflowError):
        return None


def _factor(key: str, value: Any) -> float:
    factor = _share(value)
    if factor is not None and 0.0 < factor < math.inf:
        return factor
    raise InputError(f"{key}={shortened(str(value))} is not a factor above zero")


LEVERS: Mapping[str, Lever] = MappingProxyType(
    {
        "price": Lever(_offer_value("price"), "price.H200=1:8:8", "price of a GPU type [$/h]", Kind.PRICE),
        "prices": Lever(
            _prices,
            "prices=on-demand,reserved,spot",
            "which of the catalog's quotes are prices, or a CSV file of your own",
        ),
        "inventory": Lever(_offer_value("inventory"), "inventory.H200=8,16,32", "GPUs of a type that can be had"),
        "owned": Lever(_offer_value("owned"), "owned.A100-80=0,64", "GPUs that you have: power and hosting only"),
        "owned_price": Lever(
            _offer_value("owned_price"), "owned_price.A100-80=0.1", "what one of them costs [$/h]", Kind.PRICE
        ),
        "link": Lever(
            _offer_value("scale_out", "bandwidth"),
            "link.H100=25GB/s,50GB/s",
            "bandwidth of one GPU's network [B/s]",
            Kind.BANDWIDTH,
        ),
        "link_scale": Lever(_scaled_links, "link_scale=0.5,1,2", "that of all GPU types, times a factor"),
        "without": Lever(_without, "without.H100=true", "a GPU type left out"),
        "with": Lever(
            _add_offer, "with.B200=4:8:5", "one more GPU type, of the catalog or your own, at a price [$/h]", Kind.PRICE
        ),
        "rate": Lever(_rate, "rate=5/s,10/s,20/s", "requests per second", Kind.RATE),
        "rate_scale": Lever(_scaled_rate, "rate_scale=1,1.5,2", "the demand times a factor"),
        "growth": Lever(_growing, "growth.6=5%,12%", "the demand after so many months of growth per month"),
        "burstiness": Lever(
            _value_at("workload", "burstiness"),
            "burstiness=1,2,3",
            "coefficient of variation of the times between arrivals",
        ),
        "prefix_hit_share": Lever(
            _value_at("workload", "prefix_hit_share"),
            "prefix_hit_share=0%,30%,60%",
            "share of input tokens found in a cache",
        ),
        "isl": Lever(_mean_length("isl"), "isl=500:8000:4", "mean tokens of a prompt, all of them longer or shorter"),
        "osl": Lever(_mean_length("osl"), "osl=100:800:4", "mean tokens of an output, likewise"),
        "isl_scale": Lever(_scaled_lengths("isl"), "isl_scale=0.5:2:4", "all prompts longer or shorter, by a factor"),
        "osl_scale": Lever(_scaled_lengths("osl"), "osl_scale=0.5:2:4", "all outputs longer or shorter, by a factor"),
        **{
            str(key): Lever(_of_classes(str(key)), row.example, row.limit, Kind.DURATION, classes=True)
            for key, row in METRICS.items()
        },
        "attainment": Lever(
            _of_classes("attainment"),
            "attainment=90%,99%",
            "share of requests that must meet the SLO, likewise",
            classes=True,
        ),
        "ttft_scale": Lever(_scaled_limits("ttft_scale", "ttft"), "ttft_scale=0.5,1", "all TTFT limits times a factor"),
        "tpot_scale": Lever(_scaled_limits("tpot_scale", "tpot"), "tpot_scale=0.5,1", "all TPOT limits times a factor"),
        "slo_scale": Lever(
            _scaled_limits("slo_scale", *map(str, Metric)), "slo_scale=0.5,1,2", "all latency limits times a factor"
        ),
        "weight_dtype": Lever(_one_dtype("weight_dtype"), "weight_dtype=bf16,fp8", "precision of the weights"),
        "kv_dtype": Lever(_one_dtype("kv_dtype"), "kv_dtype=bf16,fp8", "precision of the KV cache"),
        "efficiency": Lever(
            _efficiency, f"efficiency={','.join(EFFICIENCIES)}", "step times longer or shorter than expected"
        ),
        "budget": Lever(
            _value_at("constraints", "budget"), "budget=20,40,80", "most dollars per hour [$/h]", Kind.PRICE
        ),
        "power": Lever(_value_at("constraints", "power"), "power=10kW,20kW", "most board power [W]", Kind.POWER),
        "max_gpus": Lever(_value_at("constraints", "max_gpus"), "max_gpus=8,16", "most GPUs"),
        "max_pools": Lever(_value_at("constraints", "max_pools"), "max_pools=1,2", "most pools"),
        "spares": Lever(
            _value_at("constraints", "headroom", "replicas"), "spares=0,1,2", "spare replicas of every pool"
        ),
    }
)
"""Short names of what is asked about most; any other value of the inputs goes by its dotted path."""


def kind_of(key: str) -> Kind | None:
    """What the values of a key measure; None: plain numbers, or texts."""
    lever = LEVERS.get(key.partition(".")[0])
    return None if lever is None else lever.kind


def number_of(key: str, text: str) -> float:
    """A number as a command line states it for a key, in the unit of the key; shares and factors also in percent.

    >>> number_of("ttft", "300ms"), number_of("price.H200", "$2.50"), number_of("attainment", "95%")
    (0.3, 2.5, 0.95)

    Raises QuantityError with what is wrong.
    """
    kind = kind_of(key)
    if kind is not None:
        value = parse(text, kind)
        name = key.partition(".")[0]
        if name in set(Metric):
            metric = Metric(name)
            check_plain(text, value, METRICS[metric].plain, LATENCIES[metric].holds)
        return value
    number = _share(text)
    if number is None or not math.isfinite(number):
        raise QuantityError(f"{shown(text.strip())} is not a number or a percentage, which {key} needs")
    return number
