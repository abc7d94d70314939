"""The states of an instance. Pure; runs in the supervisor."""

from enum import Enum


class InstanceState(Enum):
    """Where an instance is on its way."""

    STARTING = "starting"
    LOADING = "loading"
    MAPPING = "mapping"
    UP = "up"
    DOWN = "down"
    FAILED = "failed"
    STOPPED = "stopped"
