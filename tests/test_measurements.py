"""Reading measurement files: formats told apart, layouts understood, faults told by line."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from costmodel.errors import InputError
from search_spaces.measured_engines import measured_model
from search_spaces.measurements import Layout, Refused, ServingRow, read_measurements

SERVING = "model,accelerator,engine,isl,osl,concurrency,num_gpus,tp,pp,ep,dp,ttft_ms,tpot_ms\n"
BEYOND = "is out of range; must be at least 1 and at most"


def written(folder: Path, text: str) -> Path:
    path = folder / "rows.csv"
    path.write_text(text, encoding="utf-8")
    return path


def only(folder: Path, text: str) -> object:
    _, rows = read_measurements(written(folder, text))
    assert len(rows) == 1
    return rows[0]


def test_workers_of_a_disaggregated_row(tmp_path: Path) -> None:
    header = "model,accelerator,engine,mode,isl,osl,concurrency,prefill_workers,prefill_tp,prefill_dp,prefill_ep,"
    header += "decode_workers,decode_tp,decode_dp,decode_ep\n"
    row = only(tmp_path, f"{header}m,b200,sglang,disaggregated,8192,1024,64,2,1,4,4,1,8,1,0\n")
    assert isinstance(row, ServingRow)
    assert row.prefill == Layout(2, 1, 1, 4, 4)
    assert row.decode == Layout(1, 8, 1, 1, 1)
    assert row.gpus == 16
    header = header.replace("mode,", "mode,num_gpus,")
    row = only(tmp_path, f"{header}m,b200,sglang,disaggregated,16,8192,1024,64,1,8,8,8,1,8,1,1\n")
    assert isinstance(row, ServingRow)
    assert row.prefill == Layout(1, 1, 1, 8, 8)  # tp counts all ranks
    assert math.isnan(row.ttft)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ("m,h100,vllm,many,100,8,1,1,1,1,1,1,1", "isl: 'many' is not a number"),
        ("m,h100,vllm,-5,100,8,1,1,1,1,1,1,1", f"isl: -5 {BEYOND} 16,777,216 tokens"),
        (
            "m,h100,vllm,5,5,8,1,1,1,1,1,1,0",
            "tpot_ms: 0 is out of range; must be at least 0.001 and at most 3,600,000 ms; leave it empty where "
            "nothing was measured",
        ),
        ("m,h100", "the row has 2 fields, the header 13"),
        ("m,h100,vllm,5,100,8,4,3,1,1,1,1,1", "tp 3 x pp 1 x dp 1 does not divide num_gpus 4"),
    ],
)
def test_a_row_that_cannot_be_read_says_why(tmp_path: Path, cells: str, reason: str) -> None:
    assert only(tmp_path, f"{SERVING}{cells}\n") == Refused(2, reason)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd"])
def test_no_file_outside_the_folder_of_models_is_read(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "config.json").write_text("secret", encoding="utf-8")
    with pytest.raises(InputError, match="is a path that leaves the folder of models; write ORG/NAME") as caught:
        measured_model(name, folder)
    assert "JSON" not in str(caught.value)
