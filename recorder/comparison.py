"""The differences between two answers to one request, within a tolerance. Pure.

Used by `shoal replay`, which compares a recorded answer with a new one, and by the comparator, which compares a
version's answer with its shadow's.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shoal import bf16
from shoal.datatypes import BF16
from shoal.distances import Array, as_numbers, distances
from shoal.tolerance import OutputTolerance, Tolerance

if TYPE_CHECKING:
    from shoal.recorder.recorded import RecordedResponse


class ValueDifference(NamedTuple):
    """The difference of one output, or of the outputs' names: a sentence and, for floating-point values, how far the
    values are apart at most, absolutely and relative to the larger one."""

    what: str
    max_abs: float = 0.0
    max_rel: float = 0.0


def value_differences(
    response: "RecordedResponse",
    outputs: Mapping[str, Array],
    tolerance: Tolerance,
    verb: str = "was recorded",
    *,
    is_strict: bool = False,
) -> list[ValueDifference]:
    """The differences between a first answer and the outputs of another one; empty if the answers agree. `verb` is
    what sentences say of the first, such as "was recorded". `outputs` of BF16 may be 16-bit words. Unless `is_strict`,
    `outputs` are as a client gets them: of any shape with as many values, since models may reshape, FP32 for BF16."""
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
        after, own = outputs[tensor.name], tolerance.of(tensor.name)
        if is_strict and own.compares and before.shape != after.shape:
            difference: ValueDifference | None = _unlike(f"output {tensor.name}", before, after, verb)
        else:
            if tensor.datatype == BF16.name and after.dtype == np.uint16:
                before, after = bf16.values_of(before), bf16.values_of(after)
            elif tensor.datatype == BF16.name and after.dtype == np.float32 and not is_strict:
                before = bf16.values_of(before)
            difference = _difference(tensor.name, before, after, own, verb)
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
        return _unlike(name, before, after, verb)
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
        rows, others = as_numbers(one).reshape(-1, width), as_numbers(other).reshape(-1, width)
        sentence = _row_fault(name, rows, others, tolerance)
        if sentence is None and not (tolerance.atol or tolerance.rtol):
            return None
        if sentence is not None:
            return ValueDifference(sentence, *distances(as_numbers(one), as_numbers(other))[1:])
    if before.dtype.kind != "f":
        num_unequal = int(np.count_nonzero(one != other))
        return ValueDifference(f"{name}: {num_unequal} of {one.size} values differ")
    left, right = as_numbers(one), as_numbers(other)
    absolute, max_abs, max_rel = distances(left, right)
    with np.errstate(all="ignore"):
        is_within = np.isfinite(absolute) & (absolute <= tolerance.atol + tolerance.rtol * np.abs(left))
    is_over = ~(is_within | (absolute == 0))  # equal infinities differ by 0, but their bound may be NaN
    if not is_over.any() and (tolerance.atol or tolerance.rtol):
        return None
    num_unequal = int(np.count_nonzero(absolute))
    how_far = f"by {max_abs:.3g} at most, {max_rel:.3g} of the larger value"
    return ValueDifference(f"{name}: {num_unequal} of {one.size} values differ, {how_far}", max_abs, max_rel)


def _unlike(name: str, before: Array, after: Array, verb: str) -> ValueDifference:
    return ValueDifference(
        f"{name}: {before.dtype} {list(before.shape)} {verb}, {after.dtype} {list(after.shape)} came"
    )


def _row_fault(name: str, rows: Array, others: Array, tolerance: OutputTolerance) -> str | None:
    """The sentence about rows whose largest value stands elsewhere, or whose direction differs; None without such rows.
    A row with NaN in one answer alone counts as both."""
    is_nan, is_other_nan = np.isnan(rows).any(axis=1), np.isnan(others).any(axis=1)
    if (is_nan != is_other_nan).any():
        num_nan = int(np.count_nonzero(is_nan != is_other_nan))
        return f"{name}: {num_nan} of {len(rows)} rows have NaN in one answer alone"
    if tolerance.top1:
        before, after = rows.argmax(axis=1), others.argmax(axis=1)
        if num := int(np.count_nonzero(before != after)):
            first = int(np.nonzero(before != after)[0][0])
            where = f"row {first} has it at {before[first]}, then at {after[first]}"
            return f"{name}: the largest value of {num} of {len(rows)} rows stands elsewhere: {where}"
    if tolerance.cosine:
        cosines = _cosines(rows, others)
        if not (cosines >= tolerance.cosine).all():
            return f"{name}: the cosine of a row is {float(np.min(np.nan_to_num(cosines, nan=-1.0))):.6g}"
    return None


def _cosines(rows: Array, others: Array) -> Array:
    """The cosine of each row with the other answer's row; 1 for equal rows, else 0 if one is all zeros. Rows are scaled
    first: squares of large values are beyond FP64."""
    with np.errstate(all="ignore"):
        scaled = [each / np.max(np.abs(each), axis=1, keepdims=True, initial=0.0) for each in (rows, others)]
        lengths = np.linalg.norm(scaled[0], axis=1) * np.linalg.norm(scaled[1], axis=1)
        cosines: Array = (scaled[0] * scaled[1]).sum(axis=1) / lengths
    is_zero = [(each == 0).all(axis=1) for each in (rows, others)]
    cosines[is_zero[0] | is_zero[1]] = 0.0
    cosines[(rows == others).all(axis=1)] = 1.0
    return cosines
