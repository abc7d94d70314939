"""Warnings in the log, when a version is loaded, where the server differs from what the configuration asks for.

Runs in the supervisor.
"""

import logging

from shoal.model_config.backends import groups_moved_to_cpu, unsupported_kind
from shoal.model_config.messages import Config

_log = logging.getLogger(__name__)


def check_kinds(config: Config, *, cpu_fallback: bool) -> None:
    """Warn of instance groups of a kind that their backend cannot serve: they run on the CPU. Raises UnsupportedError
    without `cpu_fallback`."""
    for group in groups_moved_to_cpu(config):
        if not cpu_fallback:
            raise unsupported_kind(config, group)
        _log.warning(
            "instance group '%s' of model '%s' has kind %s, which backend '%s' cannot use: it runs on the CPU "
            "(--cpu-fallback=false refuses the model)", group["name"], config["name"], group["kind"], config["backend"],
        )  # fmt: skip


def warn_of_cache(config: Config) -> None:
    """Warn of a model that enables the response cache where the server has none."""
    _log.warning(
        "model '%s' enables the response cache, but the server has none: its requests are executed; "
        "give --cache-config", config["name"],
    )  # fmt: skip


def warn_of_no_tensors(config: Config) -> None:
    """Warn of a model whose complete configuration names no tensor: every request that brings one is refused."""
    if not config.get("input") and not config.get("output"):
        _log.warning(
            "model '%s' has no inputs and no outputs, so that no request can give it a tensor: name them in "
            "config.pbtxt, or in auto_complete_config of a Python model", config["name"],
        )  # fmt: skip
