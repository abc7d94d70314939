"""Shadows: which versions are mirrored, by models' configurations and by the verb `shadow`, and with which results.

A client's rule counts more than the model's configuration, and is kept in a file (state_file.py), so that a server that
starts again goes on with it. Runs in the supervisor.
"""

import logging
import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from shoal.errors import InvalidArgumentError, ShoalError, UnavailableError
from shoal.messages.from_batcher import RequestsMirrored
from shoal.messages.to_batcher import CountMirrored
from shoal.messages.to_comparator import AnswersCompared
from shoal.model_config.shadow import shadow_rule
from shoal.options import ServerOptions
from shoal.shadow import (
    COMPARE_FILENAME,
    MAX_PAIRS,
    MAX_VERSION,
    Pair,
    ShadowFigure,
    ShadowRule,
    checked_rule,
    unsuitable,
    worst,
)
from shoal.shm.segment import OutOfSharedMemoryError
from shoal.supervisor.memory.star import Star
from shoal.supervisor.models.models import Models
from shoal.supervisor.processes.ring_readers import ComparatorProcess
from shoal.supervisor.questions.questions import Verb
from shoal.supervisor.state_file import StateFile, StateWriter, state_path
from shoal.tolerance import read_tolerance

_log = logging.getLogger(__name__)

#: Keys of counts: requests that were mirrored; pairs that were dropped because the comparator was behind, could not
#: read them, or ended while it compared them.
_MIRRORED, _COMPARATOR = "mirrored", "comparator"
#: How many pairs that are no longer mirrored keep their figures and examples; how many rules of clients may wait for a
#: version which is not served, though others of its model are (ours).
MAX_ENDED = 32
#: How many rules of clients may wait for a version which is not served, also of models that are not loaded (ours).
MAX_WAITING = 1024
#: The key of the state file's rows, and the first part of the file's name.
SHADOWS = "shadows"

#: A model and the version whose requests are mirrored.
_Name = tuple[str, int]
T = TypeVar("T")


class _Found:
    """The counts of one pair's mirrored requests since the server began."""

    __slots__ = ("dropped", "examples", "figure", "primary_ns", "shadow_ns")

    def __init__(self) -> None:
        self.figure = ShadowFigure()
        self.dropped = Counter[str]()  # pairs that were dropped, by reason
        self.primary_ns = self.shadow_ns = 0
        self.examples: list[dict[str, Any]] = []


