"""Applications of Ray Serve whose replicas each run a whole server."""

import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from shoal.errors import InvalidArgumentError
from shoal.ray.replica import ShoalReplica, relay_application
from shoal.ray.replica_server import ServerPlan
from shoal.ray.scaling import Autoscaling, QueueAgePolicy

#: Untyped, since Ray's type hints are not reliable, and a type checker may run where Ray is not installed.
serve: Any = importlib.import_module("ray.serve")

#: So large that Serve refuses no request: the server itself queues requests, and refuses them with its own sentences.
_MAX_ONGOING_REQUESTS = 100_000
#: Seconds that the end of a replica may take beyond the server's exit timeout: Serve's balancers must forget the
#: replica, and its processes must end.
_DRAIN_S = 30.0
_EXIT_MARGIN_S = 15.0


def deployment(
    model_repository: str | Sequence[str],
    *,
    num_replicas: int | None = None,
    autoscaling: Autoscaling | Mapping[str, Any] | None = None,
    num_cpus: float = 1,
    num_gpus: float = 0,
    flags: Sequence[str] = (),
    exit_timeout_s: int = 30,
    name: str = "shoal",
    **options: Any,
) -> Any:
    """An application for `serve.run`: HTTP of Triton's protocol goes to any of its replicas.

    Each replica runs a server of `model_repository` (paths that every node has, or URLs of cloud storage) with these
    `flags` of `shoal serve`, on `num_cpus` cores, which are its own where they are whole, and `num_gpus` GPUs. The
    number of replicas is `num_replicas` (1), or follows queue age and utilisation as `autoscaling` says; to give
    both is an error. A stopped replica answers its accepted requests within `exit_timeout_s`. `options` are those of
    `serve.deployment`. Raises InvalidArgumentError.
    """
    if num_replicas is not None and autoscaling is not None:
        raise InvalidArgumentError("num_replicas and autoscaling exclude each other, leave one out")
    repositories = (model_repository,) if isinstance(model_repository, str) else tuple(model_repository)
    plan = ServerPlan(repositories, tuple(flags), exit_timeout_s)
    settings: dict[str, Any] = {
        "name": name,
        "ray_actor_options": {"num_cpus": num_cpus, "num_gpus": num_gpus, **options.pop("ray_actor_options", {})},
        "max_ongoing_requests": _MAX_ONGOING_REQUESTS,
        "graceful_shutdown_timeout_s": _DRAIN_S + exit_timeout_s + _EXIT_MARGIN_S,
        "health_check_period_s": 5.0,
        "health_check_timeout_s": 15.0,
        **({"num_replicas": num_replicas or 1} if autoscaling is None else {}),
        **({} if autoscaling is None else {"autoscaling_config": autoscaling_config(autoscaling)}),
        **options,
    }
    return serve.deployment(serve.ingress(relay_application)(ShoalReplica), **settings).bind(plan)


def autoscaling_config(autoscaling: Autoscaling | Mapping[str, Any]) -> dict[str, Any]:
    """Serve's `autoscaling_config`. Raises InvalidArgumentError for a goal that is unknown or impossible."""
    if not isinstance(autoscaling, Autoscaling):
        known = [each.name for each in fields(Autoscaling)]
        if unknown := sorted({*autoscaling} - {*known}):
            raise InvalidArgumentError(f"autoscaling has no '{unknown[0]}', only {', '.join(known)}")
        try:
            autoscaling = Autoscaling(**autoscaling)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"autoscaling: {error}") from error
    config = asdict(autoscaling)
    goals = {goal: config.pop(goal) for goal in ("queue_age_s", "utilisation")}
    policy = {"policy_function": f"{QueueAgePolicy.__module__}:{QueueAgePolicy.__name__}", "policy_kwargs": goals}
    look_back_s = config.pop("look_back_s")
    return {
        **config,
        "look_back_period_s": look_back_s,
        "metrics_interval_s": min(1.0, look_back_s / 2),
        "policy": policy,
    }


def build(arguments: Mapping[str, Any]) -> Any:
    """The application of a Serve YAML: `import_path: shoal.ray:build`, with the arguments of `deployment` as `args`.

    Raises InvalidArgumentError for unknown arguments.
    """
    try:
        inspect.signature(deployment).bind(**arguments)
    except TypeError as error:
        raise InvalidArgumentError(f"args: {error}") from error
    return deployment(**arguments)
