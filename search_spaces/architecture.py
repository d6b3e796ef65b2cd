"""An architecture file: a model as groups of equal layers, for configs that pdplan does not understand.

`pdplan models CONFIG -o FILE` writes one; `model: {architecture: FILE}` plans with it. The keys of a mixer and of a
feed-forward are the fields of `costmodel.attention` and `costmodel.transformer`, where each is described.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, replace
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import yaml
from pydantic import Field, TypeAdapter, ValidationError, create_model

from costmodel.attention import (
    Attention,
    CompressedAttention,
    LatentAttention,
    LinearAttention,
    Part,
    SoftmaxAttention,
)
from costmodel.errors import InputError
from costmodel.transformer import STORED_BYTES, FeedForward, LayerGroup, Transformer, WeightScale

from .bounds import Bounds
from .fields import Section, Text, choice, count, faults_of
from .yaml_source import read_source

ARCHITECTURE_SCHEMA = "pdplan.architecture/1"
MIXERS: Mapping[str, type[Any]] = {
    "softmax": SoftmaxAttention,
    "latent": LatentAttention,
    "compressed": CompressedAttention,
    "linear": LinearAttention,
}
"""Word of each kind of token mixer in a file."""
LARGEST = 10**8
Count = Annotated[int, count(Bounds(0, LARGEST))]
Positive = Annotated[int, count(Bounds(1, LARGEST))]


@cache
def _section(kind: str, shape: type[Any]) -> type[Section]:
    """The keys of a shape of the cost model, but the hidden width, which the file states once."""
    hints = get_type_hints(shape)
    keys: dict[str, Any] = {"kind": (Literal[kind], ...)} if kind else {}
    for field in fields(shape):
        if field.name != "hidden":
            annotation = bool if hints[field.name] is bool else Count
            default = ... if field.default is MISSING else field.default
            keys[field.name] = (annotation | None if default is None else annotation, default)
    return create_model(f"{kind or shape.__name__}_section", __base__=Section, **keys)


if TYPE_CHECKING:
    Mixer = Section
    Block = Section
else:
    Mixer = Annotated[reduce(or_, (_section(*kind) for kind in MIXERS.items())), Field(discriminator="kind")]
    Block = _section("", FeedForward)


class LayersSection(Section):
    """Equal layers."""

    count: Annotated[int, count(Bounds(1, 10_000))]
    """How many of them."""
    attention: Mixer
    """Token mixer: kind softmax, latent, compressed or linear, and its widths."""
    feed_forward: Block | None = None
    """Feed-forward and experts; none: the layer has a mixer alone."""
    parallel: bool = False
    """Whether both read the same input."""
    sets: Count = 0
    """Sets of weights that these layers share; 0: each has its own."""


class ArchitectureFile(Section):
    """A model."""

    schema_: Annotated[Literal["pdplan.architecture/1"], Field(alias="schema")]
    name: Text
    hidden: Positive
    """Width of the residual stream."""
    vocab: Positive
    """Rows of the embedding."""
    tied_embeddings: bool
    """Whether the output head shares them."""
    max_position: Positive
    """Longest ISL + OSL [token]."""
    position_embeddings: Count = 0
    """Rows of a learned table of positions."""
    weights: Annotated[str, choice(*sorted(STORED_BYTES))] = "bf16"
    """Dtype of the published checkpoint."""
    quantized: frozenset[Part] = frozenset({Part.ATTENTION, Part.FEED_FORWARD, Part.EXPERTS})
    """Parts that are stored in `weights`; the others are 16-bit."""
    own_dtypes: Mapping[Part, Annotated[str, choice(*sorted(STORED_BYTES))]] = Field(default_factory=dict)
    """Dtypes of parts that are stored in another one."""
    weight_scale: tuple[int, int, float] | None = None
    """Outputs and inputs of a block of weights that share a scale, and its size [byte]."""
    source: str = ""
    """Where the figures come from."""
    layers: Annotated[list[LayersSection], Field(min_length=1)]
    """Groups of equal layers, first to last."""

    def transformer(self) -> Transformer:
        """The model that the file describes."""
        return Transformer(
            name=self.name,
            hidden=self.hidden,
            vocab=self.vocab,
            layers=tuple(map(self._group, self.layers)),
            tied_embeddings=self.tied_embeddings,
            max_position=self.max_position,
            position_embeddings=self.position_embeddings,
            native_weight_dtype=self.weights,
            quantized=self.quantized,
            source=self.source,
            own_dtypes=frozenset(self.own_dtypes.items()),
            weight_scale=None if self.weight_scale is None else WeightScale(*self.weight_scale),
        )

    def _group(self, section: LayersSection) -> LayerGroup:
        mixer = section.attention.model_dump()
        block = (
            {"intermediate": 0, "gated": True} if section.feed_forward is None else section.feed_forward.model_dump()
        )
        attention: Attention = MIXERS[mixer.pop("kind")](hidden=self.hidden, **mixer)
        return LayerGroup(
            section.count, attention, FeedForward(hidden=self.hidden, **block), section.parallel, section.sets
        )


def read_architecture(path: Path) -> Transformer:
    """The model of an architecture file; InputError with the line of whatever is wrong in it."""
    source, faults = read_source(path)
    try:
        file = ArchitectureFile.model_validate(source.value)
    except ValidationError as error:
        placed = (
            replace(fault, path=tuple(key for key in fault.path if key not in MIXERS))
            for fault in faults_of(error, TypeAdapter(ArchitectureFile).json_schema())
        )
        raise InputError(source.render([*faults, *placed])) from None
    if faults:
        raise InputError(source.render(faults))
    return file.transformer()


def architecture_text(model: Transformer, gaps: tuple[str, ...] = ()) -> str:
    """An architecture file of a model; gaps: what of its config was not understood, as comments at the top."""
    kinds = {shape: kind for kind, shape in MIXERS.items()}
    layers = [
        {
            "count": group.count,
            "attention": {"kind": kinds[type(group.attention)], **_stated(group.attention)},
            **({} if group.feed_forward.is_empty else {"feed_forward": _stated(group.feed_forward)}),
            **({"parallel": True} if group.parallel else {}),
            **({"sets": group.sets} if group.sets else {}),
        }
        for group in model.layers
    ]
    scale = model.weight_scale
    content = {
        "schema": ARCHITECTURE_SCHEMA,
        "name": model.name,
        "hidden": model.hidden,
        "vocab": model.vocab,
        "tied_embeddings": model.tied_embeddings,
        "max_position": model.max_position,
        **({"position_embeddings": model.position_embeddings} if model.position_embeddings else {}),
        "weights": model.native_weight_dtype,
        "quantized": sorted(map(str, model.quantized)),
        **({"own_dtypes": {str(part): dtype for part, dtype in sorted(model.own_dtypes)}} if model.own_dtypes else {}),
        **({"weight_scale": [scale.outputs, scale.inputs, scale.size]} if scale else {}),
        "source": model.source,
        "layers": layers,
    }
    head = [
        f"# {model.parameters:,} parameters, {model.active_parameters:,} of them active",
        *(f"# Not understood, and left out: {gap}" for gap in gaps),
    ]
    body = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)
    return "\n".join([*head, body])


def _stated(shape: Any) -> dict[str, Any]:
    """The fields of a shape that differ from their defaults."""
    defaults = {field.name: field.default for field in fields(shape)}
    return {name: value for name, value in asdict(shape).items() if name != "hidden" and value != defaults[name]}
