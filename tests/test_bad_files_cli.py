"""Files that are wrong, end to end: traces, configs and catalogs, and what is too large, too deep, absent or no text.

Absurd files are read in one process with a limit on its address space, so that a file read whole fails the test and
not the machine.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.bad_input_cases import optimize_within, problem, refused, write
from tests.running import Done, pdplan, within

TEN_GIGABYTES = 10 * 2**30

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
AZURE_ROW = "2023-11-16 18:15:48.1,{},44\n"

CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}

LIMITED = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, 3 * 2**30))
from tests.running import within
from pathlib import Path
runs = [within(*words, cwd=Path(folder)) for folder, *words in json.loads(sys.argv[1])]
print(json.dumps([(done.returncode, done.stdout, done.stderr) for done in runs]))
"""


def limited(*asked: tuple[Path, *tuple[str, ...]]) -> list[Done]:
    """Command lines, each in its folder, one after the other in a process that cannot have much memory."""
    runs = [[str(word) for word in one] for one in asked]
    done = pdplan(json.dumps(runs), code=LIMITED)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return [Done(words, *outcome) for words, outcome in zip(runs, found, strict=True)]


def sparse(path: Path, size: int = TEN_GIGABYTES) -> None:
    """A file that claims `size` bytes and takes none."""
    try:
        with path.open("ab") as file:
            file.truncate(size)
    except OSError as error:
        pytest.skip(f"no sparse files of {size} bytes here: {error}")


# --- traces ---------------------------------------------------------------------------------------------------------


# --- files that are too large, too deep, or no text -----------------------------------------------------------------


def test_ten_gigabytes_behind_any_key_are_not_read(tmp_path: Path) -> None:
    """A config.json, a catalog and a histogram, each refused at its own key, in one run."""
    for name in ("config.json", "catalog.yaml", "h.csv"):
        sparse(tmp_path / name)
    keys = {"model": {"config": "config.json"}, "workload__lengths": {"histogram": "h.csv"}}
    write(tmp_path, problem(catalog="catalog.yaml", **keys))
    said = refused(*limited((tmp_path, "optimize", "w.yaml")), "model.config: ", "10,737,418,240 bytes")
    assert [key for key in ("model.config: ", "catalog: ", "workload.lengths.histogram: ") if key not in said] == []


