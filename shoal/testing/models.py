"""The models of a test: found, configured and checked as by a server, and loaded in this process."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal import temporary_folders
from shoal.batcher.ensemble import Ensemble
from shoal.batcher.peers import ScheduledModel
from shoal.batcher.response_order import keeps_order
from shoal.batcher.scheduling.scheduler import from_config
from shoal.errors import InvalidArgumentError
from shoal.messages.to_client import ModelForgotten
from shoal.model_config import sequences
from shoal.model_config.autocomplete import ModelIO, needs_autocomplete
from shoal.model_config.determinism import padded_rows
from shoal.model_config.ensemble import LATEST, decoupled_steps, mismatches, steps
from shoal.model_config.finish import finish_config
from shoal.model_config.messages import Config
from shoal.model_config.normalise import place as place_groups
from shoal.model_config.python_backends import runs_on
from shoal.model_config.signature import Signature
from shoal.options import ServerOptions
from shoal.placement import Machine, Placement, place
from shoal.repository.found import FoundModel
from shoal.repository.lifecycle import ModelVersion, VersionState
from shoal.repository.scan import model_file
from shoal.shm.counters import ROW_WORDS, Row
from shoal.shm.layout import WORD
from shoal.star.model_control import remove_files
from shoal.testing.instances import InlineInstance
from shoal.testing.python_backend import InlinePythonBackend
from shoal.testing.repository import Repository
from shoal.testing.star import SimulatedStar
from shoal.workers import backends
from shoal.workers.backends.backend import Backend, BackendModel, Device
from shoal.workers.warmup import warm_up


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedModel:
    """A loaded version of a model. An ensemble has no instances."""

    version: ModelVersion
    scheduled: ScheduledModel
    instances: Sequence[InlineInstance]


class SimulatedModels:
    """All models of one test."""

    def __init__(
        self, repository: Repository, options: ServerOptions, execution_ms: Mapping[str, float], star: SimulatedStar
    ) -> None:
        self._repository = repository
        self._options = options
        self._execution_ms = execution_ms
        self._star = star
        star.client.ask = self._answer
        # Changed by load and unload. Name → its versions.
        self.loaded: dict[str, list[SimulatedModel]] = {}
        self._loading: list[str] = []  # ensembles being loaded, each a step of the one before it
        self._num_loads = 0
        self._directories = ExitStack()

    def load(self, name: str, config: str | None = None, directory: Path | None = None) -> None:
        """Load a model, or load it again, perhaps with another configuration or from a directory with other files.
        Loading an ensemble loads the models of its steps. Raises ShoalError for an invalid model; the versions loaded
        before then stay."""
        found = self._repository.look(name, config, directory)
        self._load_steps(found)
        loaded: list[SimulatedModel] = []
        try:
            for number in found.versions:
                loaded.append(self._load(found, number))  # noqa: PERF401 - those before a failure are unloaded
        except BaseException:
            for model in loaded:
                _unload(model.instances)
            raise
        self.unload(name)
        self.loaded[name] = loaded
        for model in loaded:
            self._star.add_model(model.scheduled, model.instances)
            self._star.client.models.apply(model.version.message())
        self._link_ensembles()

    def unload(self, name: str) -> None:
        """Unload a model if it is loaded; requests that wait for it fail."""
        for model in self.loaded.pop(name, []):
            self._star.client.models.apply(ModelForgotten(*model.version.identifier, model.version.version))
            self._star.remove_model(model.scheduled)

    def close(self) -> None:
        """Unload all models."""
        with self._directories:
            for name in list(self.loaded):
                self.unload(name)

    def _answer(self, verb: str, arguments: dict[str, Any]) -> None:
        """Load or unload a model on another model's request, as a supervisor would."""
        name = arguments.get("model", "")
        if verb == "load":
            directory = arguments["directory"]
            if directory is not None:
                self._directories.callback(os.close, temporary_folders.hold(directory))
                self._directories.callback(remove_files, directory)
            self.load(name, arguments["config"], None if directory is None else Path(directory))
        elif verb == "unload":
            self.unload(name)

    # -- one version ------------------------------------------------------------------------------------------------

    def _load(self, found: FoundModel, number: int) -> SimulatedModel:
        self._num_loads += 1
        version = ModelVersion(found.name, number, self._num_loads, 0, found.versions[number].directory)
        version.labels = found.labels
        if steps(found.config):
            version.config = finish_config(found.config)
            scheduled: ScheduledModel = self._ensemble(version)
            instances = list[InlineInstance]()
        else:
            version.config = _on_cpus(found.config)
            version.config = finish_config(version.config, self._model_io(version))
            version.name_groups()
            scheduled = self._scheduled(version)
            instances = self._instances(version, scheduled)
        version.is_config_final = True
        version.is_cached = scheduled.sharing is not None
        version.num_instances = version.num_instances_up = len(instances) or 1
        version.move(VersionState.READY)
        return SimulatedModel(version, scheduled, instances)

    def _scheduled(self, version: ModelVersion) -> ScheduledModel:
        config = version.config
        return ScheduledModel(
            version.model_id,
            from_config(config, self._options.default_max_queue_size, self._options.latency_target),
            _row(),
            max_rows=max(1, config["max_batch_size"]),
            keeps_order=keeps_order(config),
            signature=Signature.from_config(config),
            version=version.version,
            groups=version.groups,
            sharing=self._star.sharing(version),
        )

    def _model_io(self, version: ModelVersion) -> ModelIO | None:
        """The tensors in the model's file, if the configuration needs them; otherwise None."""
        if not needs_autocomplete(version.config):
            return None
        first = _placements(place_groups(version.config, ()))[0]
        model = self._model(version, first)
        return self._backend(model).describe(model, _device(first))

    def _instances(self, version: ModelVersion, scheduled: ScheduledModel) -> list[InlineInstance]:
        instances: list[InlineInstance] = []
        execution_ns = int(self._execution_ms.get(version.name, 0) * 1e6)
        try:
            for placement in _placements(version.config):
                model = self._model(version, placement)
                backend = self._backend(model)
                backend.load(model, _device(placement))
                backend.pad_batches(padded_rows(model.config))
                if not isinstance(backend, InlinePythonBackend):
                    warm_up(backend, model, Signature.from_config(model.config))
                name = placement.instance_name
                instances.append(InlineInstance(self._star, version, scheduled, name, backend, execution_ns))
        except BaseException:
            _unload(instances)
            raise
        return instances

    def _backend(self, model: BackendModel) -> Backend:
        name = runs_on(model.config)
        return InlinePythonBackend(model, self._star, self._star.client) if name == "python" else backends.create(name)

    def _model(self, version: ModelVersion, placement: Placement) -> BackendModel:
        config = version.config
        return BackendModel(
            name=version.name,
            version=version.version,
            instance_name=placement.instance_name,
            version_dir=str(version.version_dir),
            file=str(model_file(version.version_dir, config, placement.instance_name) or ""),
            config=config if runs_on(config) == "python" else sequences.with_sequence_tensors(config),
            backend_config=self._options.backend_settings(config["backend"]),
        )

    # -- ensembles ----------------------------------------------------------------------------------------------------

    def _load_steps(self, found: FoundModel) -> None:
        """Load the models of an ensemble that are not loaded. Raises InvalidArgumentError if it contains itself."""
        self._loading.append(found.name)
        try:
            for step in steps(found.config):
                if step["model_name"] in self._loading:
                    names = " -> ".join([*self._loading, step["model_name"]])
                    raise InvalidArgumentError(f"circular dependency between ensembles: {names}")
                if step["model_name"] not in self.loaded:
                    self.load(step["model_name"])
        finally:
            self._loading.pop()

    def _composing(self, ensemble: ModelVersion) -> list[ModelVersion]:
        """The versions that an ensemble's steps mean now. Raises InvalidArgumentError if one is missing."""
        composing = []
        for step in steps(ensemble.config):
            versions = {each.version.version: each.version for each in self.loaded.get(step["model_name"], ())}
            number = int(step["model_version"])
            if number == LATEST:
                number = max(versions, default=number)
            if number not in versions:
                depends = f"ensemble '{ensemble.name}' depends on '{step['model_name']}'"
                raise InvalidArgumentError(f"{depends} whose required version {number} is not loaded.")
            composing.append(versions[number])
        return composing

    def _ensemble(self, version: ModelVersion) -> Ensemble:
        """An ensemble, not linked yet. Raises InvalidArgumentError if the ensemble does not fit its steps' models."""
        configs = [each.config for each in self._composing(version)]
        for sentence in mismatches(version.config, configs):
            raise InvalidArgumentError(sentence)
        policy = {"decoupled": bool(decoupled_steps(configs))}
        version.config = {**version.config, "model_transaction_policy": policy}
        number, sharing = version.version, self._star.sharing(version)
        return Ensemble(
            version.model_id, version.config, _row(), version=number, models=(), may_run_again=False, sharing=sharing
        )

    def _link_ensembles(self) -> None:
        """Link all ensembles to the versions that their steps mean now; if one is missing, requests fail."""
        for each in [each for versions in self.loaded.values() for each in versions]:
            if isinstance(each.scheduled, Ensemble):
                with suppress(InvalidArgumentError):
                    composing = self._composing(each.version)
                    ids, configs = [step.model_id for step in composing], [step.config for step in composing]
                    self._star.exchange.ensembles.relink(
                        each.scheduled.id, ids, decoupled_steps(configs), may_run_again=False
                    )
                    self._star.sharing(each.version, str(ids))


def _row() -> Row:
    """A row of statistics for the batcher, which no test reads."""
    return Row(memoryview(bytearray(ROW_WORDS * WORD)).cast("Q"), None)


def _unload(instances: Sequence[InlineInstance]) -> None:
    for instance in instances:
        instance.unload()


def _on_cpus(config: Config) -> Config:
    """The configuration for a machine without GPUs, so that a test of a GPU's model runs anywhere."""
    groups = [
        {**group, "kind": "KIND_CPU", "gpus": []} if group["kind"] == "KIND_GPU" else group
        for group in config["instance_group"]
    ]
    return {**config, "instance_group": groups}


def _placements(config: Config) -> Sequence[Placement]:
    # One core each: more would start threads for every instance, and sum in an order that depends on the machine.
    return place(config, Machine((0,)))


def _device(placement: Placement) -> Device:
    return Device(placement.kind, placement.device_id, placement.cores)
