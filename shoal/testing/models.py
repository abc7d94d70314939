"""The models of a test: found, configured and checked as by a server, and loaded in this process."""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from shoal.batcher.scheduling.scheduler import from_config
from shoal.errors import UnsupportedError
from shoal.model_config.autocomplete import ModelIO, needs_autocomplete
from shoal.model_config.ensemble import is_ensemble
from shoal.model_config.finish import finish_config
from shoal.model_config.messages import Config
from shoal.model_config.normalise import place as place_groups
from shoal.model_config.signature import Signature
from shoal.options import ServerOptions
from shoal.placement import Machine, Placement, place
from shoal.repository.found import FoundModel
from shoal.repository.lifecycle import ModelVersion, VersionState
from shoal.repository.scan import model_file
from shoal.star.file_overrides import place as place_files
from shoal.star.models import ModelEntry, ModelTable
from shoal.testing.batcher import Batcher, ServedModel
from shoal.testing.instances import BackendInstance, Instance
from shoal.testing.python_instance import PythonInstance
from shoal.testing.repository import Repository
from shoal.testing.runtime import InlineRuntime
from shoal.workers import backends
from shoal.workers.backends.backend import Device, Model
from shoal.workers.plans import Plans
from shoal.workers.requests import RequestReader
from shoal.workers.warmup import warm_up


class Models:
    """All models of one test."""

    def __init__(
        self, repository: Repository, options: ServerOptions, execution_ms: Mapping[str, float], batcher: Batcher
    ) -> None:
        self._repository = repository
        self._options = options
        self._execution_ms = execution_ms
        self._batcher = batcher
        # Changed by load and unload.
        self._table = ModelTable()
        self._loaded: dict[str, list[ServedModel]] = {}
        self._num_loads = 0
        self._directories = ExitStack()

    @property
    def names(self) -> list[str]:
        """Those that are loaded."""
        return sorted(self._loaded)

    def lookup(self, name: str, version: str | None) -> ModelEntry:
        """The version that a request means. Raises what a client would be told."""
        return self._table.lookup(name, version)

    def load(self, name: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        """Load a model, or load it again, perhaps with another configuration or other files. Raises what is wrong with
        it; then what was loaded before stays.
        """
        found = self._repository.look(name, config, self._write(files) if files else None)
        loaded: list[ServedModel] = []
        try:
            loaded += [self._load(found, number) for number in found.versions]
        except BaseException:
            for model in loaded:
                model.unload()
            raise
        self.unload(name)
        self._loaded[name] = loaded
        for model in loaded:
            self._batcher.add_model(model)
            self._table.apply(model.version.message())

    def unload(self, name: str) -> None:
        """Unload a model if it is loaded; requests that wait for it fail."""
        for model in self._loaded.pop(name, []):
            self._table.apply({**model.version.message(), "op": "model_removed"})
            self._batcher.remove_model(model.version.model_id)
            model.unload()

    def close(self) -> None:
        """Unload all of them."""
        for name in self.names:
            self._directories.callback(self.unload, name)  # all, even if one of them cannot tidy up
        self._directories.close()

    def _write(self, files: Mapping[str, bytes]) -> Path:
        """A directory with files in place of the model's own; keys are like `file:1/model.onnx`."""
        directory = Path(self._directories.enter_context(tempfile.TemporaryDirectory(prefix="shoal-testing-")))
        for path, key in place_files(files).items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(files[key])
        return directory

    # -- one version ------------------------------------------------------------------------------------------------

    def _load(self, found: FoundModel, number: int) -> ServedModel:
        if is_ensemble(found.config):
            steps = ", ".join(dict.fromkeys(step["model_name"] for step in found.config["ensemble_scheduling"]["step"]))
            raise UnsupportedError(
                f"model '{found.name}' is an ensemble, which needs a server: start one with shoal serve "
                f"--model-repository={found.directory.parent} and send it the request, or run its models one by one: "
                f"{steps}"
            )
        if "sequence_batching" in found.config:
            raise UnsupportedError(f"model '{found.name}' has a sequence batcher, which needs a server; start one")
        self._num_loads += 1
        version = ModelVersion(found.name, number, self._num_loads, 0, found.versions[number].directory)
        version.config, version.labels = _on_cpus(found.config), found.labels
        version.config = finish_config(version.config, self._model_io(version))
        version.is_config_final = True
        instances: list[Instance] = []
        try:
            for placement in _placements(version.config):
                instances.append(self._instance(version, placement))  # noqa: PERF401 - those before a failure are unloaded
        except BaseException:
            for instance in instances:
                instance.unload()
            raise
        version.num_instances = version.num_instances_up = len(instances)
        version.move(VersionState.READY)
        return ServedModel(
            version,
            from_config(version.config, self._options.default_max_queue_size, self._options.latency_target),
            RequestReader(Signature.from_config(version.config)),
            instances,
            int(self._execution_ms.get(version.name, 0) * 1e6),
        )

    def _model_io(self, version: ModelVersion) -> ModelIO | None:
        """What the model's file says of itself, where that is wanted."""
        if not needs_autocomplete(version.config):
            return None
        first = _placements(place_groups(version.config, ()))[0]
        if version.config["backend"] == "python":
            return self._python(version, first).describe()
        return backends.create(version.config["backend"]).describe(self._model(version, first), _device(first))

    def _instance(self, version: ModelVersion, placement: Placement) -> Instance:
        if version.config["backend"] == "python":
            instance = self._python(version, placement)
            instance.load()
            return instance
        backend = backends.create(version.config["backend"])
        model = self._model(version, placement)
        plans = Plans(Signature.from_config(version.config))
        backend.load(model, _device(placement))
        warm_up(backend, model, plans.signature)
        return BackendInstance(placement.instance_name, backend, plans)

    def _python(self, version: ModelVersion, placement: Placement) -> PythonInstance:
        model = self._model(version, placement)
        return PythonInstance(model, InlineRuntime(self, self._batcher), self._batcher)

    def _model(self, version: ModelVersion, placement: Placement) -> Model:
        config = version.config
        return Model(
            name=version.name,
            version=version.version,
            instance_name=placement.instance_name,
            version_dir=str(version.version_dir),
            file=str(model_file(version.version_dir, config, placement.instance_name) or ""),
            config=config,
            backend_config=self._options.backend_settings(config["backend"]),
        )


def _on_cpus(config: Config) -> Config:
    """The configuration for a machine without GPUs: a test of a model that is served from one runs anywhere."""
    groups = [
        {**group, "kind": "KIND_CPU", "gpus": []} if group["kind"] == "KIND_GPU" else group
        for group in config["instance_group"]
    ]
    return {**config, "instance_group": groups}


def _placements(config: Config) -> Sequence[Placement]:
    # One core each: more would start a pool of threads for every instance, and add up in another order elsewhere.
    return place(config, Machine((0,)))


def _device(placement: Placement) -> Device:
    return Device(placement.kind, placement.device_id, placement.cores)