def laughs(levels: int) -> str:
    """The billion laughs: every line repeats the one before ten times."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


BOMBS = {
    "billion-laughs": (laughs(10), ("aliases (*name) repeat more than",)),
    "brackets": ("a: " + "[" * 200_000, ("w.yaml:1:", "nested deeper than 50 levels")),
    "blocks": ("".join(" " * depth + "a:\n" for depth in range(900)), ("nested deeper than 50 levels",)),
    "alias-of-itself": ("a: &a [*a]\n", ("w.yaml:1:", "nested deeper", "contains itself")),
    "python-tag": ("name: !!python/object/apply:os.system 'touch pwned'\n", ("w.yaml:1:", "tag", "not allowed")),
}


@pytest.fixture(scope="module")
def defused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Done]]:
    """The folder of each bomb, and what became of it."""
    folders = {case: tmp_path_factory.mktemp(case) for case in BOMBS}
    for case, folder in folders.items():
        write(folder, BOMBS[case][0])
    done = limited(*((folder, "optimize", "w.yaml") for folder in folders.values()))
    return {case: (folder, one) for (case, folder), one in zip(folders.items(), done, strict=True)}


@pytest.mark.parametrize("case", BOMBS)
def test_a_yaml_bomb_does_not_go_off(case: str, defused: dict[str, tuple[Path, Done]]) -> None:
    folder, done = defused[case]
    refused(done, *BOMBS[case][1])
    assert [path.name for path in folder.iterdir()] == ["w.yaml"]


TEXTS: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "empty": (b"", ("w.yaml: is empty", "pdplan init")),
    "list": (b"- a\n- b\n", ("w.yaml: contains a list", "keys and values")),
    "utf-16": (problem().encode("utf-16"), ("w.yaml: is UTF-16 text; save it as UTF-8",)),
    "latin-1": (problem(name="x").replace("x", "café").encode("latin-1"), ("is not UTF-8 text", "byte 0xe9")),
    "nul": (problem().replace("2s", "2\0s").encode(), ("w.yaml:", "control character U+0000")),
    "tab": (b"workload:\n\trequest_rate: 1\n", ("w.yaml:2:1: a tab in column 1 cannot indent",)),
    "duplicate-key": (f"{problem()}seed: 1\nseed: 2\n".encode(), ("the key 'seed' stands here again", "first on line")),
    "norway": (b"engine: no\n", ("w.yaml:1:9: engine: no without quotes means false",)),
    "base-60": (
        problem(slo__ttft=0).replace("ttft: 0", "ttft: 1:30").encode(),
        ("slo.ttft: 1:30 means 90", "unit"),
    ),
}


@pytest.mark.parametrize("case", TEXTS)
def test_a_file_that_is_no_workload_is_refused(case: str, tmp_path: Path) -> None:
    content, words = TEXTS[case]
    refused(optimize_within(tmp_path, content), *words)


# --- names that no file can hold --------------------------------------------------------------------------------------

UNWRITABLE = {"not-utf-8": os.fsdecode(b"caf\xe9"), "escape": "a\x1b[31mb", "newline": "a\nb", "separator": "a\u2028b"}
PATHS = {
    "optimize": ("optimize", "{}.yaml", "--effort", "quick"),
    "output": ("optimize", "w.yaml", "--effort", "quick", "-o", "{}"),
    "deploy": ("optimize", "w.yaml", "--effort", "quick", "--deploy", "{}"),
    "trace": ("workload", "{}.csv", "-o", "new.yaml"),
    "trace-in-a-folder": ("workload", "{}/t.csv", "-o", "new.yaml"),
    "new-workload": ("workload", "t.csv", "-o", "{}.yaml"),
    "model": ("workload", "t.csv", "-o", "new.yaml", "--model", "{}/config.json"),
    "catalog": ("gpus", "--catalog", "{}.yaml"),
    "models": ("models", "{}/config.json"),
    "models-file": ("models", "{}.json"),
    "init": ("init", "{}.yaml"),
    "report": ("report", "{}.yaml"),
    "journal": ("whatif", "w.yaml", "--vary", "rate=1:2:2", "--resume", "{}"),
    "validate": ("validate", "--against", "{}.csv"),
    "calibrate": ("calibrate", "{}.json", "--model", "Llama-3.1-8B", "--gpu", "H100"),
}
"""Command lines that name files and folders, each of which is there."""


def named(folder: Path, name: str) -> None:
    """Good files and a folder of that name, and a workload and a trace beside them."""
    write(folder, problem())
    for path in (folder, folder / name):
        path.mkdir(exist_ok=True)
        (path / "t.csv").write_text(AZURE + "".join(AZURE_ROW.format(100 + k) for k in range(30)))
        (path / "config.json").write_text(json.dumps(CONFIG))
    (folder / f"{name}.csv").write_text((folder / "t.csv").read_text())
    (folder / f"{name}.json").write_text(json.dumps(CONFIG))
    (folder / f"{name}.yaml").write_text(problem())


@pytest.mark.skipif(sys.platform in {"win32", "darwin"}, reason="file names there are text")
@pytest.mark.parametrize("case", UNWRITABLE)
def test_a_name_that_no_plan_can_hold_is_refused_before_anything_is_done(case: str, tmp_path: Path) -> None:
    name = UNWRITABLE[case]
    named(tmp_path, name)
    before = sorted(map(str, tmp_path.rglob("*")))
    shown = {"not-utf-8": "caf\\xe9", "escape": "a\\x1b[31mb", "newline": "a\\nb", "separator": "a\\u2028b"}[case]
    for command, words in PATHS.items():
        done = within(*(word.format(name) for word in words), cwd=tmp_path)
        said = refused(done, shown, "UTF-8")
        assert len(said.splitlines()) <= 3, command
        assert sorted(map(str, tmp_path.rglob("*"))) == before, command


@pytest.mark.skipif(sys.platform in {"win32", "darwin"}, reason="file names there are text")
def test_a_folder_of_any_bytes_may_be_worked_in(tmp_path: Path) -> None:
    """Nothing names the folder itself, so plans made in it are read back; what would name it is refused."""
    name = UNWRITABLE["not-utf-8"]
    named(tmp_path, name)
    write(tmp_path / name, problem())
    here = tmp_path / name
    assert within("optimize", "w.yaml", "--effort", "quick", "-o", "plan", cwd=here).returncode == 0
    assert within("deploy", "plan/plan.json", "-o", "deploy", "--target", "vllm", cwd=here).returncode == 0
    assert within("workload", "t.csv", "-o", "new.yaml", cwd=here).returncode == 0
    refused(within("workload", "t.csv", "-o", tmp_path / "new.yaml", cwd=here), "caf\\xe9/t.csv: the name of a file")
    refused(optimize_within(here, problem(model={"config": "config.json"})), "w.yaml:2:11: model.config: caf\\xe9: the")


@pytest.mark.parametrize("name", ["日本語 é🙂", '#a: - it\'s "so"', ".hidden a\u3000b\u200dc"])
def test_any_other_name_is_read_back(name: str, tmp_path: Path) -> None:
    named(tmp_path, name)
    assert within("workload", f"{name}.csv", "-o", f"{name}.new.yaml", "--rate", "2/s", cwd=tmp_path).returncode == 0
    assert within("optimize", f"{name}.new.yaml", "--effort", "quick", "-o", name, cwd=tmp_path).returncode == 0
    done = within("deploy", f"{name}/plan.json", "-o", f"{name}/deploy", "--target", "vllm", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


# --- files that are no UTF-8 text -------------------------------------------------------------------------------------

READERS = {
    "workload": ("optimize", "f"),
    "histogram": ("optimize", "w.yaml", "--set", "workload.lengths={histogram: f}"),
    "trace": ("workload", "f"),
    "catalog": ("gpus", "--catalog", "f"),
    "model": ("models", "./f"),
    "plan": ("report", "f"),
    "result": ("calibrate", "f", "--model", "Llama-3.1-8B", "--gpu", "H100"),
    "measurements": ("validate", "--against", "f", "-q"),
    "terms": ("buy", "w.yaml", "--terms", "f"),
}
BYTES = {
    "utf-16": ("name: x\n".encode("utf-16"), "is UTF-16 text"),
    "utf-16-le": ("name: x\n".encode("utf-16-le"), "is UTF-16 text"),
    "utf-16-be": ("name: x\n".encode("utf-16-be"), "is UTF-16 text"),
    "xlsx": (b"PK\x03\x04\x14\x00\x06\x00", "is a zip archive, as .xlsx files are"),
    "xls": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "is an old Office file (.xls)"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", BYTES)
def test_a_file_of_another_encoding_is_named_as_what_it_is(reader: str, kind: str, tmp_path: Path) -> None:
    write(tmp_path, problem(procurement={"demand": {"months": 6, "growth": "5%"}}))
    data, words = BYTES[kind]
    (tmp_path / "f").write_bytes(data)
    assert len(refused(within(*READERS[reader], cwd=tmp_path), words, "UTF-8").splitlines()) <= 3
