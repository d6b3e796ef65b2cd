"""`pdplan deploy --check`: a directory is judged against its plan after people had it in their hands."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from costmodel.errors import InputError
from pdplan.cli import run
from pdplan.exits import ExitCode
from reports.deploy.checking import checked_directory, checked_files, differences
from reports.deploy.files import RECORD, SUMS, TARGETS, deployment_files, recorded_options, write_deployment
from reports.deploy.formats import load_yaml
from tests.deploy_cases import PAIR, Ask, Case, deployment_of, example, options, plan_of, two_classes

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
STRIDE = 7
"""Changes are tried one in so many, for speed; 1 tries all of them, and all pass."""


def changed(value: Any) -> Iterator[Any]:
    """Copies of a document, each with one change at one place: left out, changed, or joined by another."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {other: kept for other, kept in value.items() if other != key}
            yield from ({**value, key: other} for other in changed(inner))
        yield {**value, "unheardOf": 1}
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield [*value[:number], *value[number + 1 :]]
            yield from ([*value[:number], other, *value[number + 1 :]] for other in changed(inner))
        yield [*value, "unheardOf"]
    else:
        yield f"{value}x"


def mutants(path: str, text: str) -> Iterator[str]:
    """The file with one change: of every place of a manifest, and of every word of a script's command."""
    if path.endswith(".yaml"):
        for documents in islice(changed(list(yaml.load_all(text, _LOADER))), 0, None, STRIDE):
            yield "\n---\n".join(json.dumps(document) for document in documents)  # which is YAML, too
    elif path.endswith(".json"):
        yield from (json.dumps(document) for document in islice(changed(json.loads(text)), 0, None, STRIDE))
    elif path.endswith(".sh"):
        command = text.splitlines()[-1]
        yield from (text.replace(command, shlex.join(words)) for words in changed(shlex.split(command)))


@pytest.mark.parametrize("target", TARGETS)
def test_a_change_of_one_place_is_told(target: str) -> None:
    tried = 0
    for path, whole in example(target)[1].items():
        for text in mutants(path, whole) if not re.search("dgd-with-planner|prefill-1-1|compose/h200", path) else ():
            assert list(differences({path: whole}, {path: text})), (path, text)
            tried += 1
    assert tried > 200 // STRIDE


def test_a_fault_is_told_once_with_the_rules_that_it_breaks() -> None:
    deployment = deployment_of(plan_of(PAIR, Ask(engine="vllm", prefix=0.25)), "vllm")
    own = TARGETS["vllm"].files(deployment)
    config = next(path for path in own if path.startswith("workers/decode") and path.endswith(".yaml"))
    checked = checked_files(deployment, own, own | {config: own[config].replace("seqs: 128", "seqs: 512")})
    assert checked.differs == [f"{config}: max-num-seqs is 512, not 128"]
    assert [rule for rule, _ in checked.breaks] == ["settings_are_the_plans"]
    assert checked.faults == 1


@pytest.mark.parametrize("target", TARGETS)
def test_what_a_program_does_not_see_is_no_difference(target: str) -> None:
    """Comments, the order of keys, and how YAML quotes and folds."""
    planned = example(target)[1]
    other = {
        path: "# mine\n" + yaml.safe_dump_all(yaml.safe_load_all(text), sort_keys=True)
        if path.endswith(".yaml")
        else text.replace("set -euo", "# mine\nset -euo")
        for path, text in planned.items()
    }
    assert list(differences(planned, other)) == []


def test_the_hosts_are_the_users() -> None:
    planned = {"hosts.env": "# hosts\nHOST_A=a\nHOST_B=b\n"}
    for text in ("HOST_A=10.0.0.1\nHOST_B=[fe80::1]\n", "# a\n\nHOST_A=x.example.org\nHOST_B=h_2\n"):
        assert list(differences(planned, {"hosts.env": text})) == []
    for text, sentence in (
        ("HOST_A=a\n", "hosts.env has 1 entry, not 2: number 2, 'HOST_B', is missing"),
        ("HOST_A=a\nHOST_B=\n", "gives HOST_B no address"),
        ("HOST_A=a\nHOST_B=$(id)\n", "gives HOST_B no address"),
        ("HOST_A=a\nHOST_B=b; id\n", "gives HOST_B no address"),
        ("HOST_A=127.0.0.1\nHOST_B=127.0.0.1\n", "HOST_A and HOST_B are both 127.0.0.1, so their engines"),
    ):
        assert sentence in " ".join(differences(planned, {"hosts.env": text}))


