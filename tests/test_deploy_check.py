"""`pdplan deploy --check`: a directory is judged against its plan after people had it in their hands."""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.errors import InputError
from pdplan.exits import ExitCode
from reports.answers.plan import plan_page
from reports.answers.plan_details import deploy_sentence, what_runs
from reports.deploy.files import RECORD, deployment_files, differences, read_record
from search_spaces.bounds import TARGET_NAMES
from tests.deploy_cases import ENGINES, EXAMPLES, PAIR, Ask, Case, example, options, plan_of
from tests.golden_files import assert_golden
from tests.running import within

STRIDE = 29
"""Changes are tried one in so many, for speed; 1 tries all of them, and all pass."""


LABELED = "metadata:\n  labels:\n    mine: here\n"


def mutants(path: str, text: str) -> Iterator[str]:
    """The file with one line, of a script's command one word, left out, changed, or followed by another."""
    if path.endswith(".sh"):
        *lines, command = text.splitlines()
        for words in _changed(shlex.split(command), lambda word: ["unheardOf"]):
            yield "\n".join([*lines, shlex.join(words)])
    elif path.endswith((".yaml", ".json")):
        for lines in _changed(text.splitlines(), _more_below):
            yield "\n".join([*lines, ""])


def _changed(items: list[str], more: Callable[[str], list[str]]) -> Iterator[list[str]]:
    for number, item in enumerate(items):
        if item.strip() and not item.lstrip().startswith("#"):
            new = [[], [f"{item}x"], *([item, other] for other in more(item))]
            yield from ([*items[:number], *lines, *items[number + 1 :]] for lines in new)


def _more_below(line: str) -> list[str]:
    depth = len(line) - len(line.lstrip(" "))
    return [f"{' ' * deeper}unheardOf: 1" for deeper in (depth, depth + 2)]


@pytest.mark.parametrize("target", TARGET_NAMES)
def test_a_change_of_one_place_is_told(target: str) -> None:
    tried = 0
    for path, whole in example(target)[1].items():
        if re.search("dgd-with-planner|prefill-1-1|compose/h200", path):
            continue
        for text in islice(mutants(path, whole), 0, None, STRIDE):
            assert differences({path: whole}, {path: text}), (path, text)
            tried += 1
    assert tried > 200 // STRIDE


def test_labels_hide_no_other_change() -> None:
    whole = example("llm-d")[1]["support.yaml"]
    assert not differences({"a.yaml": whole}, {"a.yaml": whole.replace("metadata:\n", LABELED, 1)})
    for text in mutants("a.yaml", whole):
        assert differences({"a.yaml": whole}, {"a.yaml": text.replace("metadata:\n", LABELED, 1)}), text


@pytest.mark.parametrize("target", TARGET_NAMES)
def test_comments_and_addresses_are_no_difference(target: str) -> None:
    planned = example(target)[1]
    other = {
        path: text if ".json" in path else "# mine\n" + re.sub(r"(?m)^HOST_(\w+)=.*", r"HOST_\1=my-\1", text)
        for path, text in planned.items()
    }
    assert sum(text != other[path] for path, text in planned.items()) > 5
    assert differences(planned, other) == []


def test_what_the_page_has_a_cluster_add_is_no_difference() -> None:
    planned = deployment_files(plan_of(), options("llm-d", claim="models"))
    claim = planned["model-cache.yaml"].replace("spec:\n", "spec:\n  storageClassName: fast\n")
    monitors = planned["monitoring/objects.yaml"].replace("metadata:\n", "metadata:\n  labels: {release: mine}\n")
    other = {**planned, "model-cache.yaml": claim, "monitoring/objects.yaml": monitors}
    assert sum(text != other[path] for path, text in planned.items()) == 2
    assert differences(planned, other) == []


PLANNED = "kind: Pod\nmetadata:\n  name: a\nargs:\n- --max\n- '1'\n"


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("'1'", "'2'", " - --max\n-- '1'\n+- '2'"),
        ("- '1'\n", "", " - --max\n-- '1'"),
        ("  name: a\n", "  name: a\n  labels: {}\n  spec: 1\n", "   name: a\n+  spec: 1\n args:"),
        ("  name: a\n", "  name: a\n  labels:\n    x: y\n", ""),
        ("  name: a\n", "  labels:\n    x: y\n  name: b\n", " metadata:\n-  name: a\n+  name: b\n args:"),
        ("  name: a\n", "  labels:\n    name: a\n", " kind: Pod\n-metadata:\n-  name: a\n+metadata: {}\n args:"),
        ("- '1'", '-   "1"  # as planned', ""),
    ],
)
def test_a_difference_is_as_diff_has_it(old: str, new: str, place: str) -> None:
    here = PLANNED.replace(old, new)
    assert differences({"f.yaml": PLANNED}, {"f.yaml": here}) == [f"f.yaml:\n{place}"] * bool(place)
    assert differences({"f.sh": "exec x --a 1"}, {"f.sh": "exec x --a 2"}) == ["f.sh:\n     --a\n-    1\n+    2"]


