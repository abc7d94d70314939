"""The states of an instance, and what its version is called back for. Pure; runs in the supervisor."""

from enum import Enum
from typing import TYPE_CHECKING, Protocol

from shoal.model_config.autocomplete import ModelIO

if TYPE_CHECKING:
    from shoal.supervisor.models.instance import Instance


class InstanceState(Enum):
    """Where an instance is on its way."""

    STARTING = "starting"
    LOADING = "loading"
    MAPPING = "mapping"
    UP = "up"
    DOWN = "down"
    FAILED = "failed"
    STOPPED = "stopped"


class Listener(Protocol):
    """The owner of an instance: its version, which is called back when the state changes."""

    def on_model_io(self, instance: "Instance", model_io: ModelIO) -> None:
        """The worker has looked into the model file; its answer is `Instance.finish_config`."""
        ...

    def on_up(self, instance: "Instance") -> None:
        """Batches may go to it."""
        ...

    def on_down(self, instance: "Instance") -> None:
        """It was up and has died."""
        ...

    def on_failed(self, instance: "Instance", sentence: str) -> None:
        """It died too often to be started again at once; the sentence is that of its last death."""
        ...
