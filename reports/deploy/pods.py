"""What targets in Kubernetes share: where pods keep the weights that they fetch, and how a pod is read back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .deployment import Deployment, Settings
from .flags import TRANSFER
from .formats import dig
from .readback import FoundWorker, Words, json_object

SECRET: Final = "hf-token-secret"  # noqa: S105 - its name, not what it holds

CACHE: Final = "/model-cache"
"""Folder of a pod that engines fetch weights to."""
CACHE_ENV: Final = {"name": "HF_HOME", "value": CACHE}
CACHE_MOUNT: Final = {"name": "weights", "mountPath": CACHE}


def weights_volume(deployment: Deployment) -> dict[str, Any]:
    """The volume behind the folder: a claim that outlives the pod, or the node's disk while the pod lives."""
    claim = deployment.options.claim
    kept = {"emptyDir": {}} if claim is None else {"persistentVolumeClaim": {"claimName": claim}}
    return {"name": "weights", **kept}


def pod_worker(
    where: str,
    words: Words,
    container: Mapping[str, Any],
    *,
    settings: Settings,
    devices: Mapping[str, Any],
    shared_memory: object,
    **shape: Any,
) -> FoundWorker:
    """The worker of a container; words: of its command line; shape: the rest of `FoundWorker`."""
    values = dict(words)
    return FoundWorker(
        where=where,
        weights=str(values.get("--model") or values.get("--model-path")),
        words=words,
        settings=settings,
        transfer=json_object(f"{where}: {TRANSFER}", values[TRANSFER] or "") if TRANSFER in values else None,
        env={
            str(item.get("name")): str(item.get("value") or dig(item, "valueFrom", "fieldRef", "fieldPath") or "")
            for item in container.get("env") or []
        },
        image=container.get("image"),
        pod={
            "devices": devices,
            "shared_memory": shared_memory,
            "capabilities": dig(container, "securityContext", "capabilities", "add") or [],
        },
        **shape,
    )