@pytest.mark.parametrize(
    ("planned", "here"),
    [
        ("kind: ConfigMap\ndata: {a: b}\n", "kind: ConfigMap\ndata: {a: b, labels: {x: y}}\n"),
        ("kind: Pod\n", "kind: Pod\nlabels: {x: y}\n"),
        ("metadata: {name: a}\n", "metadata: {name: a, storageClassName: fast}\n"),
    ],
)
def test_labels_and_storage_classes_elsewhere_are_a_difference(planned: str, here: str) -> None:
    assert differences({"f.yaml": planned}, {"f.yaml": here})


BOMB = "a0: &a0 [x]\n" + "".join(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(9))


@pytest.mark.parametrize(
    ("here", "fault"),
    [
        ("a: &x [*x]\n", "an alias repeats"),
        (BOMB, "an alias repeats"),
        ("kind: {evil: 1}\n" + PLANNED, "a key stands twice"),
        ("[" * 900 + "]" * 900, "maximum recursion"),
    ],
)
def test_yaml_that_hides_something_cannot_be_read(here: str, fault: str) -> None:
    (place,) = differences({"f.yaml": PLANNED}, {"f.yaml": here})
    assert place.startswith(f"f.yaml cannot be read as YAML: {fault}")


def test_an_empty_document_is_no_difference() -> None:
    assert not differences({"f.yaml": PLANNED}, {"f.yaml": f"---\n{PLANNED}---\n"})
    assert not differences({"f.yaml": f"{PLANNED}---\n"}, {"f.yaml": PLANNED})


def test_a_fault_is_a_line(tmp_path: Path) -> None:
    """Of a deployment with options of its own."""
    plan, file = tmp_path / "plan.json", tmp_path / "out" / "dgd.yaml"
    plan.write_text(plan_of().model_dump_json(by_alias=True), "utf-8")
    asked = ("--namespace", "serving", "--label", "H100=MY-H100", "--image", "my/image:1")
    assert within("deploy", plan, "-t", "dynamo", "-o", file.parent, *asked).returncode == ExitCode.DONE
    file.write_text(file.read_text("utf-8").replace("'128'", "'512'", 1), "utf-8")
    done = within("deploy", plan, "--check", file.parent)
    assert done.returncode == ExitCode.BAD_INPUT
    assert re.search(r"^dgd\.yaml:\n .*- --\S+\n-.*'128'\n\+.*'512'\n", done.stdout, re.MULTILINE)
    assert re.fullmatch(r"pdplan: error: \S+ does not deploy 'case' as it was evaluated: 1 fault\n", done.stderr)


def test_a_record_keeps_every_option() -> None:
    asked = options("dynamo", namespace="a", rdma="r/b", labels={"H100": "X"}, image="i:1", model="m/n", claim="c")
    text = deployment_files(plan_of(), asked)[RECORD]
    assert read_record(text).options == asked
    for old, new in ((f'"{asked.version}"', '"0.1"'), ('"dynamo"', '"dinamo"')):
        with pytest.raises(InputError, match=r"^x/deployment\.json: .* is not known"):
            read_record(text.replace(old, new), "x/deployment.json")


# --- plans that a target cannot run are refused


