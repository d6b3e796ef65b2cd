"""Serving engines of the catalog."""

from __future__ import annotations

import pytest

from costmodel.accelerator import Origin
from costmodel.errors import UnknownNameError
from search_spaces.engines import engine_names, load_engine_overhead


def test_every_engine_has_a_plausible_overhead_with_its_origin() -> None:
    assert engine_names() == ("sglang", "trtllm", "vllm")
    for name in engine_names():
        overhead = load_engine_overhead(name)
        assert 1e-4 < overhead.step < 1e-2
        assert 0 <= overhead.per_request < 1e-4
        assert isinstance(overhead.origin, Origin)
        assert overhead.source


def test_an_unknown_engine_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"engine 'vlmm' is not known; did you mean 'vllm'\?"):
        load_engine_overhead("vlmm")
