"""What targets in Kubernetes share: where pods keep the weights that they fetch."""

from __future__ import annotations

from typing import Any, Final

from .deployment import Deployment

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
