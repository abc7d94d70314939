"""The differences between what was recorded and what a replay answers. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shoal.cli.serve import CommandLineError
from shoal.errors import ShoalError

if TYPE_CHECKING:
    from shoal.recorder.recorded import RecordedRequest, RecordedTensor

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far an answer may be from the recorded one: |answer - recorded| <= atol + rtol |recorded|. With both 0 the
    bits must be equal. Other than floating-point values must be equal in any case."""

    atol: float = 0.0
    rtol: float = 0.0
    compares: bool = True  # False: only outcomes are compared


def read_tolerance(text: str | None) -> Tolerance:
    """The tolerance of `--compare atol=1e-5,rtol=1e-3`, or `none`. Raises CommandLineError."""
    if text == "none":
        return Tolerance(compares=False)
    found = {"atol": 0.0, "rtol": 0.0}
    for part in (text or "").split(","):
        name, _, value = part.partition("=")
        if not part:
            continue
        try:
            if name not in found or not 0 <= float(value) < float("inf"):
                raise ValueError
            found[name] = float(value)
        except ValueError:
            raise CommandLineError(f"--compare is as atol=1e-5,rtol=1e-3, or none; got '{text}'") from None
    return Tolerance(found["atol"], found["rtol"])


@dataclass(slots=True)
class Answer:
    """An answer of a replay: outputs of each response, or the error; and the time that it took."""

    responses: list[dict[str, Array]] = field(default_factory=list)
    error: ShoalError | None = None
    time_ns: int = 0
    late_ns: int = 0  # it was asked so much later than the recording's spacing wants


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between a recorded request and its replay."""

    number: int
    kind: str  # "outcome" or "values"
    what: str
    max_abs: float = 0.0
    max_rel: float = 0.0


def differences(request: "RecordedRequest", answer: Answer, tolerance: Tolerance) -> list[Difference]:
    """What differs; empty if nothing does."""
    before, after = request.error, answer.error
    if (before is None) != (after is None) or (before is not None and before.wire != getattr(after, "wire", None)):
        told = ["answered" if each is None else f"{each.words}: {each}" for each in (before, after)]
        return [Difference(request.number, "outcome", f"recorded: {told[0]}; replayed: {told[1]}")]
    if before is not None or not tolerance.compares:
        return []
    if len(request.responses) != len(answer.responses):
        what = f"{len(request.responses)} responses were recorded, {len(answer.responses)} came"
        return [Difference(request.number, "outcome", what)]
    found = []
    for response, outputs in zip(request.responses, answer.responses, strict=True):
        names = {each.name for each in response.outputs}
        if names != outputs.keys():
            what = f"outputs {sorted(names)} were recorded, {sorted(outputs)} came"
            found.append(Difference(request.number, "values", what))
            continue
        compared = [_difference(request.number, tensor, outputs[tensor.name], tolerance) for tensor in response.outputs]
        found += [each for each in compared if each is not None]
    return found


def _difference(number: int, tensor: "RecordedTensor", array: Array, tolerance: Tolerance) -> Difference | None:
    name = f"output {tensor.name}"
    try:
        recorded = tensor.array()
    except ValueError as error:
        return Difference(number, "values", f"{name}: what was recorded cannot be read: {error}")
    if recorded.dtype != array.dtype or recorded.size != array.size:
        what = f"{name}: {recorded.dtype} {list(recorded.shape)} was recorded, {array.dtype} {list(array.shape)} came"
        return Difference(number, "values", what)
    one, other = recorded.ravel(), array.ravel()
    if recorded.dtype == object:
        texts = [each.encode() if isinstance(each, str) else bytes(each) for each in other.tolist()]
        unequal = sum([before != after for before, after in zip(one.tolist(), texts, strict=True)])
        return Difference(number, "values", f"{name}: {unequal} of {one.size} texts differ") if unequal else None
    if one.tobytes() == other.tobytes():
        return None
    if recorded.dtype.kind != "f":
        unequal = int(np.count_nonzero(one != other))
        return Difference(number, "values", f"{name}: {unequal} of {one.size} values differ")
    with np.errstate(all="ignore"):
        before, after = one.astype(np.float64), other.astype(np.float64)
        absolute = np.abs(after - before)
        absolute[(before == after) | (np.isnan(before) & np.isnan(after))] = 0.0
        relative = absolute / np.abs(before)
    is_over = ~(absolute <= tolerance.atol + tolerance.rtol * np.abs(before))
    if not is_over.any() and (tolerance.atol or tolerance.rtol):
        return None
    max_abs, max_rel = float(np.max(absolute)), float(np.nanmax(relative, initial=0.0))
    num_unequal = int(np.count_nonzero(absolute))
    what = f"{name}: {num_unequal} of {one.size} values differ, by {max_abs:.3g} at most, {max_rel:.3g} of the value"
    return Difference(number, "values", what, max_abs, max_rel)


def quantile_ms(times_ns: Sequence[int], share: float) -> float:
    """A quantile of times, in ms; 0 without any."""
    ordered = sorted(times_ns)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1e6 if ordered else 0.0
