"""Shoal on Ray: replicas of Ray Serve that each run a whole server, and batch inference on Ray Data.

    from ray import serve
    import shoal.ray

    serve.run(shoal.ray.deployment(model_repository="/models", num_replicas=3))
    answers = shoal.ray.predict(dataset, model="digits", model_repository="/models")

Runs in users' processes, in Ray's replicas and in its controller; the server itself knows no Ray. Needs the extra
`shoal[ray]`. Importing this package imports nothing else.
"""

from typing import TYPE_CHECKING

__all__ = ["Autoscaling", "build", "deployment", "predict"]

_PUBLIC = {
    "Autoscaling": "shoal.ray.scaling",
    "build": "shoal.ray.deployment",
    "deployment": "shoal.ray.deployment",
    "predict": "shoal.ray.prediction",
}

if TYPE_CHECKING:
    from shoal.ray.deployment import build, deployment
    from shoal.ray.prediction import predict
    from shoal.ray.scaling import Autoscaling


def __getattr__(name: str) -> object:
    """Import a public name on first use. Raises AttributeError for others."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'shoal.ray' has no attribute {name!r}")
    import importlib

    found = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = found  # over the module of the same name, which the import has left here
    return found
