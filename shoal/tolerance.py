"""How far two answers of a model may be apart and still agree: of `shoal replay --compare` and of shadows. Pure.

    exact                       bits are equal (the default)
    atol=1e-5,rtol=1e-3         |one - other| <= atol + rtol |one|, for each floating-point value
    top1                        the largest value of the last axis has the same index
    cosine=0.999                rows along the last axis point the same way: their cosine is at least that
    none                        values are not compared
    top1,logits:atol=1e-3       a rule for one output, by its name; the others have the first rule

Texts and whole numbers are equal or not, except to `top1` and `cosine`, which compare whole numbers, too.
"""

from collections.abc import Mapping
from typing import NamedTuple

from shoal.errors import InvalidArgumentError

#: Rules for single outputs in one tolerance (ours).
MAX_OUTPUTS = 64


class OutputTolerance(NamedTuple):
    """The tolerance of one output's values. With all at their defaults the bits must be equal."""

    atol: float = 0.0
    rtol: float = 0.0
    top1: bool = False
    cosine: float = 0.0  # the least; 0: not wanted
    compares: bool = True  # False: names and outcomes alone are compared


class Tolerance(NamedTuple):
    """The tolerance of a whole answer: the one of an output with a name, or `others`."""

    others: OutputTolerance = OutputTolerance()
    outputs: Mapping[str, OutputTolerance] = {}

    @property
    def compares(self) -> bool:
        """Whether the values of any output are compared."""
        return self.others.compares or any(each.compares for each in self.outputs.values())

    def of(self, output: str) -> OutputTolerance:
        """The tolerance of one output."""
        return self.outputs.get(output, self.others)


def read_tolerance(text: str | None) -> Tolerance:
    """The tolerance in a text as above; None and "" are exact. Raises InvalidArgumentError with the syntax."""
    rules: dict[str, OutputTolerance] = {}
    name = ""
    for part in (text or "").split(","):
        output, colon, rule = part.strip().rpartition(":")
        if colon:
            name = output
        if rule:
            rules[name] = _with_rule(rules.get(name, OutputTolerance()), rule, text or "")
    if len(rules) > MAX_OUTPUTS:
        raise _wrong(text or "")
    others = rules.pop("", OutputTolerance())
    return Tolerance(others, rules)


def _with_rule(before: OutputTolerance, rule: str, text: str) -> OutputTolerance:
    if rule == "exact":
        return before
    if rule == "none":
        return before._replace(compares=False)
    if rule == "top1":
        return before._replace(top1=True)
    kind, _, value = rule.partition("=")
    most = 1.0 if kind == "cosine" else float("inf")
    try:
        number = float(value)
    except ValueError:
        raise _wrong(text) from None
    if kind not in ("atol", "rtol", "cosine") or not 0 <= number <= most or number == float("inf"):
        raise _wrong(text)
    values = {"atol": before.atol, "rtol": before.rtol, "cosine": before.cosine} | {kind: number}
    return before._replace(atol=values["atol"], rtol=values["rtol"], cosine=values["cosine"])


def _wrong(text: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        "a tolerance is as atol=1e-5,rtol=1e-3 or top1 or cosine=0.999 or exact or none, and as scores:top1 for one "
        f"output; got '{text[:80]}'"
    )
