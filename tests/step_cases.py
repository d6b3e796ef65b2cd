"""Models, engines and steps as hypothesis draws them, for the tests of the engine step."""

from __future__ import annotations

from hypothesis import strategies as st

from costmodel.step import StepLoad
from tests.toy import (
    deepseek_v3,
    llama_8b,
    llama_70b,
    mixtral,
    windowed,
)

MODELS = {model.name: model for model in (llama_8b(), llama_70b(), windowed(), mixtral(), deepseek_v3())}

models = st.sampled_from(sorted(MODELS)).map(MODELS.__getitem__)
counts = st.integers(0, 300)
lengths = st.integers(1, 20_000)


@st.composite
def loads(draw: st.DrawFn) -> StepLoad:
    prompts, decodes = draw(st.integers(0, 4)), draw(counts)
    return StepLoad.of(prompts, draw(st.integers(0, 4096)), draw(st.integers(0, 9000)), decodes, draw(lengths))
