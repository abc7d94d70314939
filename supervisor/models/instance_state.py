"""The states of an instance. Pure; runs in the supervisor."""

from enum import Enum


class InstanceState(Enum):
    """The state of an instance between its start and its end."""

    STARTING = "starting"
    LOADING = "loading"
    MAPPING = "mapping"
    UP = "up"
    DOWN = "down"
    FAILED = "failed"
    STOPPED = "stopped"


#: The states of an instance whose worker runs, and executes no batch yet.
COMING_UP = frozenset((InstanceState.STARTING, InstanceState.LOADING, InstanceState.MAPPING))