NAMED = re.compile(r"(?:`|`sbatch |-f |--env-file )([\w*./-]+\.(?:sh|cfg|env|yaml))(?=[`\s])")
"""Files that a page names."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_file_is_compared_and_the_page_names_no_other(name: str) -> None:
    files = example(name)[1]
    more = {path: f"{text}\nmore: 1\n" for path, text in files.items()}
    assert [path for path in files if not differences({path: files[path]}, more)] == ["README.md"]
    assert [path for path in NAMED.findall(files["README.md"]) if not fnmatch.filter(files, path)] == []


APART, ALONE, FIRST, LATER = Case("prefill", pp=2, seqs=8), Case("colocated"), Case("prefill", seqs=8), Case("decode")
STAGED, MOE = (Case("colocated", pp=2),), "Qwen3-30B-A3B"
RANKS, EIGHT = Case("colocated", ep=8, dp=8, tokens=8192), Case("decode", "H200", tp=8)
WIDE = Case("colocated", "H200", tp=8, seqs=128)
EAGLE3, NGRAM, TIER = Ask(draft="eagle3", drafted=1), Ask(draft="ngram", drafted=1), Ask(prefix=0.8, tier="200GB")
REFUSED: dict[str, tuple[tuple[Case, ...], Ask, str]] = {
    "heads split beyond those of decode": ((replace(FIRST, tp=8, tokens=8192), replace(LATER, tp=4)), Ask(MOE), "vllm"),
    "stages of decode": ((FIRST, replace(LATER, pp=2)), Ask(), "dynamo"),
    "stages of prefill, and an old vLLM": ((APART, LATER), Ask(), "vllm 0.20.1"),
    "stages of prefill": ((APART, LATER), Ask(), "dynamo"),
    "an engine of two hosts": ((Case("colocated", tp=8, pp=2),), Ask("Llama-3.1-70B", engine="trtllm"), "trtllm"),
    "requests that ranks do not share": ((replace(RANKS, seqs=100),), Ask(MOE), "vllm"),
    "another engine": (PAIR, Ask(engine="sglang"), "vllm"),
    "some ranks": ((Case("colocated", tp=2, dp=2, ep=4, tokens=8192),), Ask(MOE, engine="trtllm"), "trtllm"),
    "both stages and one": ((ALONE, FIRST, LATER), Ask(), "dynamo"),
    "weights that nobody published": ((ALONE,), Ask(weight_dtype="int4"), "vllm"),
    "latents in FP8 between generations": (
        (replace(EIGHT, role="prefill", seqs=8), replace(EIGHT, gpu="B200")), Ask("DeepSeek-V3", "fp8", "fp8"), "vllm"),
    "a GPU of AMD": ((Case("colocated", "MI300X"),), Ask(), "dynamo"),
    "drafts without weights": ((ALONE,), EAGLE3, "vllm"),
    "drafts of a folder": ((ALONE,), replace(EAGLE3, draft_model="/draft"), "vllm"),
    "drafts in stages, and an old vLLM": (STAGED, NGRAM, "vllm 0.24.0"),
    "drafts in stages": (STAGED, replace(NGRAM, engine="trtllm"), "trtllm"),
    "drafts of ranks": ((RANKS,), replace(NGRAM, model=MOE, engine="sglang"), "sglang"),
    "fewer tokens a step than requests": ((replace(WIDE, tokens=100),), Ask(), "vllm"),
    "fewer tokens a step than drafts": (
        (replace(WIDE, tokens=256),), Ask("DeepSeek-V3", "fp8", draft="mtp", drafted=3), "vllm"),
    "a tier that engines share": (PAIR, replace(TIER, shared=True), "llm-d"),
    "a tier beside a hand-over": (PAIR, TIER, "dynamo"),
    "a tier smaller than memory": (PAIR, replace(TIER, tier="20GB", engine="sglang"), "sglang"),
}  # fmt: skip


def test_golden_refusals() -> None:
    """Plans that a target cannot run."""
    text = ""
    for name, (pools, ask, target) in REFUSED.items():
        with pytest.raises(InputError) as refused:
            deployment_files(plan_of(pools, ask), options(*target.split()))
        text += f"### {name}: {target}\n{refused.value}\n"
    assert_golden("deploy/refusals.txt", text)
    nameless = plan_of((ALONE,), Ask(weight_dtype="int4"))
    assert "name a checkpoint with --model (pdplan" in deploy_sentence(nameless, what_runs(nameless))
    assert 'name a checkpoint with <span class="word">--model</span>.' in plan_page(nameless)
    undrafted = plan_of((ALONE,), EAGLE3)
    mend = "To deploy this plan, state model.speculation.draft_model in the workload and plan again (pdplan deploy says"
    assert mend in deploy_sentence(undrafted, what_runs(undrafted))


@pytest.mark.parametrize("name", [*ENGINES, "dynamo-by-length", "vllm-by-length", "llm-d-ranks"])
@settings(max_examples=5)
@given(data=st.data())
def test_mutilated_files_are_compared_and_never_crash(name: str, data: st.DataObject) -> None:
    """Leave out a stretch of lines, or change one character: whatever comes of it is a sentence, not a traceback."""
    files = example(name)[1]
    path = data.draw(st.sampled_from(sorted(files)))
    lines = files[path].splitlines(keepends=True)
    first = data.draw(st.integers(0, len(lines) - 1))
    if data.draw(st.booleans()):
        mutilated = lines[:first] + lines[first + data.draw(st.integers(1, 5)) :]
    else:
        place = data.draw(st.integers(0, len(lines[first]) - 1))
        lines[first] = lines[first][:place] + data.draw(st.sampled_from("x0 :-{}[]\"'")) + lines[first][place + 1 :]
        mutilated = lines
    assert all(differences(files, {**files, path: "".join(mutilated)}))
