"""Shadows: which version of a model is mirrored to which other one, and with which results. Pure.

parameters { key: "shadow_of" value { string_value: "2" } }          the version whose requests are mirrored
parameters { key: "shadow_version" value { string_value: "3" } }     the version that gets them
parameters { key: "shadow_share" value { string_value: "0.1" } }     the share of its requests; by default 1
parameters { key: "shadow_compare" value { string_value: "top1" } }  a tolerance; by default `exact`
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shoal.errors import InvalidArgumentError
from shoal.recording_settings import share
from shoal.tolerance import read_tolerance

#: Pairs of versions that are mirrored at once (ours): each has a share of the memory that may be lent.
MAX_PAIRS = 16
#: Numbers of versions in rules are below this (ours): they travel in msgpack, to the batcher and to the comparator.
MAX_VERSION = 1 << 31
#: Examples of disagreements that are kept for each pair, the worst ones (ours).
MAX_EXAMPLES = 8
#: The file in a model's directory that has the function which compares, if a tolerance says python.
COMPARE_FILENAME = "compare.py"


class Pair(NamedTuple):
    """A version of a model, and the one that shadows it."""

    model: str
    primary: int
    shadow: int


class ShadowRule(NamedTuple):
    """A pair, the share of the primary's answered requests that is mirrored, and how answers are compared. A value,
    which msgpack carries to the batcher and to the comparator."""

    model: str
    primary: int
    shadow: int
    share: float = 1.0
    compare: str = ""
    #: The path of the model's compare.py, if `compare` says python. Set by the supervisor, never by a client.
    function: str = ""

    @property
    def pair(self) -> Pair:
        """The versions."""
        return Pair(self.model, self.primary, self.shadow)


class ShadowFigure(NamedTuple):
    """The counts of a pair's mirrored requests, since the server began."""

    mirrored: int = 0  # given to the shadow version's scheduler
    dropped: int = 0  # chosen, but not mirrored or not compared
    agreed: int = 0
    disagreed: int = 0  # values differ beyond the tolerance, or the shadow has failed
    failed: int = 0  # of `disagreed`: the shadow's answer was an error, or its instance died

    @property
    def disagree_share(self) -> float | None:
        """The share of the compared answers that disagreed; None if none was compared."""
        compared = self.agreed + self.disagreed
        return self.disagreed / compared if compared else None

    def plus(self, other: "ShadowFigure") -> "ShadowFigure":
        """The sums of two figures."""
        return ShadowFigure(*[sum(both) for both in zip(self, other, strict=True)])


def worst(examples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The worst of these examples of disagreements, the worst first: failures, then by the largest distance."""
    return sorted(examples, key=lambda each: (not each["failed"], -each["max_abs"]))[:MAX_EXAMPLES]


def checked_rule(rule: ShadowRule) -> ShadowRule:
    """Return the rule. Raises InvalidArgumentError where its tolerance cannot be read, or its versions cannot be a
    pair."""
    if rule.primary == rule.shadow:
        raise InvalidArgumentError(f"version {rule.primary} of model '{rule.model}' cannot shadow itself")
    read_tolerance(rule.compare)
    return rule


def rule_of(model: str, parameters: Mapping[str, str]) -> ShadowRule | None:
    """The rule in a configuration's parameters, texts by name; None if there is none. Raises InvalidArgumentError."""
    primary, shadow = parameters.get("shadow_of"), parameters.get("shadow_version")
    if primary is None and shadow is None:
        if {"shadow_share", "shadow_compare"} & parameters.keys():
            raise InvalidArgumentError(
                f"model '{model}' has parameters of a shadow, but lacks 'shadow_of' and 'shadow_version'"
            )
        return None
    for name, text in (("shadow_of", primary), ("shadow_version", shadow)):
        if text is None or not (text.isascii() and text.isdecimal() and 0 < len(text) < 10 and int(text)):
            raise InvalidArgumentError(
                f"parameter '{name}' of model '{model}' is '{text}', must be the number of a version"
            )
    part = share(parameters.get("shadow_share", "1"))
    return checked_rule(
        ShadowRule(model, int(primary or 0), int(shadow or 0), part, parameters.get("shadow_compare", ""))
    )


def unsuitable(config: Mapping[str, object]) -> str:
    """Why requests of a model with this normalised configuration are not mirrored; empty if they can be."""
    if "ensemble_scheduling" in config:
        return "it is an ensemble"
    if "sequence_batching" in config:
        return "it has a sequence batcher: a mirrored request would change the state of a sequence"
    policy, batching = config.get("model_transaction_policy"), config.get("dynamic_batching")
    if isinstance(policy, Mapping) and policy.get("decoupled"):
        return "it is decoupled: a request may have any number of responses"
    if isinstance(batching, Mapping) and batching.get("preserve_ordering"):
        return "it preserves the order of responses"
    return ""