@pytest.mark.parametrize(
    ("planned", "found", "sentence"),
    [
        ("a: 1", "a: 2", "f.yaml: a is 2, not 1"),
        ("a: 1", 'a: "1"', "f.yaml: a is '1', not 1"),
        ("a: 1", "a: 1.0", "f.yaml: a is 1.0, not 1"),
        ("a: {b: [x, y]}", "a: {b: [x, z]}", "f.yaml: a: b[1] is 'z', not 'y'"),
        ("a: [x, y]", "a: [x]", "f.yaml: a has 1 entry, not 2: number 2, 'y', is missing"),
        ("a: [x]", "a: [x, w]", "f.yaml: a has 2 entries, not 1: number 2, 'w', is too many"),
        ("a: [x]", "a: [w, x]", "f.yaml: a has 2 entries, not 1: they part at number 1, which is 'w', not 'x'"),
        ("a: 1", "b: 1", "f.yaml: 'a' is missing"),
        ("a: 1", "a: 1\nb: 1", "f.yaml: 'b' does not belong there"),
        ("a: 1", "- a", "f.yaml is ['a'], not {'a': 1}"),
        ("a: b", f"a: {'c' * 200}", f"f.yaml: a is '{'c' * 79}..., not 'b'"),
    ],
)
def test_a_difference_is_one_sentence(planned: str, found: str, sentence: str) -> None:
    assert sentence in list(differences({"f.yaml": planned}, {"f.yaml": found}))


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "a: &a [*a]", "a: &a 1\nb: *a", "a: 1\n---\nb: 2", "\x00", "a: [", "!!x y"]
)
def test_hostile_yaml_is_a_sentence(text: str) -> None:
    with pytest.raises(InputError, match=r"^f\.yaml"):
        load_yaml("f.yaml", text)


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A plan's file, and the directory of its deployment with options of its own."""
    folder = tmp_path_factory.mktemp("deployed")
    plan = folder / "plan.json"
    plan.write_text(plan_of().model_dump_json(by_alias=True), "utf-8")
    asked = ["--namespace", "serving", "--label", "H100=MY-H100", "--image", "my/image:1"]
    assert run(["deploy", str(plan), "-t", "dynamo", "-o", str(folder / "out"), *asked]) == 0
    return plan, folder / "out"


