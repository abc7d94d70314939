"""Rollouts: a new version gets a growing share of the requests that name none, and all of them or none in the end.

Runs in the supervisor, for `/v2/models/NAME/rollout` and `shoal rollout`. When shares grow, and when a rollout ends, is
decided by rollout.py; traffic.py divides the requests. Open rollouts and the ends of others are kept in a file: after a
restart of the server an open rollout repeats its step from the step's beginning.
"""

import json
import logging
import os
from collections.abc import Callable, Iterable
from typing import Any

from shoal.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, ShoalError, UnavailableError
from shoal.model_config.ensemble import is_ensemble
from shoal.repository.found import FoundModel
from shoal.repository.identifier import ModelIdentifier
from shoal.repository.lifecycle import VersionState
from shoal.rollout_settings import DISAGREE, RolloutPlan, read_plan
from shoal.shadow import ShadowFigure
from shoal.supervisor.event_loop import sleep
from shoal.supervisor.failure_domains import report
from shoal.supervisor.memory.star import Star
from shoal.supervisor.models.model import Model
from shoal.supervisor.models.models import Models
from shoal.supervisor.models.rollout import Comparison, Figures, Phase, Rollout, Verdict, VersionFigures
from shoal.supervisor.models.rollout_file import ROLLOUTS, SavedRollout, rollout_file
from shoal.supervisor.models.served_version import ServedVersion
from shoal.supervisor.models.traffic import Traffic
from shoal.supervisor.questions.questions import Verb
from shoal.supervisor.state_file import StateFile, StateWriter, state_path

_log = logging.getLogger(__name__)

#: How often the figures of a step are looked at: ten times in the step, but not more often than every 50 ms, nor less
#: often than every second (ours).
_LOOKS_PER_STEP, _MIN_LOOK_S, _MAX_LOOK_S = 10, 0.05, 1.0

#: The counts of mirrored requests: model, its version and its shadow's → totals since the server began; None where
#: nothing is mirrored.
FigureOfShadow = Callable[[str, int, int], ShadowFigure | None]


