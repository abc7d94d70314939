"""The life of one model version: the states of Triton's repository index and the transitions between them.

    LOADING ──► READY ──► UNLOADING ──► UNAVAILABLE
       │                │ ▲                  │
       │   all instances│ │one is up         │
       │       FAILED   ▼ │                  │
       └────────────► UNAVAILABLE ─unload─► UNLOADING     (LOADING again: a new ModelVersion)

Only the supervisor changes a version's state. Pure; supervisor/models/model.py and served_version.py load versions.
"""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from shoal.messages.to_client import ModelChanged
from shoal.model_config.parameters import parameter
from shoal.repository.identifier import ModelIdentifier


class VersionState(Enum):
    """The states of a version in the repository index."""

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

#: Triton's reason for a version that was unloaded: on request, or because it is not needed any more.
UNLOADED = "unloaded"
#: The version number of a model that failed before any version of it was known.
NO_VERSION = -1
#: The row of statistics of a version that never got one.
NO_ROW = -1


@dataclass(slots=True, eq=False)
class ModelVersion:
    """One version of a model as the supervisor knows it."""

    name: str
    version: int
    #: The id of this version in ring records; never used again.
    model_id: int
    #: The version's row in the table of counters.
    row: int
    version_dir: Path
    config: dict[str, Any] = field(default_factory=dict)
    #: The lines of the label file of each output that has one.
    labels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    namespace: str = ""
    #: False until a worker has reported the tensors of the model file and these tensors are in the configuration.
    is_config_final: bool = False
    #: False for a model whose configuration could not be read, which does not keep the server from being ready, as in
    #: Triton.
    is_polled: bool = True
    #: Whether the model has a readiness method: reported by the first worker that has loaded it.
    has_ready_check: bool = False
    #: Whether front ends compute digests of requests, for the response cache.
    is_cached: bool = False
    #: Names of the version's instance groups, even removed ones: the report of a worker's death has an index into them.
    groups: list[str] = field(default_factory=list)
    # The fields from here on are changed by move and by the supervisor.
    state: VersionState = VersionState.LOADING
    reason: str = ""
    #: The reason that is shown while the version is READY: why the rollout to this version was rolled back, if it was.
    reason_when_ready: str = ""
    load_seconds: float = 0.0
    num_instances: int = 0
    num_instances_up: int = 0
    #: True while the version is UNAVAILABLE because all instances died again and again, and are still tried from time
    #: to time. The next `move` makes it False.
    is_failed: bool = False
    #: Whether requests that name no version go to this one; None: the parameter `ts_default` decides. If no version is
    #: the default, they go to the highest.
    is_default: bool | None = None
    # Changed by the supervisor's traffic.py.
    is_chosen: bool = False  # traffic.py has set `is_default`
    split_id: int = 0  # model id of the split that divides the requests that name no version; 0: none
    sticky_header: str = ""  # the header by which that split divides them; "": none

    def move(self, state: VersionState, reason: str = "") -> None:
        """Change the state. Raises ValueError, and changes nothing, for a transition that the table does not have."""
        if state not in _MOVES[self.state]:
            raise ValueError(f"model '{self.name}' version {self.version} cannot go from {self.state} to {state}")
        self.state = state
        self.reason = reason or (self.reason_when_ready if state is VersionState.READY else "")
        self.is_failed = False

    def name_groups(self) -> None:
        """Add the names of the configuration's new instance groups to `groups`. A name keeps its index, since later
        reports of deaths in a removed group may still refer to the index."""
        self.groups += [group["name"] for group in self.config["instance_group"] if group["name"] not in self.groups]

    @property
    def is_meant_by_default(self) -> bool:
        """Whether requests that name no version go to this one even if there are higher versions."""
        return parameter(self.config, "ts_default") == "true" if self.is_default is None else self.is_default

    @property
    def identifier(self) -> ModelIdentifier:
        return ModelIdentifier(self.name, self.namespace)

    @property
    def is_unloaded(self) -> bool:
        """Whether the version was unloaded, or is being unloaded."""
        return self.state is VersionState.UNLOADING or (
            self.state is VersionState.UNAVAILABLE and self.reason == UNLOADED
        )

    @property
    def is_failure(self) -> bool:
        """Whether the version is UNAVAILABLE for another reason than an unload."""
        return self.state is VersionState.UNAVAILABLE and self.reason != UNLOADED

    def status(self) -> tuple[str, str, str]:
        """The version's row in the table printed at start-up: name, number, state."""
        number = str(self.version) if self.version != NO_VERSION else "-"
        return str(self.identifier), number, f"{self.state.value}: {self.reason}" if self.reason else self.state.value

    def message(self) -> ModelChanged:
        """The message that announces the version's state to front ends."""
        own: dict[str, Any] = {
            "state": self.state.value,
            "config": self.config if self.is_config_final else None,
            "is_default": self.is_meant_by_default,
        }
        return ModelChanged(**{name: getattr(self, name) for name in ModelChanged.fields if name not in own}, **own)
