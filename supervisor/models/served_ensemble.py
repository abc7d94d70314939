"""One version of an ensemble as it is served: it has no instances, but needs models that are loaded and agree.

    load ─► LOADING ─its models are there─► ready, as any version ─► READY ⇄ UNAVAILABLE as they go and come

The models are checked whenever one of them has changed. Runs in the supervisor.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shoal import errors
from shoal.errors import InvalidArgumentError, ShoalError, UnavailableError
from shoal.messages.message import Message
from shoal.messages.to_batcher import EnsembleAdded, EnsembleRelinked
from shoal.model_config.ensemble import LATEST, decoupled_steps, mismatches, steps
from shoal.model_config.finish import finish_config
from shoal.model_config.idempotence import may_run_again
from shoal.model_config.messages import Config
from shoal.open_files import explain
from shoal.repository.identifier import ModelIdentifier
from shoal.repository.lifecycle import ModelVersion, VersionState
from shoal.repository.plan import Source, revision
from shoal.shm.segment import OutOfSharedMemoryError
from shoal.supervisor.event_loop import Future, resolve
from shoal.supervisor.instance_context import InstanceContext
from shoal.supervisor.models.roster import Roster
from shoal.supervisor.models.served_version import ServedVersion

if TYPE_CHECKING:
    from shoal.supervisor.models.model import Model


#: Finds the model that a name means in the ensemble's own repository; None where none or several could be meant.
Find = Callable[[ModelIdentifier], "Model | None"]


class ServedEnsemble(ServedVersion):
    """A version of an ensemble. Other processes see one instance, which is up while each of its models has one."""

    def __init__(
        self,
        version: ModelVersion,
        source: Source,
        context: InstanceContext,
        roster: Roster,
        send: Callable[[Sequence[Message]], object],
        find: Find,
    ) -> None:
        super().__init__(version, source, context, roster, send)
        self._find = find
        self._own_labels = version.labels
        # The versions of the steps, in order, changed by `look`; whether `_start` has been called.
        self._composing: list[ServedVersion] = []
        self._has_begun = False

    async def _start(self) -> None:
        """Check the configuration, and look for the models of the steps."""
        version = self.version
        version.config = finish_config(version.config)
        version.num_instances = 1
        version.is_config_final = True
        self.changed()
        self._has_begun = True
        self.look()

    @property
    def is_there(self) -> bool:
        """Whether this ensemble serves, or would if its models were loaded."""
        return super().is_there or self._is_broken

    @property
    def _is_broken(self) -> bool:
        """Whether this ensemble has come up and one of its models has ended since."""
        return self._has_come_up and self.version.is_failure and not (self._is_retiring or self.is_ending)

    @property
    def names(self) -> list[str]:
        """The names of the models in the steps."""
        return [step["model_name"] for step in steps(self.version.config)]

    def resize(self, groups: list[Config]) -> Future[None]:
        """Not possible; raises InvalidArgumentError: an ensemble has no instances."""
        raise InvalidArgumentError(
            f"model '{self.version.name}' is an ensemble and has no instances; scale the models that it is made of"
        )

    # --- the models of the steps ---

    def look(self) -> None:
        """Check the state of the steps' models, and come up, fail or recover accordingly."""
        version = self.version
        if version.state is VersionState.LOADING and self._has_begun and not (self._has_come_up or self.is_ending):
            self._look_whether_ready()
        elif version.state is VersionState.READY or self._is_broken:
            self._look_again()

    def _look_whether_ready(self) -> None:
        try:
            self._refuse_cycles((self.version.identifier,))
            composing = self._resolve(waits=True)
            if composing is not None:
                self._context.star.give_batcher_memory()
        except ShoalError as error:
            self.fail(error)
            return
        except (OutOfSharedMemoryError, OSError) as error:
            self.fail(UnavailableError(explain(error)))
            return
        if composing is not None:
            self._has_come_up = True
            self._compose(composing)
            star = self._context.star
            star.payloads.ensembles.add(self.version.model_id)
            added = star.acknowledgements.announce(star.to_batcher(self._batcher_message()))
            self._context.loop.after(added, self._come_up)

    def _come_up(self) -> None:
        """Finish the load: the batcher has the ensemble, and requests may arrive."""
        if self.version.state is VersionState.LOADING and not self.is_ending:
            self.version.load_seconds = self._context.loop.now_s() - self._started_s
            resolve(self.loaded, None)

    def _look_again(self) -> None:
        version = self.version
        try:
            composing = self._resolve(waits=False)
            assert composing is not None
        except ShoalError as error:
            if not self._is_broken:
                version.num_instances_up = 0
                version.move(VersionState.UNAVAILABLE, errors.index_reason(error))
                self.changed()
            return
        were_up, has_changed = version.num_instances_up, composing != self._composing
        if has_changed:
            self._compose(composing)
            self._context.star.send_to_batcher(EnsembleRelinked(version.model_id, *self._composition, self.revision))
        else:
            self._count()
        if self._is_broken:
            version.move(VersionState.READY)
        elif not has_changed and version.num_instances_up == were_up:
            return
        self.changed()

    def _resolve(self, *, waits: bool) -> list[ServedVersion] | None:
        """The versions that the steps mean now; None, with `waits`, where one of them is still being loaded.

        Raises InvalidArgumentError where one is missing, or their tensors do not agree.
        """
        name, listed = self.version.name, steps(self.version.config)
        models = [self._find(ModelIdentifier(step["model_name"], self.version.namespace)) for step in listed]
        unknown = [step["model_name"] for step, model in zip(listed, models, strict=True) if model is None]
        if unknown:
            raise InvalidArgumentError(
                f"ensemble {name} contains models that are not available or ambiguous: {', '.join(unknown)}"
            )
        composing = []
        for step, model in zip(listed, models, strict=True):
            assert model is not None
            wanted = int(step["model_version"])
            number = _default(model) if wanted == LATEST else wanted
            served = None if number is None else model.serving.get(number)
            if served is None:
                if waits and model.is_loading:
                    return None
                raise InvalidArgumentError(_missing(name, model, wanted))
            composing.append(served)
        for sentence in mismatches(self.version.config, [served.version.config for served in composing]):
            raise InvalidArgumentError(sentence)
        return composing

    def _refuse_cycles(self, path: tuple[ModelIdentifier, ...]) -> None:
        """Raise InvalidArgumentError where an ensemble contains itself. `path` leads from this one to the last."""
        last = self._find(path[-1])
        found = [] if last is None else [each for each in last.versions.values() if isinstance(each, ServedEnsemble)]
        meant = [self._find(ModelIdentifier(name, each.version.namespace)) for each in found for name in each.names]
        for identifier in dict.fromkeys([model.identifier for model in meant if model is not None]):
            if identifier == path[0]:
                names = " -> ".join([each.name for each in (*path, identifier)])
                raise InvalidArgumentError(
                    f"circular dependency between ensembles: {names}. Remove one of these steps from the "
                    "'ensemble_scheduling' of its ensemble"
                )
            if identifier not in path:
                self._refuse_cycles((*path, identifier))

    def _compose(self, composing: list[ServedVersion]) -> None:
        self._composing = composing
        config = self.version.config
        outputs = {tensor["name"] for tensor in config["output"]}
        labels = {}
        for step, served in zip(steps(config), composing, strict=True):
            for output, tensor in step["output_map"].items():
                if tensor in outputs and output in served.version.labels:
                    labels[tensor] = served.version.labels[output]
        self.version.labels = {**labels, **self._own_labels}
        # Triton's rule: an ensemble is decoupled where a step is.
        policy = {"decoupled": bool(decoupled_steps([served.version.config for served in composing]))}
        if policy != config.get("model_transaction_policy"):
            self.version.config = {**config, "model_transaction_policy": policy}
        self._count()

    def _count(self) -> None:
        self.version.num_instances_up = int(all(each.version.num_instances_up > 0 for each in self._composing))

    # --- messages to the batcher ---

    @property
    def _composition(self) -> tuple[list[int], Sequence[int], bool]:
        """The model ids of the steps, which of the steps are decoupled, and whether requests to all of them may be
        executed again (idempotence.py)."""
        ids = [each.version.model_id for each in self._composing] or [0] * len(self.names)
        configs = [each.version.config for each in self._composing]
        return ids, decoupled_steps(configs), all(map(may_run_again, configs))

    @property
    def revision(self) -> str:
        """The ensemble's revision: equal wherever its steps lead through equal models."""
        steps = [each.revision for each in self._composing]
        return revision(self.version.name, self.version.version, self.source, steps)

    def _batcher_message(self) -> Message:
        version = self.version
        return EnsembleAdded(
            version.model_id, version.row, version.config, version.version, *self._composition, self.revision
        )


def _default(model: "Model") -> int | None:
    """The number of the version for a step that names no version; None if none serves."""
    chosen = [number for number, each in model.serving.items() if each.version.is_meant_by_default]
    return chosen[0] if chosen else max(model.serving, default=None)


def _missing(ensemble: str, model: "Model", wanted: int) -> str:
    """Triton's sentence for a step whose version is not loaded, with the reason."""
    depends = f"ensemble '{ensemble}' depends on '{model.identifier}'"
    if wanted != LATEST and model.serving:
        return f"{depends} whose required version {wanted} is not loaded."
    reasons = [each.reason for each in model.known_versions if each.is_failure]
    because = f" Model '{model.identifier}' loading failed with error: {reasons[-1]}" if reasons else ""
    if wanted != LATEST:
        return f"{depends} whose required version {wanted} is not loaded.{because}"
    return f"{depends} which has no loaded version.{because}"
