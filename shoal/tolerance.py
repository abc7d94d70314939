"""How far two answers of a model may be apart and still agree: of `shoal replay --compare` and of shadows. Pure.

    exact                       bits are equal (the default)
    atol=1e-5,rtol=1e-3         |one - other| <= atol + rtol |one|, for each floating-point value
    top1                        the largest value of the last axis has the same index
    cosine=0.999                rows along the last axis point the same way: their cosine is at least that
    none                        values are not compared
    top1,logits:atol=1e-3       rules for one output, from its name to the next; rules in front are for all others
    python                      the function `compare` in compare.py of the model's directory decides; for shadows only

Texts and whole numbers are equal or not, except to `top1` and `cosine`, which compare whole numbers, too.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shoal.errors import InvalidArgumentError

#: The most outputs with rules of their own in one tolerance (ours).
MAX_OUTPUTS = 64
PYTHON = "python"
_EXACT, _NONE, _TOP1 = "exact", "none", "top1"
_NUMBER = re.compile(r"[0-9]{0,20}\.?[0-9]{1,20}([eE][+-]?[0-9]{1,3})?", re.ASCII)


class OutputTolerance(NamedTuple):
    """The tolerance of one output's values. With all at their defaults the bits must be equal."""

    atol: float = 0.0
    rtol: float = 0.0
    top1: bool = False
    cosine: float = 0.0  # the least that is accepted; 0: cosines are not compared
    compares: bool = True  # False: names and outcomes alone are compared


class Tolerance(NamedTuple):
    """The tolerance of a whole answer: the one of an output with a name, or `others`."""

    others: OutputTolerance = OutputTolerance()
    outputs: Mapping[str, OutputTolerance] = {}
    uses_function: bool = False  # the model's compare.py must agree, too

    @property
    def compares(self) -> bool:
        """Whether the values of any output are compared."""
        return self.others.compares or any(each.compares for each in self.outputs.values())

    def of(self, output: str) -> OutputTolerance:
        """The tolerance of one output."""
        return self.outputs.get(output, self.others)


def read_tolerance(text: str | None) -> Tolerance:
    """The tolerance in a text of the forms that this module's docstring lists; None and "" are exact. Raises
    InvalidArgumentError, with the syntax, for a rule that does not exist, a name without a rule, and rules that exclude
    each other."""
    given: dict[str, list[str]] = {}
    name = ""
    for part in text.split(",") if text and text.strip() else ():
        output, colon, rule = part.strip().rpartition(":")
        if colon and not output:
            raise _wrong(part)
        name = output or name
        given.setdefault(name, []).append(rule)
    uses_function = PYTHON in given.get("", ())
    if uses_function:
        given[""] = [rule for rule in given[""] if rule != PYTHON] or [_NONE]
    rules = {name: _output_tolerance(each, text or "") for name, each in given.items()}
    if len(rules) > MAX_OUTPUTS:
        raise _wrong(text or "")
    others = rules.pop("", OutputTolerance())
    return Tolerance(others, rules, uses_function)


def _output_tolerance(rules: Sequence[str], text: str) -> OutputTolerance:
    """The tolerance of one output, or of the others, by its rules. Raises InvalidArgumentError."""
    if rules in ([_EXACT], [_NONE]):
        return OutputTolerance(compares=rules == [_EXACT])
    found = OutputTolerance()
    for rule in rules:
        kind, _, value = rule.partition("=")
        if rule == _TOP1:
            found = found._replace(top1=True)
            continue
        if kind not in ("atol", "rtol", "cosine") or not _NUMBER.fullmatch(value):
            raise _wrong(text)
        number = float(value)
        if number == float("inf") or (kind == "cosine" and not 0 < number <= 1):
            raise _wrong(text)
        values = {"atol": found.atol, "rtol": found.rtol, "cosine": found.cosine} | {kind: number}
        found = found._replace(atol=values["atol"], rtol=values["rtol"], cosine=values["cosine"])
    return found


def _wrong(text: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        "a tolerance is as atol=1e-5,rtol=1e-3 or top1 or cosine=0.999 or python, or exact or none alone, and as "
        f"scores:top1 for one output; got '{text[:80]}'"
    )
