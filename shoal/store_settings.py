"""Settings of TorchServe's model store, by the names of TorchServe's config.properties. Pure; used in the supervisor,
which sends them to the poller."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: The entry of load_models that means every archive and folder of the store, where it is the only one.
ALL = "all"


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """TorchServe's model store, and the defaults of its models' settings. Defaults are TorchServe's."""

    directory: Path
    load_models: tuple[str, ...] = ()  # loaded at start: ("all",), or each "[NAME=]FILE", "[NAME=]URL"
    allowed_urls: tuple[str, ...] = ("file://.*|http(s)?://.*",)  # regular expressions, of whole URLs in any case
    models: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)  # name → version → settings
    default_workers_per_model: int = 0  # 0: one per GPU, or else per core, at start; later none
    default_response_timeout: int = 120  # s for one batch
    default_startup_timeout: int = 120  # s for a worker to load the model
    job_queue_size: int = 100  # requests of a model version that wait
    default_service_handler: str = ""
    service_envelope: str = ""
    decode_input_request: bool = True
    install_py_dep_per_model: bool = False
    limit_max_image_pixels: bool = True
    number_of_gpu: int | None = None  # the most GPUs to use; None: all
    environment: Mapping[str, str] = field(default_factory=dict)  # variables for workers, as parameters of each model
    models_are_snapshots: bool = False  # `models` is from a snapshot: it has precedence over archives' settings
    snapshot_directory: str = ""  # for snapshots of the configuration; "": none is written
    workflow_store: str = ""  # directory of workflows' archives; "": `directory`
    snapshot_properties: str = ""  # the lines of each snapshot beside its model_snapshot=

    @property
    def workflow_directory(self) -> Path:
        """The directory of workflows' archives."""
        return Path(self.workflow_store) if self.workflow_store else self.directory

    @property
    def fields(self) -> dict[str, Any]:
        """The settings as a message carries them."""
        names = [name for name in self.__dataclass_fields__ if name != "directory"]
        return {"directory": str(self.directory), **{name: getattr(self, name) for name in names}}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "StoreSettings":
        """The settings that `fields` were made from."""
        sequences = {name: tuple(fields[name]) for name in ("load_models", "allowed_urls")}
        return cls(**{**fields, **sequences, "directory": Path(fields["directory"])})
