"""Settings of TorchServe's model store, by the names of TorchServe's config.properties. Made by the command line; the
supervisor sends them to the poller, which uses them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: As the only entry of load_models: load every archive and folder of the store.
ALL = "all"


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """TorchServe's model store, and the defaults of its models' settings. The values below are TorchServe's own
    defaults."""

    directory: Path
    load_models: tuple[str, ...] = ()  # loaded at start: ("all",), or each "[NAME=]FILE", "[NAME=]URL"
    # Regular expressions; one must match the whole URL, ignoring case.
    allowed_urls: tuple[str, ...] = ("file://.*|http(s)?://.*",)
    models: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)  # name → version → settings
    # 0: for models loaded at start, one per GPU or else per core; for models registered later, none
    default_workers_per_model: int = 0
    default_response_timeout: int = 120  # s for one batch
    default_startup_timeout: int = 120  # s for a worker to load the model
    job_queue_size: int = 100  # the most requests that may wait for a model version
    default_service_handler: str = ""
    service_envelope: str = ""
    decode_input_request: bool = True
    install_py_dep_per_model: bool = False
    limit_max_image_pixels: bool = True
    number_of_gpu: int | None = None  # the most GPUs to use; None: all
    environment: Mapping[str, str] = field(default_factory=dict)  # variables for workers, as parameters of each model
    models_are_snapshots: bool = False  # `models` is from a snapshot, and overrides the archives' settings
    snapshot_directory: str = ""  # for snapshots of the configuration; "": none is written
    workflow_store: str = ""  # directory of workflows' archives; "": `directory`
    snapshot_properties: str = ""  # text of each snapshot beside its line model_snapshot=

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
