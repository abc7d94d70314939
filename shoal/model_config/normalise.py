"""Triton's defaults for a configuration: version policy, pinned memory, preferred batch sizes, instance groups.

Pure, from dict to dict; the argument does not change, and a second call changes nothing. Values are not checked here:
wrong ones are passed on to `checks`.
"""

from collections.abc import Sequence

from shoal.model_config import backends, messages, sequences
from shoal.model_config.backends import kinds
from shoal.model_config.messages import Config

#: Triton's default count of a CPU instance group, by backend, where it is not 1.
_CPU_COUNT = {"onnxruntime": 2, "tensorflow": 2}


def normalise(config: Config) -> Config:
    """`config` with Triton's defaults; instance groups of KIND_AUTO wait for `place` to get their kind and count."""
    config = backends.complete(config)
    config = {**config, "version_policy": config.get("version_policy", {"latest": {"num_versions": 1}})}
    if "ensemble_scheduling" in config:
        return config
    pinned = {"input_pinned_memory": {"enable": True}, "output_pinned_memory": {"enable": True}}
    config["optimization"] = {**pinned, **config.get("optimization", messages.optimization())}
    # The implied group has the model's name, an unnamed listed one also its position.
    groups = config["instance_group"] or [messages.instance_group(config["name"])]
    config["instance_group"] = [
        {**group, "name": group["name"] or f"{config['name']}_{position}", "count": _count(group, config)}
        for position, group in enumerate(groups)
    ]
    if "dynamic_batching" in config:
        config["dynamic_batching"] = _dynamic_batching(config)
    if "sequence_batching" in config:
        config["sequence_batching"] = sequences.completed(config["sequence_batching"], config["max_batch_size"])
    return config


def place(config: Config, gpus: Sequence[int]) -> Config:
    """`config` with KIND_AUTO, the GPUs of KIND_GPU and the missing counts decided for a server that has `gpus`.

    KIND_AUTO becomes KIND_GPU where the server has a GPU, has those that the group lists, and the backend can use one.
    A kind that the backend cannot serve becomes KIND_CPU, if the backend has that.
    """
    return {**config, "instance_group": [_placed(group, config, gpus) for group in config["instance_group"]]}


def _dynamic_batching(config: Config) -> Config:
    batching: Config = config["dynamic_batching"]
    if batching["preferred_batch_size"] or config["max_batch_size"] <= 0:
        return batching
    return {**batching, "preferred_batch_size": [config["max_batch_size"]]}


def _count(group: Config, config: Config) -> int:
    count: int = group["count"]
    if count != 0 or group["kind"] == "KIND_AUTO":
        return count
    return _CPU_COUNT.get(config["backend"], 1) if group["kind"] == "KIND_CPU" else 1


def _placed(group: Config, config: Config, gpus: Sequence[int]) -> Config:
    kind, can = group["kind"], kinds(config["backend"])
    if kind == "KIND_AUTO":
        are_there = bool(gpus) and set(group["gpus"]) <= set(gpus)
        kind = "KIND_GPU" if "KIND_GPU" in can and (are_there or "KIND_CPU" not in can) else "KIND_CPU"
    elif kind not in can and "KIND_CPU" in can:  # such as a group for GPUs: the GPUs in its list are not used
        kind, group = "KIND_CPU", {**group, "gpus": []}
    group = {**group, "kind": kind}
    if kind == "KIND_GPU" and not group["gpus"]:
        group["gpus"] = list(gpus)
    group["count"] = _count(group, config)
    return group