def check(deployed: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    capsys.readouterr()
    code = run(["deploy", str(deployed[0]), "--check", str(deployed[1])])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_deployment_of_ones_own_is_sound(deployed: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = check(deployed, capsys)
    assert (code, err) == (ExitCode.DONE, "")
    assert out == f"{deployed[1]} deploys 'case' as it was evaluated\n"


@pytest.mark.parametrize(
    ("path", "old", "new", "line"),
    [
        ("dgd*.yaml", "'128'", "'512'", "settings_are_the_plans: dgd.yaml: decode-2: max_num_seqs is 512, but"),
        (
            "dgd*.yaml",
            "MY-H100",
            "NVIDIA-H100-80GB-HBM3",
            "labels_are_the_gpus: dgd.yaml: prefill-1: its node selector",
        ),
        ("dgd.yaml", "my/image:1", "my/image:2", "as_written: dgd.yaml: spec: components[0]: podTemplate: "),
        ("dgd.yaml", "v1beta1", "v1gamma1", "as_written: dgd.yaml: apiVersion is 'nvidia.com/v1gamma1'"),
        ("benchmark/workload.jsonl", '"timestamp":0.0', '"timestamp":1.5', "as_written: benchmark/workload.jsonl[0]: "),
        ("benchmark/run.sh", "--fixed-schedule ", "", "as_written: benchmark/run.sh["),
        ("benchmark/job.yaml", "backoffLimit: 0", "backoffLimit: 9", "as_written: benchmark/job.yaml: spec: backoff"),
        (
            RECORD,
            '"serving"',
            '"default"',
            "as_written: dgd.yaml: metadata: namespace is 'serving', not 'default'",
        ),
        (RECORD, '"inputs_sha256": "', '"inputs_sha256": "00', f"as_written: {RECORD}: inputs_sha256 is '00"),
        (
            "planner-configmap.yaml",
            "600.0",
            "200.0",
            "as_written: planner-configmap.yaml: data: planner_config.json is",
        ),
    ],
)
def test_each_fault_is_a_line(
    deployed: tuple[Path, Path], capsys: pytest.CaptureFixture[str], path: str, old: str, new: str, line: str
) -> None:
    texts = {file: file.read_text("utf-8") for file in deployed[1].glob(path)}
    assert old in next(iter(texts.values()))
    try:
        for file, text in texts.items():
            file.write_text(text.replace(old, new, 1), "utf-8")
        code, out, err = check(deployed, capsys)
    finally:
        for file, text in texts.items():
            file.write_text(text, "utf-8")
    assert code == ExitCode.BAD_INPUT
    assert any(one.strip().startswith(line) for one in out.splitlines()), out
    assert re.fullmatch(
        r"pdplan: error: \S+ does not deploy 'case' as it was evaluated: "
        r"\d+ faults?(; (1 rule is|\d+ rules are) broken)?\n",
        err,
    )


def test_files_are_missing_and_too_many(deployed: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    plan, directory = deployed
    moved = directory / "dgd2.yaml"
    (directory / "dgd.yaml").rename(moved)
    results = directory / "benchmark" / "results"
    results.mkdir()
    (results / "profile_export_aiperf.json").write_text("{}", "utf-8")
    (directory / "README.md").write_text("my notes", "utf-8")
    try:
        found = checked_directory(plan_of(), directory)
        assert found.differs == ["dgd.yaml is missing"]
        assert {rule for rule, _ in found.breaks} == {"pools_are_complete"}
        assert found.strays == ["dgd2.yaml"]
    finally:
        moved.rename(directory / "dgd.yaml")
    assert check((plan, directory), capsys)[0] == ExitCode.DONE


def test_files_of_others_are_named_and_are_no_fault(
    deployed: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    others = [deployed[1] / f"mine-{number}.yaml" for number in range(7)]
    hidden = deployed[1] / ".mine.yaml"
    try:
        for other in others:
            other.write_text("a: 1", "utf-8")
        others[0].write_bytes(b"\xff\xfe")
        hidden.write_text("metadata: {namespace: mine}", "utf-8")
        code, out, _ = check(deployed, capsys)
    finally:
        for other in (*others, hidden):
            other.unlink()
    aside, verdict = out.splitlines()
    assert aside.startswith("7 files there are not of this plan")
    assert aside.endswith("mine-4.yaml and 2 more")
    assert (code, verdict.endswith("as it was evaluated")) == (ExitCode.DONE, True)


def test_a_file_of_others_that_breaks_a_rule_is_a_fault() -> None:
    deployment = deployment_of(plan_of(PAIR, Ask(engine="vllm")), "llmd")
    own = TARGETS["llmd"].files(deployment)
    copied = {**own, "pools/decode-3.yaml": own["pools/decode-2.yaml"], "my.yaml": "a: 1"}
    checked = checked_files(deployment, own, copied)
    assert checked.differs == []
    assert {rule for rule, _ in checked.breaks} == {"pools_are_complete"}


def test_another_plan_is_told(deployed: tuple[Path, Path]) -> None:
    other = plan_of((PAIR[0], Case("decode", "H200", tp=2, seqs=64, tokens=512)))
    checked = checked_directory(other, deployed[1])
    assert checked.differs
    assert "settings_are_the_plans" in {rule for rule, _ in checked.breaks}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--check", "{out}", "-t", "vllm"], "{out} holds a deployment for dynamo, not for vllm"),
        (["--check", "{out}", "-o", "x"], "--check takes the other options from DIR; leave out --output"),
        (["--check", "{out}", "--force"], "--check takes the other options from DIR; leave out --force"),
        (["--check", "{plan}"], "has no deployment.json, so it is no directory that pdplan deploy wrote"),
        ([], "give -o DIR to write a deployment, or --check DIR to check one"),
    ],
)
def test_bad_requests_are_one_sentence(
    deployed: tuple[Path, Path], capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    plan, out = deployed
    code = run(["deploy", str(plan), *(word.format(plan=plan, out=out) for word in arguments)])
    assert code == ExitCode.BAD_INPUT
    assert sentence.format(out=out) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[]", "deployment.json:1:1: an array is not an object"),
        ("{", "deployment.json:1:2: is not valid JSON"),
        ("[" * 100_000, "deployment.json: is nested too deeply"),
        (
            '{"schema": "pdplan.deployment/9"}',
            "deployment.json:1:12: schema: 'pdplan.deployment/9' is none of 'pdplan.deployment/1'",
        ),
        ('{"unheardOf": 1}', "deployment.json:1:1: schema: is missing"),
    ],
)
def test_a_record_that_is_none_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        recorded_options(text)


def test_a_record_keeps_every_option() -> None:
    asked = options("dynamo", namespace="a", rdma="r/b", labels={"H100": "X"}, image="i:1", model="m/n", claim="c")
    assert recorded_options(deployment_files(plan_of(), asked)[RECORD]) == asked


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    write_deployment(plan_of(), options("vllm"), tmp_path)
    (tmp_path / "router.sh").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"router\.sh is not UTF-8 text"):
        checked_directory(plan_of(), tmp_path)
    (tmp_path / "router.sh").unlink()
    (tmp_path / "router.sh").mkdir()
    with pytest.raises(InputError, match=r"router\.sh: is a folder"):
        checked_directory(plan_of(), tmp_path)
    assert (tmp_path / SUMS).exists()


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("backoffLimit: 0", "backoffLimit: 9", "job.yaml: Job case-benchmark-class-2: spec: backoffLimit is 9, not 0"),
        ("apiVersion:", "---\napiVersion:", None),
        ("---", "---\n{kind: Job}\n---", "has 3 documents, not 2: they part at number 2, which is 'one without"),
        ("---", "", "job.yaml: apiVersion stands twice"),
    ],
)
def test_every_document_of_a_file_is_read(old: str, new: str, sentence: str | None) -> None:
    planned = deployment_files(two_classes(), options("dynamo"))
    before, mark, after = planned["benchmark/job.yaml"].rpartition(old)
    assert mark
    sentences = list(differences(planned, {**planned, "benchmark/job.yaml": before + new + after}))
    assert any(sentence in each for each in sentences) if sentence else not sentences
