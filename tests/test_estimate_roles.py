"""`pdplan estimate` and the model under it: a role shows what it does and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from costmodel.engine import Role
from costmodel.errors import InputError
from costmodel.estimate import Estimate, estimate, saturation_rate
from pdplan.cli import run
from tests.toy import OVERHEAD, llama_8b, toy_config

FLAGS = ("estimate", "--model", "Llama-3.1-8B", "--gpu", "H100")


def of(role: Role, isl: float = 2000, osl: float = 201, **changes: Any) -> Estimate:
    return estimate(llama_8b(), toy_config(role=role), OVERHEAD, isl, osl, **changes)


def shown(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert run([*FLAGS, *flags]) == 0
    return capsys.readouterr().out


def test_a_prefill_engine_only_prefills() -> None:
    found = of(Role.PREFILL)
    assert found.decode is None
    assert found.batch is None
    assert found.prefill is not None
    assert found.requests_per_second == pytest.approx(1 / found.prefill.time)
    assert found.binds == found.prefill.bound_by == "compute"
    assert found.max_batch == of(Role.PREFILL, osl=1).max_batch  # it holds prompts, however long the answers


def test_a_decode_engine_only_decodes_all_tokens_but_the_first() -> None:
    found = of(Role.DECODE, batch=50)
    assert found.prefill is None
    assert found.decode is not None
    assert found.requests_per_second == pytest.approx(50 / (200 * found.decode.time))


def test_a_colocated_engine_pays_both() -> None:
    found = of(Role.COLOCATED, batch=50)
    assert found.prefill is not None
    assert found.decode is not None
    assert 1 / found.requests_per_second == pytest.approx(found.prefill.time + 200 * found.decode.time / 50)


def test_one_output_token_comes_from_the_prefill() -> None:
    found = of(Role.COLOCATED, osl=1)
    assert found.decode is None
    assert found.prefill is not None
    assert found.requests_per_second == pytest.approx(1 / found.prefill.time)
    assert found.binds == found.prefill.bound_by


@pytest.mark.parametrize(
    ("role", "osl", "batch", "message"),
    [
        (Role.DECODE, 1, None, "a decode engine needs an OSL above 1 token: prefill emits the first"),
        (Role.PREFILL, 100, 8, "batch 8 has no meaning: a prefill engine does not decode"),
        (Role.COLOCATED, 1, 8, "batch 8 has no meaning: with an OSL of 1 nothing decodes"),
    ],
)
def test_what_a_role_cannot_do_is_refused(role: Role, osl: float, batch: float | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        of(role, osl=osl, batch=batch)


def test_lanes_share_prompts() -> None:
    assert saturation_rate(toy_config(pipeline=2), prefill_time=0.1, decode_time=0.05) == pytest.approx(10.0)


def test_the_page_of_a_prefill_engine_counts_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    page = shown(capsys, "--role", "prefill")
    assert "prompts/s" in page
    assert "prompt tokens/s" in page
    assert "tokens\nthroughput" in page
    assert not any(word in page for word in ("decode", "req/s", "max batch", "memory\norigins"))
    value = json.loads(shown(capsys, "--role", "prefill", "--json"))
    assert (value["decode"], value["batch"], value["output_tokens_per_second"]) == (None, None, None)
    assert value["prompt_tokens_per_second"] == pytest.approx(value["requests_per_second"] * 2048)


def test_the_page_of_a_decode_engine_has_no_prefill(capsys: pytest.CaptureFixture[str]) -> None:
    page = shown(capsys, "--role", "decode", "--batch", "16")
    assert "decode step of 16" in page
    assert "output tokens/s" in page
    assert "prefill" not in page
    value = json.loads(shown(capsys, "--role", "decode", "--batch", "16", "--json"))
    assert (value["prefill"], value["prompt_tokens_per_second"]) == (None, None)
    assert value["output_tokens_per_second"] == pytest.approx(16 / value["decode"]["time_s"])


def test_one_output_token_shows_no_decode_step(capsys: pytest.CaptureFixture[str]) -> None:
    page = shown(capsys, "--osl", "1")
    assert "decode" not in page
    assert "prompts of 2,048 tokens" in page
    assert "+ 1 tokens" not in page
