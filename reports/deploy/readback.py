"""What a set of files starts, read back from the files: the rules and the round trip judge this, not our intent."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from costmodel.errors import InputError

from . import facts
from .deployment import Deployment, Settings
from .flags import Words, read_role, read_settings, read_transfer, words_of
from .formats import dig, load_documents, load_yaml, quantity, unescaped
from .kubernetes import POOL, vendor_fact

SCRIPT: Final = re.compile(r"workers/([^/]+?)(\.node[0-9]+)?\.sh")
"""A start script: name of the replica, and which of its hosts it is for if there are several."""
MANIFEST: Final = re.compile(r"dgd\.yaml|pools/.*\.yaml")
"""Files whose pods are the fleet's."""
PROGRAMS: Final = {
    "vllm": ("vllm", "serve"),
    "sglang": ("python3", "-m", "sglang.launch_server"),
    "trtllm": ("trtllm-serve", "serve"),
}
"""What starts an engine on a host."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One replica, or equal ones, as a file starts them.

    where: file and, in it, object; pool: name of its pool; role: prefill, decode or colocated; replicas, nodes,
    node_gpus: as the file asks for them; words: its flags, none of TensorRT-LLM on hosts; transfer: settings of its
    connector, None without one; env: of its script; label: GPU product asked for.
    """

    where: str
    pool: str
    role: str
    weights: str
    replicas: int
    nodes: int
    node_gpus: int
    words: Words
    settings: Settings
    transfer: Mapping[str, Any] | None
    env: Mapping[str, str]
    label: str | None = None
    image: str | None = None


def launches(deployment: Deployment, files: Mapping[str, str]) -> tuple[Launch, ...]:
    """Every replica that the files start; InputError where they cannot be read, or leave a setting to the engine."""
    scripts: dict[str, list[str]] = {}
    for path in sorted(files):
        match = SCRIPT.fullmatch(path)
        if match is not None:
            scripts.setdefault(match[1], []).append(path)
    of_hosts = [_script(deployment, files, name, paths) for name, paths in scripts.items()]
    manifests = [path for path in sorted(files) if MANIFEST.fullmatch(path)]
    return (*of_hosts, *(launch for path in manifests for launch in _manifest(deployment, path, files[path])))


def read_command(where: str, text: str, program: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Environment and command line of a script, without the program."""
    env, command = {}, []
    for line in text.splitlines():
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            env[name] = "".join(shlex.split(value))
        elif line.startswith("exec "):
            command = shlex.split(line)[1:]
    if command[: len(program)] != list(program):
        raise InputError(f"{where} does not start {' '.join(program)}")
    return env, command[len(program) :]


def _script(deployment: Deployment, files: Mapping[str, str], name: str, paths: Sequence[str]) -> Launch:
    """The replica of a start script, and of its file of options where it has one."""
    engine, where, config = deployment.engine, paths[0], f"workers/{name}.yaml"
    env, command = read_command(where, files[where], PROGRAMS[engine])
    words: Words = ()
    if engine != "sglang":
        at = command.index("--config") if "--config" in command else len(command)
        if command[at + 1 : at + 2] != [f"$here/{name}.yaml"] or config not in files:
            raise InputError(f"{where} does not start its engine with its own config file")
        options, command = load_yaml(config, files[config]), command[:at] + command[at + 2 :]
        where = config
    if engine == "trtllm":
        values, weights = options, command[0]
    else:
        words = words_of(where, command)
        if engine == "vllm":
            words = (*((f"--{key}", None if value is True else str(value)) for key, value in options.items()), *words)
        values = dict(words)
        weights = str(values.get("--model") or values.get("--model-path"))
    gpus = [env[vendor["visible"]] for vendor in facts.fact("vendors").values() if vendor["visible"] in env]
    return Launch(
        where=where,
        pool=name.rpartition("-")[0],
        role=read_role(deployment, where, values),
        weights=weights,
        replicas=1,
        nodes=len(paths),
        node_gpus=len(re.split("[,|]", gpus[0])) if gpus else 0,
        words=words,
        settings=read_settings(deployment, where, values),
        transfer=read_transfer(deployment, where, values),
        env=env,
    )


def _manifest(deployment: Deployment, path: str, text: str) -> Iterator[Launch]:
    for document in load_documents(path, text):
        for pod, replicas, nodes in _pods(document):
            yield _pod(deployment, path, pod, quantity(path, replicas), quantity(path, nodes))


def _pods(value: Any, replicas: Any = 1, nodes: Any = 1) -> Iterator[tuple[Mapping[str, Any], Any, Any]]:
    """Every pod of a pool, with the replicas and the nodes of each of the object that starts it.

    Of those of a group that spans nodes only the leader, which says what all are told.
    """
    if isinstance(value, Mapping):
        replicas = value.get("replicas", replicas)
        nodes = dig(value, "multinode", "nodeCount") or value.get("size", nodes)
        if POOL in (dig(value, "metadata", "labels") or {}) and dig(value, "spec", "containers"):
            yield value, replicas, nodes
        for key, inner in value.items():
            if key != "workerTemplate":
                yield from _pods(inner, replicas, nodes)
    elif isinstance(value, list):
        for inner in value:
            yield from _pods(inner, replicas, nodes)


def _pod(deployment: Deployment, path: str, pod: Mapping[str, Any], replicas: int, nodes: int) -> Launch:
    name, container = str(pod["metadata"]["labels"][POOL]), pod["spec"]["containers"][0]
    where = path if path.startswith("pools/") else f"{path}: {name}"
    text = [unescaped(str(word)) for word in container.get("args") or []]
    positional = deployment.options.target == "llmd"  # whose engines are told the model without a flag
    words = words_of(where, ["--model", *text] if positional else text)
    values = dict(words)
    planned = deployment.pool(name) or deployment.pools[0]  # one of no plan is told by the rules
    limits = dig(container, "resources", "limits") or {}
    return Launch(
        where=where,
        pool=name,
        role=read_role(deployment, where, values),
        weights=str(values.get("--model") or values.get("--model-path")),
        replicas=replicas,
        nodes=nodes,
        node_gpus=quantity(where, limits.get(vendor_fact(planned, "resource"), 0)),
        words=words,
        settings=read_settings(deployment, where, values),
        transfer=read_transfer(deployment, where, values),
        env={},
        label=(pod["spec"].get("nodeSelector") or {}).get(vendor_fact(planned, "label")),
        image=container.get("image"),
    )