class ShadowControl:
    """The rules in force, and the counts of the batcher and the comparator."""

    def __init__(
        self, star: Star, control_address: str, models: Models, file: "StateFile[tuple[_Name, ShadowRule | None]]"
    ) -> None:
        self._star = star
        self._models = models
        self._file = file
        self.writer = StateWriter(file, star.loop)  # writes nothing during an upgrade
        self.comparator = ComparatorProcess(star, control_address, self._on_compared)
        # Changed by restore, begin and end, as models change, and by messages. Rules of clients by model and primary,
        # in the order of their requests; None: a client has ended the configuration's rule.
        self._asked: dict[_Name, ShadowRule | None] = {}
        self._rules: list[ShadowRule] = []
        self._found: dict[Pair, _Found] = {}
        self.verbs: dict[str, Verb] = {"shadow": self.shadow}

    # --- mirrored pairs ---

    def on_models_changed(self) -> None:
        """Apply the configurations' rules after a change of models."""
        try:
            self._apply()
        except (OutOfSharedMemoryError, OSError) as error:
            _log.error("requests are not mirrored: %s", error)

    def restore(self) -> None:
        """Take up the rules that clients of the server before this one had asked for; to be called before models are
        loaded."""
        self._asked.update(self._file.read())

    def begin(self, rule: ShadowRule) -> None:
        """Begin to mirror by a rule. Raises InvalidArgumentError, or UnavailableError without memory for it."""
        checked_rule(rule)
        model = self._models.get(rule.model)
        for number in (rule.primary, rule.shadow):
            if number not in model.serving:
                raise InvalidArgumentError(
                    f"version {number} of model '{rule.model}' is not served, and both versions must be. The model's "
                    "version_policy says which are, as version_policy { specific { versions: [2, 3] } }"
                )
            if why := unsuitable(model.serving[number].version.config):
                raise InvalidArgumentError(f"requests to model '{rule.model}' cannot be mirrored: {why}")
        function = self._with_function(rule).function
        if function and not Path(function).is_file():
            raise InvalidArgumentError(
                f"'compare': python needs a file {COMPARE_FILENAME} with a function compare(primary, shadow, inputs) "
                f"in the directory of model '{rule.model}', beside its config.pbtxt"
            )
        name = rule.model, rule.primary
        others = [each for each in self._rules if (each.model, each.primary) != name]
        if len(others) >= MAX_PAIRS:
            raise InvalidArgumentError(f"{MAX_PAIRS} versions are mirrored already; end one of these shadows first")
        self._ask({each: asked for each, asked in self._asked.items() if each != name} | {name: rule})

    def end(self, model: str, primary: int) -> None:
        """Stop mirroring requests of this version, or waiting for the version. Raises InvalidArgumentError if no rule
        says that they are mirrored, or UnavailableError."""
        name = model, primary
        is_configured = any((each.model, each.primary) == name for each in self._configured())
        if self._asked.get(name) is None and (name in self._asked or not is_configured):
            raise InvalidArgumentError(f"version {primary} of model '{model}' has no shadow")
        asked = {each: rule for each, rule in self._asked.items() if each != name}
        self._ask(asked | {name: None} if is_configured else asked)

    def _ask(self, asked: dict[_Name, ShadowRule | None]) -> None:
        """Put these rules of clients in force, and keep them. Raises UnavailableError without memory for that, and
        changes nothing."""
        before, self._asked = self._asked, asked
        try:
            self._apply()
        except (OutOfSharedMemoryError, OSError) as error:
            self._asked = before
            raise UnavailableError(f"the shadows stay as they are: {error}") from error
        known, in_force = tuple(asked), {each for each in asked if self._serves(*each)}
        unloaded = {each for each in asked if not self._serving(each[0])}
        forgotten = {*forgettable(known, in_force | unloaded), *forgettable(known, in_force, MAX_WAITING)}
        for name in forgotten:
            del asked[name]
        self.writer.write(asked.items())

    def _apply(self) -> None:
        rules = {(each.model, each.primary): each for each in self._configured()}
        for name, asked in self._asked.items():
            rules.pop(name, None)
            if asked is not None and self._serves(*name):
                rules[name] = asked
        now = [self._with_function(each) for each in list(rules.values())[:MAX_PAIRS]]
        if now == self._rules:
            return
        self.comparator.follow(now)
        self._rules = now
        for rule in now:
            self._found.setdefault(rule.pair, _Found())
        for pair in forgettable(tuple(self._found), {rule.pair for rule in now}):
            del self._found[pair]

    def _serves(self, name: str, version: int) -> bool:
        """Whether a version serves; a rule whose version does not serve waits, and takes no place among MAX_PAIRS."""
        return version in self._serving(name)

    def _serving(self, name: str) -> Collection[int]:
        """The versions of a model that serve; none if the model is not loaded."""
        try:
            return self._models.get(name).serving
        except ShoalError:
            return ()

    def _with_function(self, rule: ShadowRule) -> ShadowRule:
        """The rule with the path of the model's own comparison, where the rule asks for it and the shadow serves."""
        if not read_tolerance(rule.compare).uses_function or not self._serves(rule.model, rule.shadow):
            return rule._replace(function="")
        version = self._models.get(rule.model).serving[rule.shadow].version
        return rule._replace(function=str(version.version_dir.parent / COMPARE_FILENAME))

    def _configured(self) -> Iterator[ShadowRule]:
        for identifier, model in sorted(self._models.models.items()):
            for served in model.serving.values():
                rule = shadow_rule(served.version.config)
                if rule is not None:
                    yield rule._replace(model=identifier.name)
                    break

    # --- results ---

    def on_mirrored(self, message: RequestsMirrored) -> None:
        """Add the batcher's counts."""
        found = self._found.setdefault(Pair(message.model, message.primary, message.shadow), _Found())
        dropped = Counter(message.counts)
        mirrored = dropped.pop(_MIRRORED, 0)
        found.dropped += dropped
        found.figure = found.figure.plus(ShadowFigure(mirrored, dropped.total()))

    def _on_compared(self, message: AnswersCompared) -> None:
        found = self._found.setdefault(Pair(message.model, message.primary, message.shadow), _Found())
        found.dropped += Counter({_COMPARATOR: message.dropped})  # without an entry for 0
        found.figure = found.figure.plus(
            ShadowFigure(0, message.dropped, message.agreed, message.disagreed, message.failed)
        )
        found.primary_ns += message.primary_ns
        found.shadow_ns += message.shadow_ns
        found.examples = worst([*found.examples, *message.examples])

    def figure(self, model: str, primary: int, shadow: int) -> ShadowFigure | None:
        """The counts of a pair's mirrored requests since the server began; None if none was mirrored."""
        found = self._found.get(Pair(model, primary, shadow))
        return None if found is None else found.figure

    def figures(self) -> list[dict[str, Any]]:
        """The figures of all pairs, for /metrics."""
        return [
            {
                "model": pair.model, "version": pair.primary, "shadow_version": pair.shadow, **found.figure._asdict(),
                "primary_ns": found.primary_ns, "shadow_ns": found.shadow_ns, "drops": dict(found.dropped),
            }
            for pair, found in sorted(self._found.items())
        ]  # fmt: skip

    async def shadow(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The verb: begin or end as the arguments say, if they name a model; returns all rules and figures."""
        model = arguments["model"]
        if model and arguments["stop"]:
            self.end(model, arguments["primary"])
        elif model:
            names = ("model", "primary", "shadow", "share", "compare")
            self.begin(ShadowRule(*[arguments[name] for name in names]))
        if model:
            await self.writer.settle()
        # The comparator reports sooner than the batcher: without this more would be compared than was mirrored.
        await self._star.acknowledgements.announce(self._star.to_batcher(CountMirrored()))
        rules = {rule.pair: rule for rule in self._rules}
        return {
            "shadows": [
                {
                    **figures,
                    "is_on": (pair := Pair(figures["model"], figures["version"], figures["shadow_version"])) in rules,
                    "share": rules[pair].share if pair in rules else 0.0,
                    "compare": rules[pair].compare or "exact" if pair in rules else "",
                    "disagree_share": self._found[pair].figure.disagree_share,
                    "examples": self._found[pair].examples,
                }
                for figures in self.figures()
                if not model or figures["model"] == model
            ]
        }


def forgettable(known: Sequence[T], in_force: Collection[T], most: int = MAX_ENDED) -> list[T]:
    """The pairs, or rules, that are not in force, oldest first, without the `most` latest: a server to which a new
    version comes every day must not keep examples and rules of each."""
    ended = [each for each in known if each not in in_force]
    return ended[: max(0, len(ended) - most)]


def shadow_file(options: ServerOptions) -> "StateFile[tuple[_Name, ShadowRule | None]]":
    """The file in which a server with these options keeps shadows that were begun by request."""
    path = state_path(options.shadow_file, os.environ, options.http_port if options.allow_http else 0, SHADOWS)
    return StateFile(path, SHADOWS, _asked, _row, options.model_repository)


def _row(asked: tuple[_Name, ShadowRule | None]) -> dict[str, Any]:
    (model, primary), rule = asked
    name = {"model": model, "of": primary}
    if rule is None:
        return {**name, "stop": True}
    return {**name, "version": rule.shadow, "share": rule.share, "compare": rule.compare}


def _asked(row: Any) -> tuple[_Name, ShadowRule | None]:
    """A row of the state file: the model and the primary, and the rule, or None for a configured one that was ended."""
    model, primary = row["model"], row["of"]
    if type(model) is not str or not _is_version(primary):
        raise ValueError("a shadow has members of other types")
    if row.get("stop") is True:
        return (model, primary), None
    shadow, part, compare = row["version"], row["share"], row["compare"]
    if not _is_version(shadow) or type(compare) is not str or type(part) not in (int, float) or not 0 <= part <= 1:
        raise ValueError("a shadow has members of other types")
    return (model, primary), checked_rule(ShadowRule(model, primary, shadow, part, compare))


def _is_version(number: Any) -> bool:
    return type(number) is int and 0 < number < MAX_VERSION
