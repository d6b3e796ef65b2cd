"""Deployments of several SLO classes: the benchmark's file has a job, and so a document, for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdplan.cli import run
from pdplan.exits import ExitCode
from reports.deploy.checking import causes, differences
from reports.deploy.files import TARGETS, deployment_files
from tests.deploy_cases import ENGINES, deployment_of, options, two_classes


@pytest.mark.parametrize("target", TARGETS)
def test_a_deployment_of_several_classes_is_sound(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, out = tmp_path / "plan.json", tmp_path / "out"
    plan.write_text(two_classes(ENGINES[target]).model_dump_json(by_alias=True), "utf-8")
    assert run(["deploy", str(plan), "-t", target, "-o", str(out)]) == ExitCode.DONE
    assert (out / "benchmark/job.yaml").exists() == TARGETS[target].pods
    capsys.readouterr()
    assert run(["deploy", str(plan), "--check", str(out)]) == ExitCode.DONE
    assert capsys.readouterr().out == f"{out} deploys 'case' as it was evaluated\n"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("backoffLimit: 0", "backoffLimit: 9", "job.yaml: Job case-benchmark-class-2: spec: backoffLimit is 9, not 0"),
        ("apiVersion:", "---\napiVersion:", None),
        ("---", "---\n{kind: Job}\n---", "has 3 documents, not 2: they part at number 2, which is 'one without"),
        ("---", "", "job.yaml: apiVersion stands twice"),
        ("namespace: default", "namespace: mine", "Job case-benchmark-class-2: its namespace is mine, not default"),
    ],
)
def test_every_document_of_a_file_is_read(old: str, new: str, sentence: str | None) -> None:
    plan, asked = two_classes(), options("dynamo")
    planned, deployment = deployment_files(plan, asked), deployment_of(plan, "dynamo")
    before, mark, after = planned["benchmark/job.yaml"].rpartition(old)
    assert mark
    found = causes(deployment, planned, {**planned, "benchmark/job.yaml": before + new + after})
    told = [*(one for cause in found for one in cause.differs), *(one for cause in found for _, one in cause.breaks)]
    assert any(sentence in one for one in told) if sentence else not told


def test_a_job_too_few_is_named() -> None:
    planned = deployment_files(two_classes(), options("dynamo"))
    first = planned["benchmark/job.yaml"].partition("---")[0]
    (told,) = differences(planned, {**planned, "benchmark/job.yaml": first})
    assert told == "benchmark/job.yaml has 1 document, not 2: number 2, 'Job case-benchmark-class-2', is missing"


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ("a: 1\n---\nb: 2", "f.yaml has 2 documents, not 1: number 2, 'one without a name', is too many"),
        ("", "f.yaml has 0 documents, not 1: number 1, 'one without a name', is missing"),
    ],
)
def test_documents_without_names_are_counted(found: str, sentence: str) -> None:
    assert list(differences({"f.yaml": "a: 1"}, {"f.yaml": found})) == [sentence]