class Rollouts:
    """The rollouts of all models: of each model at most one at a time, and the outcome of its last one."""

    def __init__(
        self,
        star: Star,
        models: Models,
        file: StateFile[SavedRollout],
        is_registered: Callable[[ModelIdentifier], bool],
        figure_of_shadow: FigureOfShadow,
    ) -> None:
        self._loop = star.loop
        self._models = models
        self.traffic = Traffic(star, models)
        self._file = file
        self.writer = StateWriter(file, star.loop)  # writes nothing during an upgrade
        self._is_registered = is_registered
        self._figure_of_shadow = figure_of_shadow
        self.verbs: dict[str, Verb] = {"rollout": self._ask}
        # Changed by the verbs, and as rollouts go on.
        self._rollouts: dict[ModelIdentifier, Rollout] = {}
        self._compared: dict[ModelIdentifier, Comparison] = {}  # the totals at the beginning of the present step
        #: Rollouts in the file that could not be resumed, such as that of a model that has failed to load.
        self._unresumed: dict[ModelIdentifier, SavedRollout] = {}
        #: Plans that models' directories had at the start, until what the file keeps has been restored; then None.
        self._waiting: dict[ModelIdentifier, RolloutPlan] | None = {}
        self.mark, self.refresh, self.introduce = self.traffic.mark, self.traffic.refresh, self.traffic.introduce

    # --- what clients ask ---

    async def _ask(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Carry out the request's action, if any, and describe the model's rollout."""
        model, action = self._models.get(arguments["model"]), arguments["action"]
        if action == "begin":
            await self.begin(model, read_plan(arguments["plan"]))
        elif action == "unpin":
            await self._unpin(model)
        elif action:
            await self._change(model, action)
        if action:
            await self.writer.settle()
        return self.describe(model)

    async def begin(self, model: Model, plan: RolloutPlan, step: int = 0) -> None:
        """Begin a rollout at a step of its plan. Raises ShoalError, and changes nothing, where it cannot begin."""
        identifier = model.identifier
        running = self._rollouts.get(identifier)
        if running is not None and running.phase.is_open:
            raise AlreadyExistsError(
                f"model '{identifier}' has a rollout to version {running.plan.version} already, at {running.share:g} "
                "percent; end that first, by 'abort' or 'promote'"
            )
        model.refuse_while_loading()
        stable = self._stable(model, plan.version)
        self._check(model, stable, plan)
        made = self._rollouts[identifier] = Rollout(plan, stable, self._loop.now_s(), step)
        try:
            await self.traffic.split(model, stable, plan.version, plan.sticky_header, retries=plan.retries)
        except BaseException:
            del self._rollouts[identifier]
            raise
        _note(model, made)
        _log.info("model '%s': rollout from version %d to version %d begins", identifier, stable, plan.version)
        self._enter_step(model, made)
        self._loop.start(self._drive(model, made))

    def _stable(self, model: Model, canary: int) -> int:
        """The version that requests without one mean now, or meant before the new version was loaded."""
        division = self.traffic.find(model.identifier)
        if division is not None and division.stable != canary and division.stable in model.serving:
            return division.stable
        stable = _version_before(canary, model.serving)
        if stable is None:
            raise UnavailableError(
                f"model '{model.identifier}' serves no version but {canary}: a rollout needs the old one, too. Its "
                "version_policy says which versions are loaded, as in version_policy: { latest { num_versions: 2 } }"
            )
        return stable

    def _check(self, model: Model, stable: int, plan: RolloutPlan) -> None:
        """Raise ShoalError where these two versions cannot take each other's requests."""
        name, serving = model.identifier, model.serving
        if plan.version not in serving:
            raise UnavailableError(
                f"version {plan.version} of model '{name}' is not READY; READY are {_list(serving)}. The model's "
                "version_policy says which versions are loaded, as in version_policy: { latest { num_versions: 2 } }"
            )
        if self._is_registered(name):
            raise InvalidArgumentError(
                f"model '{name}' is registered by TorchServe's protocol, which has default versions of its own: "
                "PUT /models/NAME/VERSION/set-default"
            )
        old, new = serving[stable].version.config, serving[plan.version].version.config
        if is_ensemble(old) or is_ensemble(new):
            raise InvalidArgumentError(f"model '{name}' is an ensemble: roll out the models of its steps")
        for what in ("input", "output", "sequence_batching", "model_transaction_policy"):
            if _interface(old, what) != _interface(new, what):
                raise InvalidArgumentError(
                    f"versions {stable} and {plan.version} of model '{name}' differ in {what}: a client that names no "
                    "version would meet both"
                )
        needs_shadow = any(guard.figure == DISAGREE for guard in plan.guards)
        if needs_shadow and self._figure_of_shadow(name.name, stable, plan.version) is None:
            raise InvalidArgumentError(
                f"guard 'disagree' needs version {plan.version} of model '{name}' to be the shadow of {stable}: "
                f"shoal shadow {name.name} {plan.version} --of {stable}"
            )

    async def _change(self, model: Model, action: str) -> None:
        rollout = self._rollouts.get(model.identifier)
        if rollout is None or not rollout.phase.is_open:
            raise NotFoundError(f"model '{model.identifier}' has no rollout under way")
        if action == "abort":
            rollout.roll_back("it was aborted by request")
            await self._end(model, rollout)
        elif action == "promote":
            if reason := _not_ready(model, rollout.plan.version):
                raise UnavailableError(f"the rollout of model '{model.identifier}' is not promoted: {reason}")
            rollout.phase = Phase.PROMOTED
            await self._end(model, rollout)
        else:
            rollout.phase = Phase.PAUSED if action == "pause" else Phase.RUNNING
            _log.info(
                "model '%s': rollout to version %d: %s", model.identifier, rollout.plan.version, rollout.phase.value
            )
            self._keep()

    async def _unpin(self, model: Model) -> None:
        """Have requests without a version mean the highest one again."""
        rollout = self._rollouts.get(model.identifier)
        if rollout is not None and rollout.phase.is_open:
            raise UnavailableError(f"model '{model.identifier}' has a rollout under way; end that first")
        self._rollouts.pop(model.identifier, None)
        self._unresumed.pop(model.identifier, None)
        await self.traffic.choose(model, None)
        self._keep()

    def describe(self, model: Model) -> dict[str, Any]:
        """A model's rollout, and what requests without a version mean, for clients."""
        identifier, serving = model.identifier, model.serving
        division, rollout = self.traffic.find(identifier), self._rollouts.get(identifier)
        chosen = division.stable if division is not None else max(serving, default=0)
        weights = {str(number): 0.0 for number in sorted(serving)} | {str(chosen): 100.0}
        if rollout is not None and rollout.phase.is_open:
            share = rollout.share if rollout.stable in serving else 100.0
            weights |= {str(rollout.stable): 100 - share, str(rollout.plan.version): share}
        described: dict[str, Any] = {"model": identifier.name, "weights": weights, "pinned": division is not None}
        if rollout is None:
            return described
        return described | {
            "phase": rollout.phase.value,
            "stable": rollout.stable,
            "step": rollout.step + 1,
            "reason": rollout.reason or self._suspended(model, rollout),
            **rollout.plan.members(),
            "figures": {
                str(rollout.stable): _described(rollout.figures.stable),
                str(rollout.plan.version): _described(rollout.figures.canary),
            },
        }

    def figures(self) -> dict[str, Any]:
        """For /metrics: of each model whose requests are divided or pinned, name, version, and share in percent of the
        requests that name no version; and of each last rollout, name, version and phase."""
        weights = []
        for identifier, model in self._models.models.items():
            if self.traffic.find(identifier) is not None:
                shares = self.describe(model)["weights"]
                weights += [(identifier.name, int(number), share) for number, share in shares.items()]
        states = [(each.name, made.plan.version, made.phase.value) for each, made in self._rollouts.items()]
        return {"weights": weights, "states": states}

    # --- a rollout as it goes on ---

    async def _drive(self, model: Model, rollout: Rollout) -> None:
        """Look at a rollout's figures until it has ended."""
        plan = rollout.plan
        pause_s = _MIN_LOOK_S if plan.every_requests else min(_MAX_LOOK_S, plan.every_s / _LOOKS_PER_STEP)
        while rollout.phase.is_open:
            await sleep(max(_MIN_LOOK_S, pause_s))
            if not rollout.phase.is_open or self._models.is_stopping:
                return  # a server that starts again resumes the rollout
            try:
                if await self._observe(model, rollout):
                    return
            except Exception as error:  # noqa: BLE001 - no guard watches the canary any more: it gets no more requests
                rollout.roll_back(str(report(model, error)))
                await self._end(model, rollout)

    async def _observe(self, model: Model, rollout: Rollout) -> bool:
        """Act upon the present figures; returns whether the rollout has ended."""
        if reason := _not_ready(model, rollout.plan.version):
            rollout.roll_back(reason)
            await self._end(model, rollout)
            return True
        if self._suspended(model, rollout):
            return False
        counted = (await self.traffic.count([model.identifier])).get(model.identifier)
        if counted is None or not rollout.phase.is_open:
            return not rollout.phase.is_open
        figures = Figures(
            VersionFigures.unpack(counted.stable), VersionFigures.unpack(counted.canary), tuple(counted.waiting),
            self._comparison(model.identifier, rollout),
        )  # fmt: skip
        # At an upgrade the step stays as it is in the file, which the new server has read.
        verdict = rollout.observe(self._loop.now_s(), figures, keeps_step=self.writer.is_held)
        if verdict is Verdict.ADVANCE:
            self._enter_step(model, rollout)
        elif verdict is not Verdict.STAY:
            await self._end(model, rollout)
        return not rollout.phase.is_open

    def _suspended(self, model: Model, rollout: Rollout) -> str:
        """Why a rollout neither goes on nor ends for now: it has no stable version to go back to. Empty if it has."""
        if not rollout.phase.is_open or not (why := _not_ready(model, rollout.stable)):
            return ""
        return f"{why}; version {rollout.plan.version} answers all requests meanwhile"

    def _comparison(self, identifier: ModelIdentifier, rollout: Rollout) -> Comparison | None:
        """The comparisons of the canary, as the stable version's shadow, since the step began."""
        now = self._compared_so_far(identifier.name, rollout.stable, rollout.plan.version)
        if now is None:
            return None
        before = self._compared.get(identifier, Comparison(0, 0))
        return Comparison(now.num_compared - before.num_compared, now.num_disagreed - before.num_disagreed)

    def _compared_so_far(self, model: str, stable: int, canary: int) -> Comparison | None:
        figure = self._figure_of_shadow(model, stable, canary)
        return None if figure is None else Comparison(figure.agreed + figure.disagreed, figure.disagreed)

    def _enter_step(self, model: Model, rollout: Rollout) -> None:
        """Give the canary the share of the present step."""
        identifier, plan = model.identifier, rollout.plan
        compared = self._compared_so_far(identifier.name, rollout.stable, plan.version)
        if compared is not None:
            self._compared[identifier] = compared
        self.traffic.set_share(model, rollout.share)
        _log.info(
            "model '%s': version %d gets %g %% of the requests that name no version (step %d of %d)",
            identifier, plan.version, rollout.share, rollout.step + 1, len(plan.steps),
        )  # fmt: skip
        self._keep()

    async def _end(self, model: Model, rollout: Rollout) -> None:
        """Give all requests to the version that has won: the batcher sends them there at once, and clients do so from
        then on."""
        identifier, plan = model.identifier, rollout.plan
        self._compared.pop(identifier, None)
        if rollout.phase is Phase.PROMOTED:
            _log.info("model '%s': version %d is promoted", identifier, plan.version)
            chosen = plan.version
        else:
            _log.error(
                "model '%s': the rollout to version %d is rolled back to version %d: %s",
                identifier, plan.version, rollout.stable, rollout.reason,
            )  # fmt: skip
            chosen = rollout.stable
        _note(model, rollout)
        self._keep()
        self.traffic.set_share(model, rollout.share)
        await self.traffic.choose(model, chosen)

    # --- plans in models' directories ---

    def hold_back(self, model: Model, found: FoundModel, fresh: Iterable[ServedVersion]) -> None:
        """Keep requests that name no version from a new version that is about to serve, until the rollout in the
        model's directory begins or, after a restart, the rollout in the file is resumed."""
        kept = self._unresumed.get(model.identifier)
        if kept is not None and self.traffic.find(model.identifier) is None and kept.chosen in found.versions:
            self.traffic.pin(model, kept.chosen, fresh)
            return
        plan = _plan_of(found)
        if plan is None or plan.version not in found.versions or self.traffic.find(model.identifier) is not None:
            return
        stable = _version_before(plan.version, model.serving or found.versions)
        if plan.version not in model.serving and stable is not None:
            self.traffic.pin(model, stable, fresh)

    def follow(self, model: Model, found: FoundModel) -> None:
        """Begin the rollout in the model's directory, once for each plan: a plan that was rolled back is not tried
        again until the file has changed."""
        plan = _plan_of(found)
        if self._waiting is None:
            self._loop.start(self._follow(model.identifier, plan))
        elif plan is not None:
            self._waiting[model.identifier] = plan

    async def _follow(self, identifier: ModelIdentifier, plan: RolloutPlan | None) -> None:
        await self._resume(identifier)
        model, last = self._models.models.get(identifier), self._rollouts.get(identifier)
        if plan is None or model is None or (last is not None and last.plan == plan):
            return
        try:
            if last is not None and last.phase.is_open:
                last.roll_back("the model's rollout.json has another plan")
                await self._end(model, last)
            await self.begin(model, plan)
        except ShoalError as error:
            _log.error("model '%s': the rollout in its rollout.json does not begin: %s", identifier, error)

    # --- restarts ---

    def _keep(self) -> None:
        """Write the file; an error is logged, and the rollout goes on."""
        kept = [
            SavedRollout(*identifier, each.plan, each.stable, each.step, each.phase.value, each.reason)
            for identifier, each in self._rollouts.items()
        ]
        self.writer.write([*kept, *[each for key, each in self._unresumed.items() if key not in self._rollouts]])

    async def restore(self) -> None:
        """Resume the open rollouts in the file, and give requests that name no version to the version with which an
        ended rollout ended. A row that does not fit the model is logged, stays in the file, and is tried again whenever
        the model has been loaded."""
        self._unresumed = {ModelIdentifier(each.name, each.namespace): each for each in self._file.read()}
        for identifier in tuple(self._unresumed):
            await self._resume(identifier)
        waiting, self._waiting = self._waiting or {}, None
        for identifier, plan in waiting.items():
            await self._follow(identifier, plan)

    async def _resume(self, identifier: ModelIdentifier) -> None:
        """Resume the rollout that was open before the restart, if the file has one of this model."""
        if (kept := self._unresumed.get(identifier)) is None or identifier in self._rollouts:
            return
        model, phase = self._models.models.get(identifier), Phase(kept.phase)
        try:
            if model is None or kept.chosen not in model.serving:
                raise UnavailableError(f"version {kept.chosen} of model '{identifier}' is not READY")
            if phase.is_open:
                await self.traffic.choose(model, kept.stable)
                await self.begin(model, kept.plan, min(kept.step, len(kept.plan.steps) - 1))
                self._rollouts[identifier].phase = phase
                self._keep()
            else:
                await self._restore_end(model, kept, phase)
        except ShoalError as error:
            _log.error(
                "model '%s': its rollout of before the restart is not resumed: %s; that is tried again when the model "
                "is loaded", identifier, error,
            )  # fmt: skip
        else:
            self._unresumed.pop(identifier, None)

    async def _restore_end(self, model: Model, kept: SavedRollout, phase: Phase) -> None:
        ended = Rollout(kept.plan, kept.stable, self._loop.now_s(), kept.step, phase, kept.reason)
        self._rollouts[model.identifier] = ended
        _note(model, ended)
        await self.traffic.choose(model, kept.chosen)
        _log.info(
            "model '%s': requests that name no version mean version %d, with which the last rollout has ended: %s",
            model.identifier, kept.chosen, phase.value,
        )  # fmt: skip


def make_rollouts(
    star: Star, models: Models, is_registered: Callable[[ModelIdentifier], bool], figure_of_shadow: FigureOfShadow
) -> Rollouts:
    """The rollouts of a server, which also become the `traffic` of its versions."""
    options = star.options
    port = options.http_port if options.allow_http else 0
    path = state_path(options.rollout_file, os.environ, port, ROLLOUTS)
    file = rollout_file(path, options.model_repository)
    models.traffic = rollouts = Rollouts(star, models, file, is_registered, figure_of_shadow)
    return rollouts


def _plan_of(found: FoundModel) -> RolloutPlan | None:
    """The plan in a model's directory; None without one. A file that is no plan is logged."""
    if not found.rollout:
        return None
    try:
        members = json.loads(found.rollout)
        if type(members) is not dict:
            raise InvalidArgumentError("a rollout is an object of JSON")
        return read_plan(members)
    except (ValueError, RecursionError, ShoalError) as error:
        _log.error("model '%s': its rollout.json is no rollout: %s", found.identifier, error)
        return None


def _note(model: Model, rollout: Rollout) -> None:
    """Note in the index, and so on the page, why the new version has no requests; a rollout that begins clears that."""
    canary = model.serving.get(rollout.plan.version)
    if canary is not None:
        version, is_back = canary.version, rollout.phase is Phase.ROLLED_BACK
        version.reason_when_ready = f"rolled back to version {rollout.stable}: {rollout.reason}" if is_back else ""
        if version.state is VersionState.READY:
            version.reason = version.reason_when_ready


def _version_before(canary: int, versions: Iterable[int]) -> int | None:
    """The highest version below the canary or, if there is none, the highest above; None if there is no other."""
    others = [number for number in versions if number != canary]
    below = [number for number in others if number < canary]
    return max(below or others, default=None)


def _interface(config: dict[str, Any], what: str) -> Any:
    """A field of a configuration, without the parts on which no client relies."""
    value = config.get(what)
    if what in ("input", "output"):
        tensors = [{key: each[key] for key in sorted(each) if key != "label_filename"} for each in value or ()]
        return sorted(tensors, key=lambda tensor: str(tensor["name"]))
    return value


def _described(figures: VersionFigures) -> dict[str, Any]:
    return {
        "requests": figures.num_requests,
        "errors": figures.num_errors,
        **{f"p{name}_ms": round(figures.quantile_ns(name / 100) / 1e6, 3) for name in (50, 99)},
    }


def _not_ready(model: Model, number: int) -> str:
    """Why a version does not serve; empty if it does."""
    served = model.versions.get(number)
    if served is not None and served.version.state is VersionState.READY:
        return ""
    why = "it is not loaded" if served is None else served.version.reason or served.version.state.value
    return f"version {number} is not READY: {why}"


def _list(serving: dict[int, ServedVersion]) -> str:
    return ", ".join(map(str, sorted(serving))) or "none"
