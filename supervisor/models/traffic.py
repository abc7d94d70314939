"""The version for requests that name none: the model's highest, one that was chosen, or two versions between which the
batcher splits them. Runs in the supervisor.

A split has a model id of its own, which the model keeps for good: a request that was sent before the end of a split is
still the stable version's. The batcher knows a split before clients use its id, and a version's new copy before the old
one retires.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from shoal.messages.from_batcher import SplitFigures
from shoal.messages.to_batcher import CountSplit, SplitChanged
from shoal.repository.identifier import ModelIdentifier
from shoal.repository.lifecycle import ModelVersion
from shoal.supervisor.memory.star import Star
from shoal.supervisor.models.model import Model
from shoal.supervisor.models.models import Models
from shoal.supervisor.models.served_version import ServedVersion

#: Messages give shares in hundredths of a percent.
_PER_PERCENT = 100


@dataclass(slots=True)
class Division:
    """How one model's requests that name no version are divided."""

    stable: int  # the number of a version, as `canary` is
    canary: int | None = None
    share: float = 0.0  # the canary's, in percent
    sticky_header: str = ""
    retries: bool = True
    split_id: int = 0  # 0: the requests have not been split yet
    step: int = 0  # counts the steps of all of the model's rollouts
    sent: SplitChanged | None = None  # the division as the batcher has it


class Traffic:
    """The divisions of all models; models without one follow Triton's rule."""

    def __init__(self, star: Star, models: Models) -> None:
        self._star = star
        self._models = models
        # Changed by the methods below.
        self._divisions: dict[ModelIdentifier, Division] = {}
        self._figures: dict[int, SplitFigures] = {}  # the batcher's last answer, by the split's id

    def find(self, identifier: ModelIdentifier) -> Division | None:
        """How a model's requests are divided; None: by Triton's rule."""
        return self._divisions.get(identifier)

    # --- changes ---

    async def choose(self, model: Model, stable: int | None) -> None:
        """Have requests that name no version mean one version; None: the highest. Returns when clients do so."""
        division = self._divisions.get(model.identifier)
        if stable is None:
            if division is None:
                return
            # The split's id stays known to the batcher: requests that have it may be on their way.
            del self._divisions[model.identifier]
            await self._announce(model)
            return
        division = self._divisions.setdefault(model.identifier, Division(stable))
        ended = division.canary is not None
        division.stable, division.canary, division.share = stable, None, 0.0
        if not ended:
            self._send(model, division)
        await self._announce(model)
        # Only now may the batcher's division change: until clients applied the announcement, they used the split's id.
        self._send(model, division)

    def pin(self, model: Model, stable: int, fresh: Iterable[ServedVersion]) -> None:
        """Have requests that name no version mean this one once the model is announced next. `fresh` are copies of
        versions that are about to serve."""
        self._divisions[model.identifier] = Division(stable)
        for served in (*model.versions.values(), *fresh):
            self.mark(served.version)

    async def split(self, model: Model, stable: int, canary: int, sticky_header: str, *, retries: bool) -> None:
        """Begin to divide a model's requests; the canary has none of them before `set_share`."""
        division = self._divisions.setdefault(model.identifier, Division(stable))
        division.stable, division.canary, division.share = stable, canary, 0.0
        division.sticky_header, division.retries = sticky_header, retries
        division.split_id = division.split_id or next(self._models.ids)
        message = self._message(model, division)
        division.sent = message
        await self._star.acknowledgements.announce(self._star.to_batcher(message))
        await self._announce(model)

    def set_share(self, model: Model, share: float) -> None:
        """Give the canary this share of the requests, in percent, from now on: a step of a rollout begins."""
        division = self._divisions[model.identifier]
        division.share = share
        division.step += 1
        self._figures.pop(division.split_id, None)
        self._send(model, division)

    async def _announce(self, model: Model) -> None:
        """Announce a model's versions to clients; returns when they use them."""
        for served in model.versions.values():
            self.mark(served.version)
        await self._models.announce([served.version.message() for served in model.serving.values()])

    def mark(self, version: ModelVersion) -> None:
        """Set whether requests that name no version mean this one, or are split, before the version is announced."""
        division = self._divisions.get(version.identifier)
        if division is None:
            if version.split_id or version.is_chosen:
                version.is_default = None
            version.is_chosen, version.split_id, version.sticky_header = False, 0, ""
            return
        is_stable = version.version == division.stable
        is_split = is_stable and division.canary is not None
        version.is_default, version.is_chosen = is_stable, True
        version.split_id = division.split_id if is_split else 0
        version.sticky_header = division.sticky_header if is_split else ""

    # --- the batcher ---

    def refresh(self) -> None:
        """Send the batcher the divisions between versions of which a reload has made new copies, before the copies are
        announced."""
        for identifier, division in self._divisions.items():
            model = self._models.models.get(identifier)
            if model is not None and division.split_id:
                self._send(model, division)

    def introduce(self) -> None:
        """Send a successor all divisions, after the models."""
        for division in self._divisions.values():
            if division.sent is not None:
                self._star.send_to_batcher(division.sent)

    def _send(self, model: Model, division: Division) -> None:
        if not division.split_id:
            return
        message = self._message(model, division)
        if message != division.sent:
            division.sent = message
            self._star.send_to_batcher(message)

    def _message(self, model: Model, division: Division) -> SplitChanged:
        serving = model.serving
        stable_id, canary_id = (
            0 if number is None or number not in serving else serving[number].version.model_id
            for number in (division.stable, division.canary)
        )
        share = round(division.share * _PER_PERCENT)
        return SplitChanged(division.split_id, stable_id, canary_id, share, division.retries, division.step)

    async def count(self, identifiers: Iterable[ModelIdentifier]) -> dict[ModelIdentifier, SplitFigures]:
        """The figures of these models' splits since their present steps began; without those for which no batcher
        answers."""
        asked = {each: self._divisions[each] for each in identifiers if each in self._divisions}
        counts = [CountSplit(each.split_id) for each in asked.values()]
        await self._star.acknowledgements.announce(self._star.to_batcher(*counts))
        found = {identifier: self._figures.pop(each.split_id, None) for identifier, each in asked.items()}
        return {
            identifier: figures
            for identifier, figures in found.items()
            if figures is not None and figures.step == asked[identifier].step
        }

    def receive(self, message: SplitFigures) -> None:
        """Note the batcher's figures of one split."""
        self._figures[message.model_id] = message
