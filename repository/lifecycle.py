"""The life of one model version: the states of Triton's repository index and the moves between them.

    LOADING ──► READY ──► UNLOADING ──► UNAVAILABLE
       │                │ ▲                  │
       │   all instances│ │one is up         │
       │       FAILED   ▼ │                  │
       └────────────► UNAVAILABLE ─unload─► UNLOADING     (LOADING again: a new ModelVersion)

Only the supervisor moves a version. Pure; loading is done by `shoal.supervisor.models.models`.
"""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from shoal.messages.to_client import ModelChanged
from shoal.repository.identifier import ModelIdentifier


class VersionState(Enum):
    """The words of the repository index."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


_MOVES = {
    VersionState.LOADING: {VersionState.READY, VersionState.UNAVAILABLE},
    VersionState.READY: {VersionState.UNLOADING, VersionState.UNAVAILABLE},
    VersionState.UNLOADING: {VersionState.UNAVAILABLE},
    VersionState.UNAVAILABLE: {VersionState.READY, VersionState.UNLOADING},
}

#: Triton's reason for a version that was unloaded on request.
UNLOADED = "unloaded"
#: The version of a model that failed before any version of it was known.
NO_VERSION = -1
#: The counter row of a version that never got one.
NO_ROW = -1


@dataclass(slots=True, eq=False)
class ModelVersion:
    """One version of a model as the supervisor knows it."""

    name: str
    version: int
    #: The number that ring records carry; never used again.
    model_id: int
    #: Its row in the table of counters.
    row: int
    version_dir: Path
    config: dict[str, Any] = field(default_factory=dict)
    #: What the label files of its outputs say.
    labels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    namespace: str = ""
    #: False until a worker has reported the tensors of the model file and they were filled in.
    is_config_final: bool = False
    #: False for a model whose configuration could not be read: the server is ready without it, as Triton is.
    is_polled: bool = True
    #: Whether the model says by itself if it is ready: told by the first worker that has loaded it.
    has_ready_check: bool = False
    #: Whether front ends shall say which of its requests are equal, for the response cache.
    is_cached: bool = False
    #: Names of its instance groups, those included that a reload has removed: a worker's death names one by its place.
    groups: list[str] = field(default_factory=list)
    # Changed by move and by the supervisor.
    state: VersionState = VersionState.LOADING
    reason: str = ""
    load_seconds: float = 0.0
    num_instances: int = 0
    num_instances_up: int = 0
    #: UNAVAILABLE because all instances died again and again: they are still tried from time to time. Ends with the
    #: next move.
    is_failed: bool = False

    def move(self, state: VersionState, reason: str = "") -> None:
        """Go to another state. Raises ValueError, and nothing changes, for a move the table does not have."""
        if state not in _MOVES[self.state]:
            raise ValueError(f"model '{self.name}' version {self.version} cannot go from {self.state} to {state}")
        self.state = state
        self.reason = reason
        self.is_failed = False

    def name_groups(self) -> None:
        """Its configuration has other instance groups: note the names that are new. A name keeps its place, since
        instances of a group that is gone still end."""
        self.groups += [group["name"] for group in self.config["instance_group"] if group["name"] not in self.groups]

    @property
    def identifier(self) -> ModelIdentifier:
        """Which model it is a version of."""
        return ModelIdentifier(self.name, self.namespace)

    @property
    def is_unloaded(self) -> bool:
        """Whether the version is not loaded, or is being unloaded, on request."""
        return self.state is VersionState.UNLOADING or (
            self.state is VersionState.UNAVAILABLE and self.reason == UNLOADED
        )

    @property
    def is_failure(self) -> bool:
        """Whether it should serve and cannot."""
        return self.state is VersionState.UNAVAILABLE and self.reason != UNLOADED

    def status(self) -> tuple[str, str, str]:
        """Its row in the table printed at start-up."""
        number = str(self.version) if self.version != NO_VERSION else "-"
        return str(self.identifier), number, f"{self.state.value}: {self.reason}" if self.reason else self.state.value

    def message(self) -> ModelChanged:
        """What front ends are told of it."""
        return ModelChanged(
            name=self.name,
            namespace=self.namespace,
            version=self.version,
            model_id=self.model_id,
            row=self.row,
            state=self.state.value,
            reason=self.reason,
            is_failed=self.is_failed,
            is_polled=self.is_polled,
            num_instances=self.num_instances,
            num_instances_up=self.num_instances_up,
            config=self.config if self.is_config_final else None,
            groups=self.groups,
            labels=self.labels,
            load_seconds=self.load_seconds,
            has_ready_check=self.has_ready_check,
            is_cached=self.is_cached,
        )
