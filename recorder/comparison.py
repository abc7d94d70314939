"""The differences between two answers to one request, within a tolerance. Pure.

The one home of comparing: `shoal replay` compares a recorded answer with a new one, the comparator a version's answer
with its shadow's.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.tolerance import OutputTolerance, Tolerance

if TYPE_CHECKING:
    from shoal.recorder.recorded import RecordedResponse

Array = NDArray[Any]


class ValueDifference(NamedTuple):
    """The difference of one output, or of the outputs' names: a sentence and, for floating-point values, how far the
    values are apart at most, absolutely and relative to the first answer's value."""

    what: str
    max_abs: float = 0.0
    max_rel: float = 0.0


def value_differences(
    response: "RecordedResponse", outputs: Mapping[str, Array], tolerance: Tolerance, verb: str = "was recorded"
) -> list[ValueDifference]:
    """What differs between a first answer, of which a sentence says that it `verb`, and the outputs of another one;
    empty if the answers agree."""
    names = {each.name for each in response.outputs}
    if names != set(outputs):
        return [ValueDifference(f"outputs: {sorted(names)} {verb}, {sorted(outputs)} came")]
    found = []
    for tensor in response.outputs:
        try:
            before = tensor.array()
        except ValueError as error:
            found.append(ValueDifference(f"output {tensor.name}: what {verb} cannot be read: {error}"))
            continue
        difference = _difference(tensor.name, before, outputs[tensor.name], tolerance.of(tensor.name), verb)
        if difference is not None:
            found.append(difference)
    return found


def _difference(
    output: str, before: Array, after: Array, tolerance: OutputTolerance, verb: str
) -> ValueDifference | None:
    name = f"output {output}"
    if not tolerance.compares:
        return None
    if before.dtype != after.dtype or before.size != after.size:
        return ValueDifference(
            f"{name}: {before.dtype} {list(before.shape)} {verb}, {after.dtype} {list(after.shape)} came"
        )
    one, other = before.ravel(), after.ravel()
    if before.dtype == object:
        texts = [each.encode() if isinstance(each, str) else bytes(each) for each in other.tolist()]
        unequal = sum([left != right for left, right in zip(one.tolist(), texts, strict=True)])
        return ValueDifference(f"{name}: {unequal} of {one.size} texts differ") if unequal else None
    if one.tobytes() == other.tobytes():
        return None
    is_by_rows = tolerance.top1 or tolerance.cosine > 0
    if is_by_rows:
        width = before.shape[-1] if before.ndim and before.shape[-1] else 1
        rows, others = _numbers(one).reshape(-1, width), _numbers(other).reshape(-1, width)
        sentence = _row_fault(name, rows, others, tolerance)
        if sentence is None and not (tolerance.atol or tolerance.rtol):
            return None
        if sentence is not None:
            return ValueDifference(sentence, *_distances(_numbers(one), _numbers(other))[1:])
    if before.dtype.kind != "f":
        num_unequal = int(np.count_nonzero(one != other))
        return ValueDifference(f"{name}: {num_unequal} of {one.size} values differ")
    left, right = _numbers(one), _numbers(other)
    absolute, max_abs, max_rel = _distances(left, right)
    with np.errstate(all="ignore"):
        is_over = ~(absolute <= tolerance.atol + tolerance.rtol * np.abs(left))
    if not is_over.any() and (tolerance.atol or tolerance.rtol):
        return None
    num_unequal = int(np.count_nonzero(absolute))
    what = f"{name}: {num_unequal} of {one.size} values differ, by {max_abs:.3g} at most, {max_rel:.3g} of the value"
    return ValueDifference(what, max_abs, max_rel)


def _numbers(flat: Array) -> Array:
    return flat.astype(np.float64)


def _distances(one: Array, other: Array) -> tuple[Array, float, float]:
    """The absolute distance of each value, and the largest absolute and relative one; two NaN are not apart."""
    with np.errstate(all="ignore"):
        absolute = np.abs(other - one)
        absolute[(one == other) | (np.isnan(one) & np.isnan(other))] = 0.0
        relative = absolute / np.abs(one)
    return absolute, float(np.max(absolute, initial=0.0)), float(np.nanmax(relative, initial=0.0))


def _row_fault(name: str, rows: Array, others: Array, tolerance: OutputTolerance) -> str | None:
    """The sentence about rows whose largest value stands elsewhere, or which point elsewhere; None if none does."""
    if tolerance.top1:
        before, after = rows.argmax(axis=1), others.argmax(axis=1)
        if num := int(np.count_nonzero(before != after)):
            first = int(np.nonzero(before != after)[0][0])
            where = f"row {first} has it at {before[first]}, then at {after[first]}"
            return f"{name}: the largest value of {num} of {len(rows)} rows stands elsewhere: {where}"
    if tolerance.cosine:
        with np.errstate(all="ignore"):
            lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(others, axis=1)
            cosines = np.where(lengths > 0, (rows * others).sum(axis=1) / lengths, 1.0)
        cosines[(lengths == 0) & (rows != others).any(axis=1)] = 0.0
        if not (cosines >= tolerance.cosine).all():
            return f"{name}: the cosine of a row is {float(np.min(np.nan_to_num(cosines, nan=-1.0))):.6g}"
    return None
